"""A ListOffsets reply without a requested partition is an error: no result may be missing silently."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster import unknown_topic
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.log_offsets import ListedOffset
from protocol.errors import Corrupt, DeadlineExceeded, TopicUnknown
from protocol.kafka_terms import LATEST
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from tests.protocol.consumer.consuming import TOPIC_ID, client_of


def broker_answering_for(partitions: list[int]) -> FakeKafka:
    """Return a broker that leads orders-0 and orders-1, and answers for `partitions`."""
    kafka = FakeKafka()
    kafka.create_topic("orders", 2, topic_id=TOPIC_ID)
    rows = [{"partition_index": each, "offset": 7, "timestamp": -1, "leader_epoch": 3} for each in partitions]
    kafka.handlers[LIST_OFFSETS] = lambda body, version: {"topics": [{"name": "orders", "partitions": rows}]}
    return kafka


TIMES = {("orders", 0): LATEST, ("orders", 1): LATEST}


def test_topic_unknown_for_long_is_raised_despite_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {0: ErrorCode.NOT_LEADER_OR_FOLLOWER, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    def refused(body: dict[str, Any], version: int) -> dict[str, Any]:
        asked = [row["partition_index"] for row in body["topics"][0]["partitions"]]
        rows = [{"partition_index": each, "error_code": int(codes[each]), "offset": -1} for each in asked]
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
