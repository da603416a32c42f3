"""Waiting for created topics, on the model of a cluster."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from protocol import Admin, Client
from protocol.admin.topics import NewTopic, create_topic
from protocol.broker_errors import ErrorCode
from protocol.cluster import unknown_topic
from protocol.config import parse_client
from protocol.errors import AdminFailed, Corrupt, DeadlineExceeded, KafkaError
from protocol.testing import FakeKafka
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from tests.protocol.fetch.consuming import client_of


def test_deleted_topic_of_the_same_name_is_not_taken_for_the_new_one() -> None:
    """A broker may lag behind the controller, which has deleted the first topic and created the second."""
    before = bytes(15) + b"\1"

    def behind(body: Any) -> Any:
        return {**body, "topics": [{**row, "topic_id": before} for row in body["topics"]]}

    with FakeKafka() as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10}
        with Client(parse_client(properties)) as client:
            kafka.edit_replies("Metadata", behind, 3)
            create_topic(client, NewTopic("orders", 1))
            assert client.topic("orders").topic_id != before
            assert len(kafka.request_bodies("Metadata")) > 3


def test_created_topic_is_awaited_for_longer_than_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that creates a thousand partitions does not know the next topic for a while."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 50)

    def unknown(body: Any) -> Any:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {**body, "topics": [{**row, "error_code": code, "partitions": []} for row in body["topics"]]}

    with (
        FakeKafka() as kafka,
        client_of(kafka.bootstrap_servers, retry_backoff_ms=20, retry_backoff_max_ms=20) as client,
    ):
        kafka.edit_replies("Metadata", unknown, 10)
        create_topic(client, NewTopic("orders", 1))
        assert len(kafka.request_bodies("Metadata")) > 10


def test_topic_refused_by_a_quota_is_requested_again_without_the_others() -> None:
    requested: list[list[str]] = []

    def handler(body: dict[str, Any], version: int) -> dict[str, Any]:
        requested.append([row["name"] for row in body["topics"]])
        throttled = ErrorCode.THROTTLING_QUOTA_EXCEEDED if len(requested) == 1 else ErrorCode.NONE
        return {"topics": [{"name": name, "error_code": throttled if name == "b" else 0} for name in requested[-1]]}

    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.handlers[CREATE_TOPICS] = handler
        created = Admin(client=client).create_topics([NewTopic(name) for name in "abc"], wait_for_leaders=False)
        assert set(created) == {"a", "b", "c"}
    assert requested == [["a", "b", "c"], ["b"]]


def test_topic_missing_in_the_reply_is_an_error_of_that_topic() -> None:
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.handlers[CREATE_TOPICS] = lambda body, version: {"topics": [{"name": "a", "error_code": 0}]}
        with pytest.raises(AdminFailed, match="leaves out b") as caught:
            Admin(client=client).create_topics([NewTopic("a"), NewTopic("b")], wait_for_leaders=False)
    assert list(caught.value.results) == ["a"]
    assert isinstance(caught.value.errors["b"], Corrupt)


def test_topic_without_leaders_does_not_hide_the_others() -> None:
    def without_leader(body: Any) -> Any:
        rows = [{**row, "partitions": []} if row["name"] == "slow" else row for row in body["topics"]]
        return {**body, "topics": rows}

    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("orders")
        kafka.edit_replies("Metadata", without_leader)
        topics = [NewTopic(name) for name in ("orders", "slow", "payments")]
        with pytest.raises(AdminFailed, match=r"slow-0.*UNKNOWN_TOPIC_OR_PARTITION") as caught:
            Admin(client=client).create_topics(topics, timeout_ms=1_000)
    assert (sorted(caught.value.errors), list(caught.value.results)) == (["orders", "slow"], ["payments"])


def test_delete_records_refused_in_a_partition_returns_the_others() -> None:
    before = {("orders", 0): 1, ("orders", 1): 9, ("orders", 2): 1}
    with FakeKafka(2) as kafka, client_of(kafka.bootstrap_servers, retry_backoff_ms=5) as client:
        kafka.create_topic("orders", 3)
        for partition in range(3):
            kafka.produce("orders", "1", "2", partition=partition)
        kafka.refuse("DeleteRecords", "NOT_LEADER_OR_FOLLOWER", partition=("orders", 2))
        with pytest.raises(AdminFailed, match=r"orders-1.*OFFSET_OUT_OF_RANGE") as caught:
            Admin(client=client).delete_records(before)
    assert caught.value.results == {("orders", 0): 1, ("orders", 2): 1}
    assert list(caught.value.errors) == [("orders", 1)]


def test_delete_records_without_a_leader_of_a_partition_returns_the_others() -> None:
    with FakeKafka(2) as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("orders", 2)
        for partition in range(2):
            kafka.produce("orders", "1", partition=partition)
        leader = kafka.leader("orders", 1)
        kafka.fence(leader)
        with pytest.raises(AdminFailed) as caught:
            Admin(client=client).delete_records({("orders", 0): 1, ("orders", 1): 1}, timeout_ms=500)
    assert caught.value.results == {("orders", 0): 1}
    assert isinstance(caught.value.errors["orders", 1], DeadlineExceeded)


def test_topic_with_denied_configs_fails_alone() -> None:
    settings = {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    with FakeKafka(settings=settings) as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("orders")
        kafka.create_topic("secret")
        kafka.deny("DescribeConfigs", "Topic", "secret")
        with pytest.raises(AdminFailed) as caught:
            Admin(client=client).describe_topics(["orders", "secret", "typo"], configs=True)
    assert (sorted(caught.value.errors), list(caught.value.results)) == (["secret", "typo"], ["orders"])


def test_description_is_requested_again_after_all_connections_broke() -> None:
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers, retry_backoff_ms=5) as client:
        kafka.create_topic("orders")
        admin = Admin(client=client)
        admin.list_topics()
        kafka.lose_requests("Metadata", 3)
        assert list(admin.describe_topics(["orders"])) == ["orders"]


def test_failed_operation_pickles_with_its_errors() -> None:
    failed = AdminFailed("x", errors={"a": KafkaError("no")}, results={"b": 1})
    copy = pickle.loads(pickle.dumps(failed))
    assert (str(copy.errors["a"]), copy.results) == ("no", {"b": 1})
