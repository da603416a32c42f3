"""Topics that are deleted and created again while consumers read them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import protocol
from protocol import Client, KafkaConsumer
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, TopicRecreated
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.offsets import Committed
from protocol.wire.messages import m28_txn_offset_commit
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848, NewConsumer
from tests.protocol.consumer.members import IdleHandler, ReadingHandler, consumer_of, group_of, read
from tests.protocol.fetch.consuming import client_of, produce, records
from tests.protocol.transaction.producing import started
from tests.support.background import background
from tests.support.internals import partitions_of
from tests.support.older_brokers import limit_version
from tests.support.small_cluster import recreate_topic
from tests.support.soak import SOAK
from tests.support.topic_changes import recreate
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

KEY, RECREATED = ("orders", 0), "deleted and created again"


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Yield a cluster with offsets 0 to 4 of orders-0."""
    with FakeKafka(2) as fake:
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 5))
        yield fake


def consumer_at(fake: FakeKafka, **properties: object) -> KafkaConsumer:
    return consumer_of({"bootstrap.servers": fake.bootstrap_servers, "retry.backoff.ms": 10}, **properties)


def begin(consumer: KafkaConsumer, how: str) -> None:
    consumer.subscribe(["orders"]) if how == "subscribe" else consumer.assign([KEY])


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, client: Client) -> Counter[str]:
    """Return the numbers of the client's requests, by API."""
    counts, send = Counter[str](), client.send

    def count(broker: Any, api: Any, *arguments: Any, **options: Any) -> Any:
        counts[api.name] += 1
        return send(broker, api, *arguments, **options)

    monkeypatch.setattr(client, "send", count)
    return counts


def read_exactly(consumer: KafkaConsumer, count: int) -> list[int]:
    """Return the offsets of the next records, which must be this number."""
    offsets = [offset for _, offset in read(consumer, count)]
    assert len(offsets) == count
    return offsets


# Fewer records than before, the same number, and more.
COUNTS = (3, 5, 8)
KINDS = {"assigned": None, "eager": EAGER, "cooperative": COOPERATIVE, "kip848": KIP_848}


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param(kind, count, marks=NEEDS_KIP_848 if kind == "kip848" else ())
        for kind in KINDS
        for count in (COUNTS if SOAK or kind == "assigned" else COUNTS[1:2])
    ],
)
def test_recreated_topic_is_read_from_its_beginning_with_few_requests_and_one_warning(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    new_consumer: NewConsumer,
    requests: Counter[str],
    caplog: pytest.LogCaptureFixture,
    kind: str,
    count: int,
) -> None:
    topic, properties = topic1(), KINDS[kind]
    consumer = new_consumer(**(properties or {}), **{"enable.auto.commit": bool(properties)})
    consumer.subscribe([topic]) if properties else consumer.assign([(topic, 0)])
    produce(kafka1, topic, range(5))
    read_exactly(consumer, 5)
    requests.clear()
    recreate(kafka1, topic)
    produce(kafka1, topic, range(100, 100 + count))
    messages: list[ConsumerMessage] = []
    wait_until(lambda: messages.extend(consumer.poll(50).messages()) or len(messages) >= count)
    end_s = time.monotonic() + 2
    while time.monotonic() < end_s:
        assert not consumer.poll(50)
    assert [int((message.value or b"")[:9]) for message in messages] == list(range(100, 100 + count))
    assert requests["Metadata"] < 60
    assert requests["ListOffsets"] < 10
    if not properties:
        assert [RECREATED in text for text in caplog.messages if f"{topic}-0" in text] == [True]


def test_marks_of_old_records_do_not_hide_marks_of_new_ones(fake: FakeKafka, fake_client: Client) -> None:
    """Offsets of the old topic are higher: committed, they would skip new records after a restart."""
    processed: list[int] = []

    class Handler(IdleHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            for message in claim.messages():
                if len(processed) < 8:
                    processed.append(message.offset)
                    session.mark_message(message)

    group = group_of(fake_client, **{"auto.commit.interval.ms": 50})
    with background(lambda: group.consume(["orders"], Handler())), group:
        wait_until(lambda: fake.committed_offsets("etl") == {KEY: 5})
        recreate_topic(fake, "orders", count=10)
        wait_until(lambda: fake.committed_offsets("etl") == {KEY: 3}, lambda: fake.committed_offsets("etl"))
    assert processed == [0, 1, 2, 3, 4, 0, 1, 2]


@pytest.mark.parametrize("is_sync", [True, False])
def test_commit_of_old_offsets_in_a_recreated_topic_is_refused(fake: FakeKafka, is_sync: bool) -> None:
    """The request names the topic: the offsets would be of the new one."""
    errors: list[CommitFailed | None] = []
    both = {KEY: CommittedOffset(5), ("other", 0): CommittedOffset(1)}
    fake.create_topic("other")
    with consumer_at(fake) as consumer:
        consumer.assign([KEY])
        read_exactly(consumer, 5)
        old_positions = consumer.positions()
        assert old_positions == {KEY: CommittedOffset(5, 0)}
        recreate_topic(fake, "orders")
        buffer = partitions_of(consumer)[KEY].buffer
        wait_until(lambda: isinstance(buffer.error, TopicRecreated))
        assert (consumer.positions(), consumer.recreations) == ({}, {})
        if is_sync:
            with pytest.raises(CommitFailed, match="orders-0 was deleted and created again"):
                consumer.commit_sync(both)
        else:
            consumer.commit_async(both, lambda _, error: errors.append(error))
            consumer.commit_sync({})
            wait_until(lambda: consumer.poll(10) or errors)
            assert [RECREATED in str(error) for error in errors] == [True]
        wait_until(lambda: consumer.committed(both) == {**both, KEY: None})
        wait_until(lambda: consumer.poll(10) or consumer.recreations == {KEY: 1})
        assert consumer.positions() == {KEY: CommittedOffset(0)}
        with pytest.raises(CommitFailed, match="UNKNOWN_TOPIC_ID"):  # a position has the id of its topic
            consumer.commit_sync(old_positions)
        consumer.assign([])
        assert consumer.recreations == {}


def test_offset_of_a_topic_that_the_coordinator_no_longer_knows_is_not_used(fake: FakeKafka) -> None:
    """A coordinator returns offsets of a deleted topic until it has deleted them."""

    def still_known(body: dict[str, Any]) -> dict[str, Any]:
        body["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] = 3
        return body

    fake.delete_topic("orders")
    fake.edit_replies(OFFSET_FETCH, still_known, 1)
    with consumer_at(fake) as consumer:
        consumer.assign([KEY])
        wait_until(lambda: consumer.poll(20) or len(fake.request_bodies(OFFSET_FETCH)) > 1)
        fake.create_topic("orders")
        fake.write("orders", 0, records(0, 9))
        read_exactly(consumer, 9)


@pytest.mark.parametrize("in_transaction", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("how", ["assign", "subscribe", "read", "committed"])
def test_offset_of_a_deleted_topic_that_a_new_coordinator_has_is_not_used(
    fake: FakeKafka, fake_client: Client, how: str, in_transaction: bool
) -> None:
    """Kafka deletes a topic's offsets at the coordinator of that moment; the next one may load them from the log."""
    with consumer_at(fake) as consumer:
        consumer.assign([KEY])
        read_exactly(consumer, 5)
        if in_transaction:
            producer = started(fake_client, "copy")
            producer.begin_transaction()
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
            producer.commit_transaction()
        else:
            consumer.commit_sync()
        assert consumer.committed([KEY]) == {KEY: CommittedOffset(5, 0)}
        old_offsets = dict(fake.offsets.committed["etl"])
        recreate_topic(fake, "orders", count=9)
        fake.offsets.committed["etl"] |= old_offsets
        if how == "committed":
            assert consumer.committed([KEY]) == {KEY: None}
    if how == "read":
        properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "etl", "auto.offset.reset": "earliest"}
        assert protocol.read(properties, "orders", start="committed").read_all().num_rows == 9
    elif how != "committed":
        with consumer_at(fake) as consumer:
            begin(consumer, how)
            read_exactly(consumer, 9)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_offset_committed_in_a_new_topic_while_the_consumer_starts_is_used(
    fake: FakeKafka, fake_client: Client, reset: str
) -> None:
    """The coordinator learns of the new topic between its replies to Metadata and OffsetFetch."""
    commit_offsets(fake_client, "etl", {KEY: CommittedOffset(3)}, fake_client.deadline())

    def recreate_and_commit(body: dict[str, Any]) -> None:
        fake.before.pop(OFFSET_FETCH)
        recreate_topic(fake, "orders", count=9)
        fake.offsets.committed.setdefault("etl", {})[KEY] = Committed(6, -1, "")

    fake.before[OFFSET_FETCH] = recreate_and_commit
    with consumer_of(fake_client, **{"auto.offset.reset": reset}) as consumer:
        consumer.assign([KEY])
        read_exactly(consumer, 3)
        assert consumer.recreations == {}


@pytest.mark.parametrize(
    "last", [m28_txn_offset_commit.LAST_WITH_TOPIC_NAMES, TXN_OFFSET_COMMIT.last], ids=["by name", "by id"]
)
def test_transaction_refuses_offsets_of_a_deleted_topic_before_the_consumer_knows_of_the_new_one(
    fake: FakeKafka, last: int
) -> None:
    limit_version(fake, TXN_OFFSET_COMMIT, last)
    # Its own client: that of the consumer may learn of the new topic.
    with client_of(fake.bootstrap_servers) as client, consumer_at(fake) as consumer:
        producer = started(client, "copy")
        consumer.subscribe(["orders"])
        read_exactly(consumer, 5)
        consumer.pause(consumer.assignment)
        recreate_topic(fake, "orders")
        producer.begin_transaction()
        with pytest.raises(TopicRecreated, match="orders-0: the offset belongs to a deleted topic"):
            producer.send_offsets_to_transaction({KEY: CommittedOffset(5)}, consumer.group_metadata())
        producer.abort_transaction()
    assert fake.committed_offsets("etl") == {}


def test_member_stays_and_closes_while_a_claim_waits_for_the_leader_of_a_recreated_topic(fake: FakeKafka) -> None:
    handler, requested = ReadingHandler(), list[object]()
    client = {"bootstrap.servers": fake.bootstrap_servers, "retry.backoff.max.ms": 200}
    group = group_of(client, **{"max.poll.interval.ms": 3_000, "heartbeat.interval.ms": 200})
    with background(lambda: group.consume(["orders"], handler)), group:
        wait_until(lambda: handler.rows["orders"] == 5)
        with fake.changed:
            recreate_topic(fake, "orders")
            leader = fake.leader("orders", 0)
            fake.move_coordinator("etl", 3 - leader)
            fake.stop(leader)
        fake.before[METADATA] = requested.append
        wait_until(lambda: len(requested) > 3)
        assert not fake.request_bodies("LeaveGroup")
        begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 10


@pytest.mark.parametrize("remembered", ["to the consumer", "and moved to"])
@pytest.mark.parametrize("to", ["old offset", "beginning"])
def test_seek_before_records_of_a_new_topic_skips_none_of_them(
    fake: FakeKafka, remembered: str, to: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The user seeks back, as after a failed handler, and does not know that the topic is another one."""
    second = ("other", 0)
    fake.create_topic("other")
    fake.write(*second, records(0, 5))
    with consumer_at(fake) as consumer:
        consumer.assign([KEY, second])
        read_exactly(consumer, 10)
        recreate_topic(fake, "orders")
        if remembered == "to the consumer":
            fake.refuse("ListOffsets", "LEADER_NOT_AVAILABLE", ALWAYS, partition=KEY)
            wait_until(lambda: consumer.poll(20) or KEY in partitions_of(consumer).recreated)
        else:
            wait_until(lambda: consumer.poll(20) or consumer.recreations)
        fake.faults.clear()
        fake.produce("orders", *["new"] * 9)
        if to == "beginning":
            consumer.seek_to_beginning([KEY])
        else:
            consumer.seek(KEY, 3)
        assert read_exactly(consumer, 9) == list(range(9))
        ignored = f"seek of orders-0 to offset 3 is ignored: the topic was {RECREATED}"
        warnings = [text for text in caplog.messages if "is ignored" in text]
        assert warnings == ([ignored] if to == "old offset" else [])
        consumer.seek(KEY, 7)
        assert read_exactly(consumer, 2) == [7, 8]
