"""Commits in the background go on whatever happens to one of them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from protocol.group import offset_manager
from protocol.group.offset_manager import OffsetManager
from protocol.group.offsets import CommittedOffset
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
