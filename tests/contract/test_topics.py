"""Topics: replies of brokers about existing, unknown, created and deleted topics."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.admin.topics import NewTopic, create_partitions, create_topic, delete_topic
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import BrokerError
from protocol.kafka_terms import LATEST
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from tests.contract.raw_requests import Row, ask, fetch_body, written
from tests.support.wait_until import wait_until


def metadata(client: Client, **requested: Any) -> Row:
    """Return the row of one topic."""
    row: Row = ask(client, METADATA, {"topics": [{"name": None, **requested}], "allow_auto_topic_creation": False})[
        "topics"
    ][0]
    return row


def test_topic_has_an_id_and_its_partitions_a_leader(client: Client, new_topic: Any) -> None:
    name = new_topic(3)
    row = metadata(client, name=name)
    assert (row["error_code"], row["name"], row["is_internal"]) == (0, name, False)
    assert metadata(client, topic_id=row["topic_id"])["name"] == name
    partitions = sorted(row["partitions"], key=lambda partition: partition["partition_index"])
    assert [partition["partition_index"] for partition in partitions] == [0, 1, 2]
    assert {(partition["error_code"], partition["leader_epoch"]) for partition in partitions} == {(0, 0)}
    (broker,) = client.brokers().values()
    assert {partition["leader_id"] for partition in partitions} == {broker.node_id}
    assert all(partition["replica_nodes"] == partition["isr_nodes"] == [broker.node_id] for partition in partitions)


def test_metadata_lists_all_topics_for_null_and_none_for_empty(client: Client, name: str) -> None:
    assert name in [row["name"] for row in ask(client, METADATA, {"topics": None})["topics"]]
    assert ask(client, METADATA, {"topics": []})["topics"] == []


def test_unknown_topic_is_refused(client: Client) -> None:
    unknown = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": "not-there", "partitions": []}
    assert metadata(client, name="not-there").items() >= {**unknown, "topic_id": bytes(16)}.items()
    assert metadata(client, name="not-there")["error_code"] == unknown["error_code"], (
        "Metadata does not create the topic"
    )
    for name in ("no such name", ""):
        assert metadata(client, name=name)["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
    row = metadata(client, topic_id=b"\1" * 16)
    assert (row["error_code"], row["name"], row["partitions"]) == (ErrorCode.UNKNOWN_TOPIC_ID, None, [])


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        (NewTopic("no such name", 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("contract-copies", 1, 7), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("contract-none", 0), ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_invalid_topics_are_not_created(client: Client, expected: NewTopic, code: ErrorCode) -> None:
    with pytest.raises(BrokerError) as refused:
        create_topic(client, expected)
    assert refused.value.code == code


def test_existing_topic_is_not_created_again(client: Client, new_topic: Any) -> None:
    with pytest.raises(BrokerError) as refused:
        create_topic(client, NewTopic(new_topic(), 1))
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_partition_count_grows_and_never_shrinks(client: Client, name: str) -> None:
    create_partitions(client, name, 4)

    def count() -> None:
        if len(client.metadata([name]).topic(name).partitions) != 4:
            raise BrokerError("not yet", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="")

    client.retrying("four partitions", count, client.deadline())
    with pytest.raises(BrokerError) as refused:
        create_partitions(client, name, 2)
    assert refused.value.code == ErrorCode.INVALID_PARTITIONS


def test_recreated_topic_has_another_id_and_fetch_with_old_id_is_refused(client: Client, name: str) -> None:
    written(client, name, b"one")
    before, leader = client.topic(name).topic_id, client.leader(name, 0)[0]
    fetch_with_old_id = fetch_body(client, name, {0: 0})
    delete_topic(client, name)
    client.retrying("create the topic again", lambda: create_topic(client, NewTopic(name, 1)), client.deadline())
    # Brokers learn it after the controller has replied.
    wait_until(lambda: client.metadata([name]).topics[name].topic_id not in (before, bytes(16)))
    reply = client.ask(leader, FETCH, fetch_with_old_id, client.deadline())
    (row,) = reply["responses"][0]["partitions"]
    assert (row["error_code"], bytes(row["records"] or b"")) == (ErrorCode.UNKNOWN_TOPIC_ID, b"")


def test_unknown_partition_is_refused(client: Client, new_topic: Any) -> None:
    topics = [
        {"name": "not-there", "partitions": [{"partition_index": 0, "timestamp": LATEST}]},
        {"name": new_topic(), "partitions": [{"partition_index": 5, "timestamp": LATEST}]},
    ]
    reply = ask(client, LIST_OFFSETS, {"isolation_level": 0, "topics": topics})
    rows = [row for topic in reply["topics"] for row in topic["partitions"]]
    assert {(row["error_code"], row["offset"]) for row in rows} == {(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)}
