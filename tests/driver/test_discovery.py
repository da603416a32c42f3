"""Detection of deleted topics, with a manual clock and brokers that stop answering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from protocol.base.clock import Deadline
from protocol.base.once import deferred_warnings
from protocol.broker_errors import ErrorCode
from protocol.cluster import unknown_topic
from protocol.errors import BrokerError, ConfigurationError, DeadlineExceeded, TopicUnknown
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.position import Position
from protocol.testing import FakeKafka, ManualClock
from spark_kafka_source.driver.discovery import (
    partitions_of_new_query,
    partitions_of_running_query,
    require_dead_letter_topic,
)
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.backlog import LogSnapshot
from spark_kafka_source.process_state import PROCESS
from tests.driver.changing_logs import Cluster, next_end, read_to
from tests.protocol.fetch.consuming import TOPIC_ID
from tests.protocol.fetch.test_unknown_topic import KNOWN, NO_LEADER, UNKNOWN, Broker, client_on
from tests.support.offsets import batch_end

EXISTING = {("orders", 0): TOPIC_ID}
READ = {("orders", 0): Position(0, topic_id=TOPIC_ID)}


def options_on(kafka: FakeKafka, streaming: bool = True, **subscription: str) -> SourceOptions:
    chosen = subscription or {"subscribe": "orders"}
    return parse_source_options({"kafka.bootstrap.servers": kafka.bootstrap_servers, **chosen}, streaming=streaming)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def look(clock: ManualClock, *says: str | float, timeout_ms: int = 240_000) -> dict[tuple[str, int], bytes]:
    """Return the partitions that a trigger finds for a query that has read orders-0."""
    with Broker(clock, *says) as broker, client_on(broker, clock) as client:
        return dict(partitions_of_running_query(client, options_on(broker), READ, Deadline.after_ms(timeout_ms, clock)))


@pytest.mark.parametrize("timeout_ms", [5_000, 240_000])
def test_topic_unknown_for_ten_seconds_counts_as_deleted(clock: ManualClock, timeout_ms: int) -> None:
    assert look(clock, UNKNOWN, timeout_ms=timeout_ms) == {}
    assert 10 < clock.at_s < 13


@pytest.mark.parametrize("topic_id", [TOPIC_ID, NO_TOPIC_ID], ids=["with an id", "without"])
def test_partition_that_replies_lack_is_deleted_only_if_its_topic_has_no_id(
    clock: ManualClock, topic_id: bytes
) -> None:
    """Kafka deletes no single partition. Without an id, the topic may have been created again with fewer."""
    lacking = ("orders", 7)
    read = batch_end({**dict.fromkeys(EXISTING, 5), lacking: 5})
    with Broker(clock, KNOWN, *[KNOWN] * 50) as broker, client_on(broker, clock) as client:

        def existing() -> dict[TopicPartition, bytes]:
            positions = {**READ, lacking: Position(0, topic_id=topic_id)}
            return partitions_of_running_query(client, options_on(broker), positions, client.deadline())

        if topic_id == NO_TOPIC_ID:
            assert LogSnapshot(read, QueryAssignment(existing()), {}).deleted() == [lacking]
        else:
            with pytest.raises(TopicUnknown):
                existing()
    assert 10 < clock.at_s < 13


UNKNOWN_FOR_6_S = [UNKNOWN] * 10
"""About 6 s, including retry back-off."""


@pytest.mark.parametrize(
    "says",
    [
        [UNKNOWN, 30.0, UNKNOWN, KNOWN],
        [UNKNOWN, 12.0, UNKNOWN, 12.0, UNKNOWN, KNOWN],
        [*UNKNOWN_FOR_6_S, 30.0, UNKNOWN, UNKNOWN, KNOWN],
        [*UNKNOWN_FOR_6_S, KNOWN],
    ],
    ids=["two answers", "a cluster that comes and goes", "one that was away", "at last"],
)
def test_topic_that_reappears_does_not_count_as_deleted(clock: ManualClock, says: list[str | float]) -> None:
    assert look(clock, *says) == EXISTING


def test_replies_of_rarely_answering_brokers_prove_no_deletion(clock: ManualClock) -> None:
    with pytest.raises(DeadlineExceeded, match="topic orders"):
        look(clock, *[20.5, UNKNOWN] * 11, UNKNOWN)  # the deadline passes while no reply is pending
    assert clock.at_s < 300


def test_new_query_fails_on_unknown_topic(clock: ManualClock) -> None:
    unknown = pytest.raises(ConfigurationError, match=r"unknown topic\(s\) orders")
    with Broker(clock, UNKNOWN) as broker, client_on(broker, clock) as client, unknown:
        partitions_of_new_query(client, options_on(broker), client.deadline())
    assert 10 < clock.at_s < 13


def test_partition_without_leader_counts_as_existing(clock: ManualClock) -> None:
    assert look(clock, NO_LEADER) == EXISTING
    assert clock.at_s == 0


# -- a pattern ------------------------------------------------------------------------------------


def hide(cluster: Cluster, topic: str) -> None:
    """Answer like a broker to a user without Describe on the topic: the list of all topics omits it."""

    def edit(reply: dict[str, Any]) -> dict[str, Any]:
        lists_all = cluster.request_bodies("Metadata")[-1]["topics"] is None
        refused = {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic_id": bytes(16), "partitions": []}
        rows = [{**row, **refused} if row["name"] == topic else row for row in reply["topics"]]
        return {**reply, "topics": [row for row in rows if row["name"] != topic or not lists_all]}

    cluster.edit_replies("Metadata", edit)


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_topic_of_pattern_without_describe_acl_fails_query(cluster: Cluster, fail_on_data_loss: str) -> None:
    """If the checkpoint dropped the topic, all its rows would be read again once the ACL is back."""
    reader = cluster.reader(subscribe=None, subscribePattern="a", failOnDataLoss=fail_on_data_loss)
    hide(cluster, "a")
    with pytest.raises(BrokerError, match="Describe on Topic a") as raised:
        next_end(reader, read_to(20))
    assert "if it was deleted together with its ACL" in str(raised.value)
    assert "failOnDataLoss" not in str(raised.value)


# -- a KRaft cluster ------------------------------------------------------------------------------


@pytest.fixture
def kraft() -> Iterator[FakeKafka]:
    with FakeKafka(3, settings={"process.roles": "broker"}) as kafka:
        for topic in ("orders-1", "orders-2"):
            kafka.create_topic(topic)
        yield kafka


def assigned(kafka: FakeKafka, clock: ManualClock) -> list[str]:
    """Return the topics that a trigger assigns to a query that has read both."""
    options = options_on(kafka, subscribePattern="orders-.*")
    read = dict.fromkeys([("orders-1", 0), ("orders-2", 0)], Position(0))
    with client_on(kafka, clock) as client:
        return [topic for topic, _ in partitions_of_running_query(client, options, read, client.deadline())]


def test_deleted_topic_in_kraft_cluster_delays_trigger_less_than_two_seconds(
    kraft: FakeKafka, clock: ManualClock
) -> None:
    kraft.delete_topic("orders-2")
    assert assigned(kraft, clock) == ["orders-1"]
    assert 0.5 <= clock.at_s < 2


def test_topic_known_to_one_kraft_broker_does_not_count_as_deleted(kraft: FakeKafka, clock: ManualClock) -> None:
    """The other brokers have not received the topic's creation yet."""
    kraft.isolate(1)
    kraft.isolate(2)
    kraft.create_topic("orders-3")
    with client_on(kraft, clock) as client:
        client.metadata([])
        assert client.unknown_to_brokers({"orders-3", "never-there"}) == {"never-there"}


def test_missing_reply_of_one_kraft_broker_proves_no_deletion(kraft: FakeKafka, clock: ManualClock) -> None:
    with client_on(kraft, clock) as client:
        client.metadata([])
        assert client.unknown_to_brokers({"never-there"}) == {"never-there"}
        kraft.lose_requests("Metadata", broker=2)
        assert client.unknown_to_brokers({"never-there"}) == set()


def test_replies_of_possible_zookeeper_cluster_prove_no_deletion(clock: ManualClock) -> None:
    with FakeKafka(3) as kafka, client_on(kafka, clock) as client:
        client.metadata([])
        assert client.unknown_to_brokers({"never-there"}) == set()


# -- assign ---------------------------------------------------------------------------------------


@pytest.mark.timeout(30)
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("numbers", ["0, 7", "7"])
def test_assigned_partition_that_does_not_exist_is_refused_by_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, numbers: str, streaming: bool
) -> None:
    """Spark's connector skips it: a misspelled number would read nothing."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 60_000)
    options = options_on(cluster, streaming, assign=f'{{"a": [{numbers}]}}')
    client = PROCESS.client(options.client)
    with pytest.raises(ConfigurationError) as raised:
        partitions_of_new_query(client, options, client.deadline())
    assert str(raised.value) == (
        "assign: the partition(s) a-7 do not exist; a has 2, counted from 0. Correct the option assign"
    )


@pytest.mark.parametrize("streaming", [True, False])
def test_pattern_without_a_topic_is_a_warning(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, streaming: bool
) -> None:
    options = options_on(cluster, streaming, subscribePattern="paid.*")
    client = PROCESS.client(options.client)
    assert partitions_of_new_query(client, options, client.deadline()) == {}
    (line,) = caplog.messages
    assert line.startswith("subscribePattern=paid.* matches no topic of the cluster at 127.0.0.1:")


AVRO = {"valueFormat": "confluent-avro", "schema.registry.url": "http://127.0.0.1:1"}
TYPES = {"valueTypes": "shop.Order,shop.Refund"}
LETTERS, TYPE_LETTERS = {"onDecodeError": "dead-letter"}, {"onUnknownType": "dead-letter"}


@pytest.mark.parametrize("creates", ["false", "true"])
@pytest.mark.parametrize(
    "decoding",
    [
        {},
        LETTERS,
        TYPE_LETTERS,
        {**AVRO, **TYPE_LETTERS},
        {**AVRO, **LETTERS, "columns": "offset"},
        {**AVRO, **TYPES, **TYPE_LETTERS, "columns": "offset"},
    ],
)
def test_dead_letter_topic_without_effect_is_neither_required_nor_created(
    decoding: dict[str, str], creates: str
) -> None:
    with FakeKafka(settings={"auto.create.topics.enable": creates}) as kafka, deferred_warnings():
        options = options_on(kafka, subscribe="orders", deadLetterTopic="dead", **decoding)
        client = PROCESS.client(options.client)
        require_dead_letter_topic(client, options, client.deadline(500))
        assert not kafka.controller.image.topics


class CountedTopics(tuple[str, ...]):
    """Topics of `subscribe` that count how often they are read as a whole."""

    times_read = 0

    def __iter__(self) -> Iterator[str]:
        CountedTopics.times_read += 1
        return super().__iter__()


def test_time_of_a_trigger_does_not_grow_with_the_square_of_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The set of topics was made for each partition: 3 s for 5,000 topics."""
    monkeypatch.setattr(CountedTopics, "times_read", 0)
    with FakeKafka() as kafka:
        names = [f"t{number}" for number in range(50)]
        for name in names:
            kafka.create_topic(name, 1)
        options = replace(options_on(kafka), subscribe=CountedTopics(names))
        client = PROCESS.client(options.client)
        existing = partitions_of_running_query(
            client, options, {(name, 0): Position(0) for name in names}, client.deadline()
        )
    assert len(existing) == 50
    assert CountedTopics.times_read < 10
