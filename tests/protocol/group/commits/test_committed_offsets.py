"""Offsets that Kafka cannot store cannot be made; partitions missing in a coordinator's reply are an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol import Consumer, KafkaConsumer
from protocol.errors import Corrupt, UsageError
from protocol.group.commits.committed_offsets import (
    CommittedOffset,
    as_committed_offsets,
    commit_offsets,
    fetch_offsets,
)
from protocol.group.membership.assignment import TopicSubscription
from protocol.testing import FakeKafka, MockConsumer
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from tests.protocol.fetch.consuming import client_of

GROUP = "etl"
BOTH = {("orders", 0): CommittedOffset(5, 1), ("orders", 1): CommittedOffset(6, 1)}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((-1,), "offset is -1; it must be from 0"),
        ((2**63,), "offset is 9223372036854775808"),
        ((5.0,), "offset is 5.0; it must be an integer"),
        ((np.float64(5),), "must be an integer"),
        (("5",), "offset is '5'"),
        ((None,), "offset is None"),
        ((5, 2**31), "leader epoch is 2147483648"),
        ((5, 1.0), "leader epoch is 1.0"),
        ((5, 1, b"m"), "metadata is bytes; it must be a str"),
        ((5, 1, "caf\udce9"), r"metadata has no UTF-8: '\\udce9' at position 3"),
        ((5, 1, "é" * 16_384), "metadata has 32768 bytes"),
    ],
)
def test_offset_that_kafka_cannot_store_is_refused(values: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        CommittedOffset(*values)


def test_numbers_of_numpy_become_integers() -> None:
    (key,), (to,) = zip(*as_committed_offsets({("orders", np.int32(1)): np.int64(7)}).items(), strict=True)  # type: ignore[dict-item]
    assert (key, to) == (("orders", 1), CommittedOffset(7))
    assert (type(key[1]), type(to.offset), type(CommittedOffset(7, np.int16(3)).leader_epoch)) == (int, int, int)  # type: ignore[arg-type]
    assert CommittedOffset(7, metadata=None) == CommittedOffset(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key",
    [
        "orders",
        ("orders",),
        ("orders", "0"),
        ("orders", True),
        ("orders", -1),
        ("orders", 2**31),
        (5, 0),
        ("caf\udce9", 0),
    ],
)
def test_partition_that_cannot_exist_is_refused(key: Any) -> None:
    with pytest.raises(UsageError):
        as_committed_offsets({key: 5})
    with KafkaConsumer({"bootstrap.servers": "127.0.0.1:1"}) as consumer, pytest.raises(UsageError):
        consumer.assign([key, ("orders", 0)])  # no other partition could be read
    with pytest.raises(UsageError):
        MockConsumer().assign([key])


def test_topic_that_cannot_exist_is_refused() -> None:
    with Consumer({"bootstrap.servers": "127.0.0.1:1"}) as consumer:
        for topic, partition in (("caf\udce9", 0), ("t" * 40_000, 0), ("orders", 2**31)):
            with pytest.raises(UsageError):
                consumer.consume_partition(topic, partition, 0)
    with pytest.raises(UsageError, match="topic has no UTF-8"):
        TopicSubscription(frozenset({"orders", "caf\udce9"}))


def test_partition_missing_in_the_reply_is_named() -> None:
    def only_first(body: dict[str, Any]) -> dict[str, Any]:
        for group_body in body.get("groups", [body]):
            for topic in group_body["topics"]:
                topic["partitions"] = [row for row in topic["partitions"] if row["partition_index"] == 0]
        return body

    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("orders", 2)
        for api in (OFFSET_COMMIT, OFFSET_FETCH):
            kafka.edit_replies(api, only_first)
        with pytest.raises(Corrupt, match=r"OffsetCommit for group etl at .*: the reply omits orders-1"):
            commit_offsets(client, GROUP, BOTH, client.deadline())
        with pytest.raises(Corrupt, match=r"OffsetFetch for group etl at .*: the reply omits orders-1"):
            fetch_offsets(client, GROUP, BOTH, client.deadline())
        # A request for all partitions: a reply with fewer is complete.
        assert fetch_offsets(client, GROUP, None, client.deadline()) == {("orders", 0): CommittedOffset(5, 1)}
