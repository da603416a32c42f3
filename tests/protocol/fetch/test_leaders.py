"""Decisions about a failed Fetch that need the leader: its log, and the topic that it has."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, Corrupt, KafkaError, LogTruncated, TopicRecreated
from protocol.fetch import log_offsets
from protocol.fetch.fetch_failures import Action, Fail, InvalidPosition, Retry
from protocol.fetch.fetch_position import FetchPosition
from protocol.fetch.leaders import decide_with_leader, resolve_leaders
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.position import Position
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from tests.protocol.fetch.consuming import client_of, end_of_epoch, records

REFUSED = broker_error(ErrorCode.OFFSET_OUT_OF_RANGE, "Fetch of orders-0")
TRUNCATED = LogTruncated("orders-0: the log was truncated", end_offset=2)


@pytest.fixture
def client(fake_client: Client) -> Client:
    return fake_client


def routed(client: Client, offset: int) -> FetchPosition:
    partition = FetchPosition("orders", 0, Position(offset), ConsumerConfig())
    assert resolve_leaders(client, [partition], client.deadline()) == {}
    return partition


def decided(client: Client, partition: FetchPosition, error: KafkaError) -> Action:
    return decide_with_leader(client, partition, error, client.deadline(10_000))


def test_refused_position_behind_the_log_end_is_invalid(client: Client) -> None:
    action = decided(client, routed(client, 7), REFUSED)
    assert isinstance(action, InvalidPosition)
    assert (action.cause, action.resume.offset) == (REFUSED, routed(client, 7).until_offset)
    assert action.bounds is not None
    assert (action.bounds.start, action.bounds.latest.offset) == (0, 5)


@pytest.mark.parametrize(
    ("epoch_end", "context", "lost", "retained"),
    [
        (0, {}, True, 0),
        (2, {}, True, 0),  # records 0 and 1 still exist
        (5, {}, False, 0),  # a clean election, and a high watermark that lags
        (5, {"record_epoch": 1}, False, -1),
        (-1, {}, False, -1),
    ],
)
def test_leader_confirms_that_records_of_a_range_were_replaced(
    fake: FakeKafka, client: Client, epoch_end: int, context: dict[str, int], lost: bool, retained: int
) -> None:
    """A broker other than Kafka's may write other epochs into its record batches."""
    partition = FetchPosition("orders", 0, Position(0), ConsumerConfig(), until=Position(5, 0))
    assert resolve_leaders(client, [partition], client.deadline()) == {}
    fake.handlers[OFFSET_FOR_LEADER_EPOCH] = lambda body, version: end_of_epoch(body, {0: epoch_end})
    error = LogTruncated("orders-0: newer records", **context)
    action = decided(client, partition, error)
    if lost:
        reason = f"{error}. Offsets {epoch_end} to 5 now have other records or none"
        assert action == InvalidPosition(error, epoch_end, Position(5), reason)
    else:
        assert isinstance(action, Retry)
    assert (partition.until.leader_epoch, partition.confirmed_epoch) == (retained, retained)


def test_broker_without_epoch_queries_refuses_no_position_for_its_epoch() -> None:
    """The log is read on without the check, as one that keeps no epochs."""
    with FakeKafka(newest_versions={"OffsetForLeaderEpoch": -1}) as fake, client_of(fake.bootstrap_servers) as client:
        fake.create_topic("orders", 1)
        fake.write("orders", 0, records(0, 5))
        refused, suspected = (
            FetchPosition("orders", 0, Position(3, 0), ConsumerConfig(), until=Position(5, 0)) for _ in range(2)
        )
        assert resolve_leaders(client, [refused, suspected], client.deadline()) == {}
        assert isinstance(decided(client, refused, REFUSED), Retry)
        assert refused.position.leader_epoch == -1
        assert isinstance(decided(client, suspected, LogTruncated("orders-0: newer records")), Retry)
        assert (suspected.until.leader_epoch, suspected.confirmed_epoch) == (-1, -1)


def test_epoch_of_a_committed_offset_is_dropped_if_leaders_stay_older(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of an earlier topic of this name."""
    newer, same = (FetchPosition("orders", 0, Position(3, epoch), ConsumerConfig()) for epoch in (5, 0))
    assert resolve_leaders(client, [newer, same], client.deadline()) == {}
    assert isinstance(decided(client, newer, REFUSED), Retry)
    assert newer.position.leader_epoch == 5
    monkeypatch.setattr(log_offsets, "STALE_LEADER_MS", 0)
    for partition, retained in ((newer, -1), (same, 0)):
        assert isinstance(decided(client, partition, REFUSED), Retry)
        assert partition.position.leader_epoch == retained


@pytest.mark.parametrize("error", [REFUSED, TRUNCATED], ids=["refused", "truncated"])
def test_log_of_a_recreated_topic_is_reported_as_such(fake: FakeKafka, client: Client, error: KafkaError) -> None:
    """A Fetch by topic name (before Kafka 3.1) gets its answer from the new topic."""
    partition = routed(client, 7)
    fake.delete_topic("orders")
    fake.create_topic("orders", 1)
    action = decided(client, partition, error)
    assert isinstance(action, InvalidPosition)
    assert action.kind is TopicRecreated
    assert isinstance(action.cause, TopicRecreated)


def test_log_of_a_deleted_topic_is_not_reported_as_lost(fake: FakeKafka, client: Client) -> None:
    """The brokers may only have been restarted."""
    partition = routed(client, 4)
    fake.delete_topic("orders")
    action = decided(client, partition, TRUNCATED)
    assert isinstance(action, Retry)
    assert isinstance(action.error, BrokerError)
    assert action.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_other_failures_need_no_leader(fake: FakeKafka, client: Client) -> None:
    partition, error = routed(client, 4), Corrupt("CRC")
    fake.handlers[LIST_OFFSETS] = fake.handlers[METADATA] = lambda body, version: pytest.fail("a request")
    assert decided(client, partition, error) == Fail(error)


def test_leader_is_resolved_again_while_brokers_report_several_topic_ids(fake: FakeKafka, client: Client) -> None:
    def another(body: dict[str, Any]) -> dict[str, Any]:
        for row in body["topics"]:
            row["topic_id"] = b"deleted-topic-id"
        return body

    def resolve() -> KafkaError | None:
        client.expire_metadata(["orders"])
        return resolve_leaders(client, [partition], client.deadline()).get(partition)

    partition = routed(client, 3)
    topic_id = partition.topic_id
    # The reply, and that after cached metadata were expired.
    fake.edit_replies(METADATA, another, 2)
    error = resolve()
    assert isinstance(error, BrokerError)
    assert error.code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert isinstance(decided(client, partition, error), Retry)
    assert resolve() is None
    assert partition.topic_id == topic_id
    fake.edit_replies(METADATA, another)
    assert isinstance(resolve(), TopicRecreated)


def test_metadata_without_topic_ids_do_not_erase_the_id(fake: FakeKafka, client: Client) -> None:
    """In a rolling upgrade to Kafka 2.8, an older broker replies in between: the topic may be recreated later."""

    def without_ids(body: dict[str, Any]) -> dict[str, Any]:
        for row in body["topics"]:
            row["topic_id"] = NO_TOPIC_ID
        return body

    partition = routed(client, 3)
    topic_id = partition.topic_id
    fake.edit_replies(METADATA, without_ids, 1)
    client.expire_metadata(["orders"])
    assert resolve_leaders(client, [partition], client.deadline()) == {}
    assert client.topic("orders").topic_id == NO_TOPIC_ID
    assert partition.topic_id == topic_id
    fake.delete_topic("orders")
    fake.create_topic("orders", 1)
    client.expire_metadata(["orders"])
    assert isinstance(resolve_leaders(client, [partition], client.deadline())[partition], TopicRecreated)
