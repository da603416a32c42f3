"""Commits in the background go on whatever happens to one of them, and to the coordinator."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any

import pytest

from protocol.group import offset_manager
from protocol.group.offset_manager import OffsetManager
from protocol.group.offsets import CommittedOffset, fetch_offsets
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.consumer_groups import coordinator_of
from tests.protocol.consumer.consuming import client_of

MARKS = {("orders", 0): CommittedOffset(5)}


def test_a_fault_in_this_client_is_told_and_the_commit_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[dict[Any, CommittedOffset]] = []

    def commit(client: Any, group: str, due: dict[Any, CommittedOffset], deadline: Any) -> None:
        tries.append(due)
        if len(tries) <= 2:
            raise ZeroDivisionError("as if")

    monkeypatch.setattr(offset_manager, "commit_offsets", commit)
    with client_of("127.0.0.1:1") as client, caplog.at_level(logging.WARNING):
        manager = OffsetManager(client, "etl")
        manager.mark(MARKS)
        assert manager.flush(client.deadline(10_000))
        manager.close()
    assert tries == [MARKS] * 3
    assert (manager.counts.succeeded, manager.counts.failed) == (1, 2)
    assert "ZeroDivisionError('as if')" in str(manager.counts.last_failure)
    first, second = (record for record in caplog.records if "group etl" in record.message)
    assert "will be tried again" in first.message
    assert first.exc_info
    assert "go through again" in second.message


def test_without_a_thread_the_next_mark_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_manager, "commit_offsets", lambda *_: None)
    with client_of("127.0.0.1:1") as client:
        manager = OffsetManager(client, "etl")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
            manager.mark(MARKS)
        assert not manager.healthy
        assert not manager.flush(client.deadline(10))
        manager.mark(MARKS)
        assert manager.flush(client.deadline(10_000))
        manager.close()
    assert manager.healthy


def test_commits_go_on_while_the_coordinator_s_host_is_dark(kafka: LocalKafka, topic: TopicFactory) -> None:
    """No reset, no answer. The cluster itself takes some seconds to see that."""
    name, group = topic(1, replication_factor=3), f"group-{uuid.uuid4().hex[:8]}"
    with client_of(kafka) as client:
        manager = OffsetManager(client, group)
        manager.mark({(name, 0): CommittedOffset(0)})
        assert manager.flush(client.deadline())
        dark = coordinator_of(kafka, group)
        kafka.pause(dark)
        try:
            manager.mark({(name, 0): CommittedOffset(1)})
            assert manager.flush(client.deadline(30_000)), manager.counts
            assert fetch_offsets(client, group, None, client.deadline(5_000))[name, 0].offset == 1
        finally:
            kafka.resume(dark)
            manager.close()
