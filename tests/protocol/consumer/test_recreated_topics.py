"""Topics that are deleted and created again while consumers read them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.consumer.consumer_group import ConsumerGroup
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, TopicRecreated
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.tables import read
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages import m28_txn_offset_commit
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.schema import Api
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.conftest import NewConsumer
from tests.protocol.fetch.consuming import client_of, produce, records
from tests.support.internals import partitions_of
from tests.support.older_brokers import limit_version
from tests.support.soak import variants
from tests.support.topic_changes import recreate
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

RECREATED = "deleted and created again"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, client: Client) -> Counter[str]:
    """Return the numbers of the client's requests, by API."""
    counts: Counter[str] = Counter()
    send = client.send

    def count(broker: Broker, api: Api, *arguments: Any, **named: Any) -> Any:
        counts[api.name] += 1
        return send(broker, api, *arguments, **named)

    monkeypatch.setattr(client, "send", count)
    return counts


class Reader:
    """Polls, and notes the values."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self.values: list[bytes] = []

    def until_read(self, count: int) -> None:
        wait_until(lambda: self.poll() or len(self.values) >= count, lambda: f"{self.values}")
        assert len(self.values) == count

    def poll(self) -> None:
        for batches in self._consumer.poll(50).values():
            self.values += (value for batch in batches for value in batch["value"].to_pylist())


def read_recreated(consumer: KafkaConsumer, kafka1: LocalKafka, topic: str, requests: Counter[str], count: int) -> None:
    """Recreate the topic, of which five records were read, and read the new records for two more seconds."""
    reader = Reader(consumer)
    produce(kafka1, topic, range(5))
    reader.until_read(5)
    requests.clear()
    recreate(kafka1, topic)
    produce(kafka1, topic, range(100, 100 + count))
    reader.until_read(5 + count)
    end_s = time.monotonic() + 2
    while time.monotonic() < end_s:
        reader.poll()
    assert [int(value[:9]) for value in reader.values] == [*range(5), *range(100, 100 + count)]
    assert requests["Metadata"] < 60
    assert requests["ListOffsets"] < 10


# Fewer records than before, the same number, and more. Without a group, all are tried each time.
@variants("count", [3, 5, 8], 5)
def test_recreated_topic_is_read_from_its_beginning_by_a_member(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    new_consumer: NewConsumer,
    protocol: dict[str, object],
    requests: Counter[str],
    count: int,
) -> None:
    name = topic1()
    consumer = new_consumer(**{**protocol, "enable.auto.commit": True})
    consumer.subscribe([name])
    read_recreated(consumer, kafka1, name, requests, count)


@pytest.mark.parametrize("count", [3, 5, 8])
def test_recreated_topic_is_read_from_its_beginning_after_assign_with_one_warning(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    new_consumer: NewConsumer,
    requests: Counter[str],
    caplog: pytest.LogCaptureFixture,
    count: int,
) -> None:
    name = topic1()
    consumer = new_consumer()
    consumer.assign([(name, 0)])
    with caplog.at_level(logging.WARNING):
        read_recreated(consumer, kafka1, name, requests, count)
    assert [RECREATED in text for text in caplog.messages if f"{name}-0" in text] == [True]


def test_marks_of_old_records_do_not_hide_marks_of_new_ones() -> None:
    """Offsets of the old topic are higher: committed, they would skip new records after a restart."""
    processed: list[int] = []

    class Handler:
        def setup(self, session: ConsumerGroupSession) -> None:
            pass

        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            for message in claim.messages():
                if len(processed) < 8:
                    processed.append(message.offset)
                    session.mark_message(message)

        def cleanup(self, session: ConsumerGroupSession) -> None:
            pass

    with FakeKafka() as fake:
        fake.create_topic("healthy", 1)
        fake.write("healthy", 0, records(0, 5))
        with client_of(fake.bootstrap_servers, retry_backoff_ms=10, retry_backoff_max_ms=20) as client:

            def committed() -> int | None:
                offset = fetch_offsets(client, "etl", [("healthy", 0)], client.deadline()).get(("healthy", 0))
                return None if offset is None else offset.offset

            properties = {"group.id": "etl", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 50}
            group = ConsumerGroup(client, parse_group_consumer(properties))
            thread = threading.Thread(target=group.consume, args=(["healthy"], Handler()))
            thread.start()
            try:
                wait_until(lambda: committed() == 5)
                with fake.changed:
                    fake.delete_topic("healthy")
                    fake.create_topic("healthy", 1)
                    fake.write("healthy", 0, records(0, 10))
                wait_until(lambda: len(processed) == 8)
                wait_until(lambda: committed() == 3, lambda: str(committed()))
            finally:
                group.close()
                thread.join()
            assert processed == [0, 1, 2, 3, 4, 0, 1, 2]
            assert committed() == 3


@pytest.mark.parametrize("is_sync", [True, False])
def test_commit_of_old_offsets_in_a_recreated_topic_is_refused(is_sync: bool) -> None:
    """The request names the topic: the offsets would be of the new one."""
    old, errors = {("orders", 0): CommittedOffset(5)}, list[CommitFailed | None]()
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.create_topic("other")
        fake.write("orders", 0, records(0, 5))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        with KafkaConsumer({**properties, "enable.auto.commit": False, "retry.backoff.ms": 10}) as consumer:
            consumer.assign([("orders", 0)])
            reader = Reader(consumer)
            reader.until_read(5)
            held = consumer.positions()
            assert held == {("orders", 0): CommittedOffset(5, 0)}
            recreate_in_fake(fake)
            buffer = partitions_of(consumer)[("orders", 0)].buffer
            wait_until(lambda: isinstance(buffer.error, TopicRecreated))
            assert (consumer.positions(), consumer.recreations) == ({}, {})
            both = {**old, ("other", 0): CommittedOffset(1)}
            if is_sync:
                with pytest.raises(CommitFailed, match="orders-0 was deleted and created again"):
                    consumer.commit_sync(both)
            else:
                consumer.commit_async(both, lambda _, error: errors.append(error))
                consumer.commit_sync({})
                wait_until(lambda: consumer.poll(10) or errors)
                assert [RECREATED in str(error) for error in errors] == [True]
            wait_until(lambda: consumer.committed(both) == {**dict.fromkeys(old), ("other", 0): CommittedOffset(1)})
            wait_until(lambda: consumer.poll(10) or consumer.recreations == {("orders", 0): 1})
            assert consumer.positions() == {("orders", 0): CommittedOffset(0)}
            with pytest.raises(CommitFailed, match="UNKNOWN_TOPIC_ID"):  # a position has the id of its topic
                consumer.commit_sync(held)
            consumer.assign([])
            assert consumer.recreations == {}


@pytest.mark.parametrize("how", ["assign", "subscribe"])
def test_committed_offset_is_not_used_in_a_topic_recreated_before_its_partition_has_a_leader(how: str) -> None:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 30))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        properties |= {"enable.auto.commit": False, "retry.backoff.ms": 10}

        def begin(consumer: KafkaConsumer) -> None:
            consumer.subscribe(["orders"]) if how == "subscribe" else consumer.assign([("orders", 0)])

        with KafkaConsumer(properties) as consumer:
            begin(consumer)
            Reader(consumer).until_read(30)
            consumer.commit_sync({("orders", 0): CommittedOffset(20)})
        fake.move_leader("orders", 0, -1)
        with KafkaConsumer(properties) as consumer:
            begin(consumer)
            fetched = len(fake.request_bodies(OFFSET_FETCH))
            wait_until(lambda: consumer.poll(20) or len(fake.request_bodies(OFFSET_FETCH)) > fetched)
            consumer.poll(100)
            recreate_in_fake(fake)
            fake.write("orders", 0, records(0, 50))
            Reader(consumer).until_read(50)


def test_offset_of_a_topic_that_the_coordinator_no_longer_knows_is_not_used() -> None:
    """A coordinator returns offsets of a deleted topic until it has deleted them."""
    with FakeKafka() as fake:
        fake.create_topic("orders")
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}

        def still_known(body: dict[str, Any]) -> dict[str, Any]:
            body["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] = 20
            return body

        fake.delete_topic("orders")
        fake.edit_replies(OFFSET_FETCH, still_known, 1)
        with KafkaConsumer({**properties, "enable.auto.commit": False, "retry.backoff.ms": 10}) as consumer:
            consumer.assign([("orders", 0)])
            wait_until(lambda: consumer.poll(20) or len(fake.request_bodies(OFFSET_FETCH)) > 1)
            fake.create_topic("orders")
            fake.write("orders", 0, records(0, 50))
            Reader(consumer).until_read(50)


@pytest.mark.parametrize("in_transaction", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("how", ["assign", "subscribe", "read"])
def test_offset_of_a_deleted_topic_that_a_new_coordinator_has_is_not_used(how: str, in_transaction: bool) -> None:
    """Kafka deletes a topic's offsets at the coordinator of that moment; the next one may load them from the log."""
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 30))
        cluster = {"bootstrap.servers": fake.bootstrap_servers}
        properties = {**cluster, "group.id": "etl", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        with KafkaConsumer(properties) as consumer:
            consumer.assign([("orders", 0)])
            Reader(consumer).until_read(30)
            if in_transaction:
                with TransactionalProducer({**cluster, "transactional.id": "copy"}) as producer:
                    producer.init_transactions()
                    producer.begin_transaction()
                    producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
                    producer.commit_transaction()
            else:
                consumer.commit_sync()
        old_offsets = dict(fake.offsets.committed["etl"])
        recreate_in_fake(fake)
        fake.offsets.committed["etl"] |= old_offsets
        fake.write("orders", 0, records(0, 50))
        if how == "read":
            assert read(properties, "orders", start="committed").read_all().num_rows == 50
            return
        with KafkaConsumer(properties) as consumer:
            consumer.subscribe(["orders"]) if how == "subscribe" else consumer.assign([("orders", 0)])
            Reader(consumer).until_read(50)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_offset_committed_in_a_new_topic_while_the_consumer_starts_is_used(reset: str) -> None:
    """The coordinator learns of the new topic between its replies to Metadata and OffsetFetch."""
    with FakeKafka() as fake, Client({"bootstrap.servers": fake.bootstrap_servers}) as client:
        fake.create_topic("orders")
        commit_offsets(client, "etl", {("orders", 0): CommittedOffset(20)}, client.deadline())

        def recreate_and_commit(body: dict[str, Any]) -> None:
            fake.before.pop(OFFSET_FETCH)
            recreate_in_fake(fake)
            fake.write("orders", 0, records(0, 100))
            fake.offsets.committed.setdefault("etl", {})[("orders", 0)] = Committed(60, -1, "")

        fake.before[OFFSET_FETCH] = recreate_and_commit
        properties = {"group.id": "etl", "auto.offset.reset": reset, "enable.auto.commit": False}
        with KafkaConsumer(client, properties) as consumer:
            consumer.assign([("orders", 0)])
            Reader(consumer).until_read(40)
            assert consumer.recreations == {}


def test_committed_returns_no_offset_of_a_deleted_topic() -> None:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 5))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        with KafkaConsumer({**properties, "enable.auto.commit": False}) as consumer:
            consumer.assign([("orders", 0)])
            Reader(consumer).until_read(5)
            consumer.commit_sync()
            old_offsets = dict(fake.offsets.committed["etl"])
            assert consumer.committed([("orders", 0)]) == {("orders", 0): CommittedOffset(5, 0)}
            recreate_in_fake(fake)
            fake.offsets.committed["etl"] |= old_offsets
            assert consumer.committed([("orders", 0)]) == {("orders", 0): None}


def test_stale_metadata_of_the_deleted_topic_do_not_prevent_commits_of_the_new_one() -> None:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 5))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        with Client({"bootstrap.servers": fake.bootstrap_servers}) as client:
            properties.pop("bootstrap.servers")
            with KafkaConsumer(client, {**properties, "enable.auto.commit": False}) as consumer:
                old_id = client.metadata(["orders"]).topics["orders"].topic_id
                consumer.subscribe(["orders"])
                reader = Reader(consumer)
                reader.until_read(5)
                recreate_in_fake(fake)
                fake.write("orders", 0, records(0, 9))
                reader.until_read(14)

                def lag(body: dict[str, Any]) -> dict[str, Any]:
                    body["topics"][0]["topic_id"] = old_id
                    return body

                fake.edit_replies(METADATA, lag, 1)
                assert client.metadata(["orders"]).topics["orders"].topic_id == old_id
                consumer.commit_sync()
                assert fake.committed_offsets("etl") == {("orders", 0): 9}


def test_refused_auto_commit_is_repeated_when_the_consumer_closes() -> None:
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 5))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        with KafkaConsumer({**properties, "auto.commit.interval.ms": 50}) as consumer:
            consumer.subscribe(["orders"])
            reader = Reader(consumer)
            fake.refuse(OFFSET_COMMIT, ErrorCode.OFFSET_METADATA_TOO_LARGE, 2)
            reader.until_read(5)
            wait_until(lambda: reader.poll() or len(fake.request_bodies(OFFSET_COMMIT)) >= 3)
        assert fake.committed_offsets("etl") == {("orders", 0): 5}


@pytest.mark.parametrize(
    "last", [m28_txn_offset_commit.LAST_WITH_TOPIC_NAMES, TXN_OFFSET_COMMIT.last], ids=["by name", "by id"]
)
def test_transaction_refuses_offsets_of_a_deleted_topic_before_the_consumer_knows_of_the_new_one(last: int) -> None:
    with FakeKafka() as fake:
        limit_version(fake, TXN_OFFSET_COMMIT, last)
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 5))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        producer = TransactionalProducer({"bootstrap.servers": fake.bootstrap_servers, "transactional.id": "copy"})
        with producer, KafkaConsumer({**properties, "enable.auto.commit": False}) as consumer:
            producer.init_transactions()
            consumer.subscribe(["orders"])
            Reader(consumer).until_read(5)
            consumer.pause(consumer.assignment)
            recreate_in_fake(fake)
            producer.begin_transaction()
            with pytest.raises(TopicRecreated, match="orders-0: the offset belongs to a deleted topic"):
                producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(5)}, consumer.group_metadata())
            producer.abort_transaction()
        assert fake.committed_offsets("etl") == {}


def test_member_stays_and_closes_while_a_claim_waits_for_the_leader_of_a_recreated_topic() -> None:
    with FakeKafka(2) as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 5))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        group, handler = (
            ConsumerGroup(
                {**properties, "max.poll.interval.ms": 3_000, "retry.backoff.max.ms": 200, "heartbeat.interval.ms": 200}
            ),
            ReadAll(),
        )
        running = threading.Thread(target=group.consume, args=(["orders"], handler))
        running.start()
        wait_until(lambda: handler.count == 5)
        with fake.changed:
            recreate_in_fake(fake)
            leader = fake.leader("orders", 0)
            fake.move_coordinator("etl", 3 - leader)
            fake.stop(leader)
        requested: list[object] = []
        fake.before[METADATA] = requested.append
        wait_until(lambda: len(requested) > 3)
        assert not fake.request_bodies(LEAVE_GROUP)
        begin_s = time.monotonic()
        group.close()
        running.join()
        assert time.monotonic() - begin_s < 10


class ReadAll:
    """Reads all records, and counts them."""

    count = 0

    def setup(self, session: ConsumerGroupSession) -> None: ...

    def cleanup(self, session: ConsumerGroupSession) -> None: ...

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        for batch in claim:
            self.count += batch.num_rows


def recreate_in_fake(fake: FakeKafka) -> None:
    with fake.changed:
        fake.delete_topic("orders")
        fake.create_topic("orders")


@pytest.mark.parametrize("remembered", ["to the consumer", "and moved to"])
@pytest.mark.parametrize("to", ["old offset", "beginning"])
def test_seek_before_records_of_a_new_topic_skips_none_of_them(
    remembered: str, to: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The user seeks back, as after a failed handler, and does not know that the topic is another one."""
    key, second = ("orders", 0), ("other", 0)
    values = [f"new {number}".encode() for number in range(9)]
    with FakeKafka() as fake:
        for topic, partition in (key, second):
            fake.create_topic(topic)
            fake.produce(topic, *(f"old {number}" for number in range(5)), partition=partition)
        properties = {
            "bootstrap.servers": fake.bootstrap_servers,
            "retry.backoff.ms": 10,
            "auto.offset.reset": "earliest",
        }
        with KafkaConsumer(properties) as consumer:
            consumer.assign([key, second])
            reader = Reader(consumer)
            reader.until_read(10)
            recreate_in_fake(fake)
            if remembered == "to the consumer":
                fake.refuse(LIST_OFFSETS, ErrorCode.LEADER_NOT_AVAILABLE, ALWAYS, partition=key)
                wait_until(lambda: consumer.poll(20) or key in partitions_of(consumer).recreated)
            else:
                wait_until(lambda: consumer.poll(20) or consumer.recreations)
            fake.faults.clear()
            fake.produce("orders", *values)
            if to == "beginning":
                consumer.seek_to_beginning([key])
            else:
                consumer.seek(key, 3)
            reader.until_read(19)
            assert reader.values[10:] == values
            assert [f"seek of orders-0 to offset 3 is ignored: the topic was {RECREATED}"] * (to == "old offset") == [
                record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()
            ]
            consumer.seek(key, 7)
            reader.until_read(21)
            assert reader.values[19:] == values[7:]


@pytest.mark.parametrize("started", [False, True])
def test_seek_to_a_position_in_a_deleted_topic_does_not_skip_records_of_the_new_one(started: bool) -> None:
    key = ("orders", 0)
    with FakeKafka() as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 5))
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        with KafkaConsumer({**properties, "enable.auto.commit": False}) as consumer:
            consumer.assign([key])
            Reader(consumer).until_read(5)
            old_position = consumer.positions()[key]
        recreate_in_fake(fake)
        fake.write("orders", 0, records(0, 9))
        with KafkaConsumer({**properties, "enable.auto.commit": False, "retry.backoff.ms": 10}) as consumer:
            consumer.assign([key])
            if started:
                Reader(consumer).until_read(9)
            consumer.seek(key, old_position)
            Reader(consumer).until_read(9)
            assert consumer.recreations == {key: 1}
