"""A ListOffsets reply without a requested partition is an error: no result may be missing silently."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.cluster import unknown_topic
from protocol.errors import Corrupt, DeadlineExceeded, TopicUnknown, UnsupportedVersion
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from tests.protocol.fetch.consuming import TOPIC_ID, client_of
from tests.support.older_brokers import limit_version


def broker_answering_for(partitions: list[int]) -> FakeKafka:
    """Return a broker that leads orders-0 and orders-1, and answers for `partitions`."""
    kafka = FakeKafka()
    kafka.create_topic("orders", 2, topic_id=TOPIC_ID)
    rows = [{"partition_index": partition, "offset": 7, "timestamp": -1, "leader_epoch": 3} for partition in partitions]
    kafka.handlers[LIST_OFFSETS] = lambda body, version: {"topics": [{"name": "orders", "partitions": rows}]}
    return kafka


TIMES = {("orders", 0): LATEST, ("orders", 1): LATEST}


def test_topic_unknown_for_long_is_raised_despite_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {0: ErrorCode.NOT_LEADER_OR_FOLLOWER, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    def refused(body: dict[str, Any], version: int) -> dict[str, Any]:
        requested = [row["partition_index"] for row in body["topics"][0]["partitions"]]
        rows = [{"partition_index": number, "error_code": int(codes[number]), "offset": -1} for number in requested]
        return {"topics": [{"name": "orders", "partitions": rows}]}

    with broker_answering_for([]) as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.handlers[LIST_OFFSETS] = refused
        with pytest.raises(DeadlineExceeded, match="did not succeed in"):
            list_offsets(client, TIMES, deadline=Deadline.after_ms(400))
        monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 200)
        with pytest.raises(TopicUnknown, match=r"orders-1 .*UNKNOWN_TOPIC_OR_PARTITION"):
            list_offsets(client, TIMES)


def test_reply_without_a_requested_partition_raises_corrupt_with_its_name() -> None:
    message = r"ListOffsets at .*: the reply omits orders-1"
    with (
        broker_answering_for([0]) as kafka,
        client_of(kafka.bootstrap_servers) as client,
        pytest.raises(Corrupt, match=message),
    ):
        list_offsets(client, TIMES)


def test_rows_of_partitions_that_were_not_requested_are_ignored() -> None:
    with broker_answering_for([0, 1, 2]) as kafka, client_of(kafka.bootstrap_servers) as client:
        assert list_offsets(client, TIMES) == dict.fromkeys(TIMES, ListedOffset(7, 3, -1))


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)],
)
def test_timestamp_that_the_broker_is_too_old_for_raises_unsupported_version(timestamp: int, version: int) -> None:
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("orders")
        limit_version(kafka, LIST_OFFSETS, version - 1)
        with pytest.raises(UnsupportedVersion, match="ListOffsets"):
            list_offsets(client, {("orders", 0): timestamp})
