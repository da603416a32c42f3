"""A group coordinator that has not yet learned that a topic was deleted and created again."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.group.commits import committed_offsets
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m09_offset_fetch import LAST_WITH_TOPIC_NAMES, OFFSET_FETCH
from tests.support.older_brokers import limit_version

_DELETED_ID = b"deleted".ljust(16, b".")


def keep_deleted_topic(
    monkeypatch: pytest.MonkeyPatch, fake: FakeKafka, group: str, offsets: dict[TopicPartition, int]
) -> None:
    """Let the group have offsets of a deleted topic until its first OffsetFetch was answered."""
    limit_version(fake, OFFSET_FETCH, LAST_WITH_TOPIC_NAMES)  # later ones name the topic by its id
    fake.offsets.committed[group] = {key: Committed(offset, -1, "") for key, offset in offsets.items()}
    ids_at_coordinator, calls = committed_offsets._topic_ids_at, list[int]()

    def outdated_ids(*arguments: Any) -> dict[str, bytes]:
        ids = ids_at_coordinator(*arguments)
        calls.append(len(calls))
        if len(calls) <= 2:  # before and after the OffsetFetch
            return dict.fromkeys(ids, _DELETED_ID)
        fake.offsets.committed.pop(group, None)
        return ids

    monkeypatch.setattr(committed_offsets, "_topic_ids_at", outdated_ids)
