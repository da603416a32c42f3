"""Replies of brokers that lag behind the cluster, or know nothing of it yet, beside those of others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from protocol.admin.admin import Admin
from protocol.admin.topics import NewTopic
from protocol.cluster.client import PRODUCE, Client
from protocol.cluster.metadata import Metadata
from protocol.config import ClientConfig
from protocol.errors import KafkaError
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from tests.protocol.cluster.conftest import client_of

WITHOUT_BROKERS: dict[str, Any] = {"brokers": [], "cluster_id": "fake", "topics": []}


@pytest.mark.parametrize("topics", [["orders"], None], ids=["orders", "all topics"])
def test_older_leader_epoch_of_a_lagging_broker_is_not_adopted(
    fake: FakeKafka, client: Client, topics: list[str] | None
) -> None:
    fake.isolate(1)
    fake.move_leader("orders", 0, 2)
    newer = Metadata.from_reply(fake.ask(2, METADATA, {"topics": [{"name": "orders"}]}))
    client._update_metadata(newer, all_topics=False)
    fake.listeners[2].handlers[METADATA] = lambda body, version: b""  # only the lagging broker replies
    assert client.metadata(topics).topics["orders"].partitions[0].leader == 2


def test_reply_without_brokers_does_not_replace_the_known_ones(fake: FakeKafka, client: Client) -> None:
    client.metadata(["orders"])
    fake.stop(1)  # the only bootstrap server
    fake.handlers[METADATA] = lambda body, version: WITHOUT_BROKERS
    with pytest.raises(KafkaError):
        client.metadata(["orders"], client.deadline(500))
    del fake.handlers[METADATA]
    assert client.metadata(["orders"], client.deadline(5_000)).brokers.keys() == {2}


def test_broker_that_has_just_started_is_not_asked_for_all_topics(fake: FakeKafka) -> None:
    """Otherwise a pattern would match no topic."""
    fake.listeners[1].handlers[METADATA] = lambda body, version: WITHOUT_BROKERS
    for _ in range(8):  # the order of bootstrap servers is random
        with Client(ClientConfig(tuple(fake.addresses.values()))) as client:
            assert "orders" in client.metadata(None, client.deadline(5_000)).topics


@pytest.mark.parametrize(
    ("brokers", "silent", "is_certain"), [(1, 0, True), (2, 1, False), (3, 1, True), (3, 2, False)]
)
def test_ids_count_only_if_more_than_half_of_the_brokers_answer(brokers: int, silent: int, is_certain: bool) -> None:
    """The others may be the ones that have heard of a recreated topic."""
    with FakeKafka(brokers) as fake, client_of(fake) as client:
        fake.create_topic("orders", 1)
        client.metadata(["orders"])
        for broker in range(1, silent + 1):
            fake.silence(broker)
        ids = client.ids_at_brokers(["orders"], client.deadline())
        assert ids == {"orders": {fake.controller.topic("orders").topic_id} if is_certain else set()}


def test_broker_that_does_not_know_a_topic_contradicts_one_that_does(fake: FakeKafka, client: Client) -> None:
    """The one that knows it may lag behind: the topic was deleted."""
    topic_id = fake.controller.topic("orders").topic_id
    fake.isolate(2)
    fake.delete_topic("orders")
    assert client.ids_at_brokers(["orders"], client.deadline()) == {"orders": {topic_id, NO_TOPIC_ID}}
    fake.isolate(2, False)
    assert client.ids_at_brokers(["orders"], client.deadline()) == {"orders": {NO_TOPIC_ID}}


def test_short_question_about_topics_leaves_a_slow_request_alone(fake: FakeKafka, client: Client) -> None:
    is_created, is_asked = threading.Event(), threading.Event()
    for listener in fake.listeners.values():

        def answer(api: Any, *arguments: Any, original: Any = listener.answer) -> Any:
            reply = original(api, *arguments)
            if api is CREATE_TOPICS:
                is_created.set()
                assert is_asked.wait(20)
            return reply

        listener.answer = answer  # type: ignore[method-assign]
    client.metadata(["orders"])
    raised: list[KafkaError] = []

    def create() -> None:
        try:
            Admin(client).create_topics([NewTopic("new", 1, 1)])
        except KafkaError as error:
            raised.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    assert is_created.wait(20)
    client.ids_at_brokers(["orders"], client.deadline())
    is_asked.set()
    thread.join()
    assert raised == []
    assert len(fake.request_bodies(CREATE_TOPICS)) == 1


def test_refused_commit_leaves_connections_of_producers_open(fake: FakeKafka, client: Client) -> None:
    """Otherwise batches in flight are sent again, by a producer without idempotence twice."""
    client.metadata(["orders"])
    brokers, purpose = client.brokers().values(), f"{PRODUCE}-1"
    connections = [client.connection(broker, purpose, client.deadline()) for broker in brokers]
    fake.refuse("OffsetCommit", "NOT_COORDINATOR")
    commit_offsets(client, "etl", {("orders", 0): CommittedOffset(0)}, client.deadline())
    assert not any(connection.closed for connection in connections)
