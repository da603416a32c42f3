"""Ctrl-C at any place of a public call loses no record and no result, and the object can be used again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

from protocol.admin import Admin
from protocol.base.calls import CallGate
from protocol.base.interrupts import signals
from protocol.consumer.consumer_group import ConsumerGroup
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import KafkaError
from protocol.producer.producer import Producer
from protocol.producer.results import SentColumns
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka import consumer_group as fake_consumer_group
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionState
from tests.protocol.consumer.members import IdleHandler
from tests.support import read_committed
from tests.support.interrupts import interrupted_at, places_in
from tests.support.wait_until import wait_until

CODE = ("protocol.",)
Closable = KafkaConsumer | ConsumerGroup | Producer
BOTH = [("orders", 0), ("orders", 1)]
RECORDS = [(partition, offset) for partition in range(2) for offset in range(5)]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as fake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_consumer_group, "HEARTBEAT_INTERVAL_MS", 50)
        fake.create_topic("orders", 2)
        fake.create_topic("orders-of-producers")
        with Producer({"bootstrap.servers": fake.bootstrap_servers, "batch.size": 1}) as producer:
            for partition, _ in RECORDS:
                producer.send("orders", b"value", partition=partition)
        yield fake


def consumer_of(fake: FakeKafka, **properties: object) -> KafkaConsumer:
    small = {"fetch.max.wait.ms": 1, "max.partition.fetch.bytes": 1}
    return KafkaConsumer(
        {"bootstrap.servers": fake.bootstrap_servers, "auto.offset.reset": "earliest", **small}, **properties
    )


def rows_of(polled: object) -> list[tuple[int, int]]:
    if not isinstance(polled, ConsumerRecords):
        return []
    batches = [(key[1], batch) for key, several in polled.items() for batch in several]
    return [(partition, offset) for partition, batch in batches for offset in batch["offset"].to_pylist()]


def read_all(consumer: KafkaConsumer, rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Add rows until there are as many as records; return them in order."""
    deadline = consumer.client.deadline(25_000)
    while len(rows) < len(RECORDS) and not deadline.passed:
        rows += rows_of(consumer.poll(50))
    return sorted(rows)


def interrupt(place: int, call: Callable[[], object]) -> object:
    """Return the result of a call, None after Ctrl-C."""
    with suppress(KeyboardInterrupt), interrupted_at(place, CODE):
        return call()
    return None


CALLS_WITH_ASSIGNMENT: dict[str, Callable[[KafkaConsumer], object]] = {
    "assign": lambda consumer: consumer.assign([("orders", 1)]),
    "poll": lambda consumer: consumer.poll(1_000),
    "seek": lambda consumer: consumer.seek(("orders", 0), 0),
    "commit_sync": KafkaConsumer.commit_sync,
}


@pytest.mark.parametrize("name", CALLS_WITH_ASSIGNMENT)
def test_interrupted_call_of_a_consumer_loses_and_repeats_no_record(fake: FakeKafka, name: str) -> None:
    def start() -> None:
        consumer.assign(BOTH)
        consumer.resume(BOTH)
        consumer.seek_to_beginning()

    with consumer_of(fake, group_id="assigned", enable_auto_commit=False) as consumer:
        call = partial(CALLS_WITH_ASSIGNMENT[name], consumer)
        start()
        for place in places_in(call, CODE):
            start()
            read = rows_of(interrupt(place, call))
            consumer.assign(BOTH)
            consumer.resume(BOTH)
            if name == "assign":  # it forgets positions
                consumer.seek_to_beginning()
            assert read_all(consumer, read) == RECORDS, place
        consumer.commit_sync()


def consuming(fake: FakeKafka, **properties: object) -> KafkaConsumer:
    consumer = consumer_of(fake, **properties)
    consumer.subscribe(["orders"])
    wait_until(lambda: consumer.poll(10) or consumer.assignment, every_s=0)
    return consumer


class Stops(IdleHandler):
    """Ends its session at once; the member keeps its partitions."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    def setup(self, session: ConsumerGroupSession) -> None:
        self.stop.set()


def consuming_group(fake: FakeKafka, **properties: object) -> ConsumerGroup:
    group = ConsumerGroup({"bootstrap.servers": fake.bootstrap_servers}, **properties)
    handler = Stops()
    group.consume(["orders"], handler, handler.stop)
    return group


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("open_consumer", [consuming, consuming_group])
def test_interrupted_close_leaves_no_thread_connection_or_member(
    fake: FakeKafka, open_consumer: Callable[..., KafkaConsumer | ConsumerGroup], protocol: str
) -> None:
    group = f"{open_consumer.__name__} {protocol}"
    check_interrupted_close(fake, lambda: open_consumer(fake, group_id=group, group_protocol=protocol), group)


def check_interrupted_close(fake: FakeKafka, start: Callable[[], Closable], group: str = "none") -> None:
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        admin.describe_groups([group])
        before = set(client_threads())
        for place in places_in(start().close, CODE):
            closable = start()
            interrupt(place, closable.close)
            closable.close()
            assert len(closable._client.pool) == 0
            assert not admin.describe_groups([group])[group].members
            wait_until(lambda: set(client_threads()) <= before, lambda: str(client_threads()), every_s=0.01)


def client_threads() -> list[threading.Thread]:
    """Threads but those of the fake broker."""
    return [thread for thread in threading.enumerate() if "(_serve)" not in thread.name]


class CommitsInCleanup(Stops):
    """Marks an offset, ends the session, and is interrupted at a place of the commit."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.was_reached = False

    def setup(self, session: ConsumerGroupSession) -> None:
        pass

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        if claim.partition == 0:
            session.mark_offset(claim.topic, 0, self.place)
            self.stop.set()

    def cleanup(self, session: ConsumerGroupSession) -> None:
        with interrupted_at(self.place, ("protocol.consumer.", "protocol.group.commits."), handler=None) as was_reached:
            try:
                session.commit()
            finally:
                self.was_reached = was_reached()


def test_interrupted_commit_in_cleanup_loses_no_marked_offset(fake: FakeKafka) -> None:
    properties = {"bootstrap.servers": fake.bootstrap_servers, "auto.offset.reset": "earliest"}
    for place in count(1, 6):
        handler, group = CommitsInCleanup(place), ConsumerGroup(properties, group_id="cleanup")
        with group, suppress(KeyboardInterrupt):
            group.consume(["orders"], handler, handler.stop)
        assert fake.committed_offsets("cleanup")["orders", 0] == place
        if not handler.was_reached:
            break
    assert place > 40


# -- producers ------------------------------------------------------------------------------------


def producer_of(fake: FakeKafka) -> Producer:
    return Producer({"bootstrap.servers": fake.bootstrap_servers, "linger.ms": "2", "batch.size": "200"})


def transactional_producer_of(fake: FakeKafka) -> TransactionalProducer:
    properties = {"bootstrap.servers": fake.bootstrap_servers, "linger.ms": "2", "batch.size": "200"}
    producer = TransactionalProducer(properties, transactional_id="id")
    producer.init_transactions()
    return producer


def columns_of(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


SENDS: dict[str, Callable[[Producer, str, bytes], object]] = {
    "send": lambda producer, topic, value: producer.send(topic, value),
    "send_columns": lambda producer, topic, value: producer.send_columns(topic, columns_of(*[value] * 5)),
    "flush": lambda producer, topic, value: (producer.send(topic, value), producer.flush()),
}


@pytest.mark.parametrize("name", SENDS)
def test_interrupted_call_of_a_producer_loses_no_result(fake: FakeKafka, name: str) -> None:
    topic, call, acknowledged = f"of {name}".replace(" ", "-"), SENDS[name], list[bytes]()
    fake.create_topic(topic)
    with producer_of(fake) as producer:
        for place in places_in(lambda: call(producer, topic, b"first"), CODE):
            before = [(b"%d %d" % (place, number), number) for number in range(2)]
            futures = [(value, producer.send(topic, value)) for value, _ in before]
            result = interrupt(place, lambda: call(producer, topic, b"called %d" % place))  # noqa: B023
            if isinstance(result, Future):
                futures.append((b"called %d" % place, result))
            with suppress(KafkaError):  # of interrupted columns
                producer.flush()
            futures.append((b"after %d" % place, producer.send(topic, b"after %d" % place)))
            with suppress(KafkaError):
                producer.flush()
            if isinstance(result, SentColumns):
                assert result.done, place
            for value, future in futures:
                assert future.done(), place
                if value.startswith(b"after") or future.exception() is None:
                    assert fake.records(topic)[future.result().offset].value == value, place
                    acknowledged.append(value)
        wait_until(lambda: producer.held_bytes == 0, lambda: str(producer.held_bytes))
    values = [record.value for record in fake.records(topic) if not (record.value or b"").startswith((b"call", b"fir"))]
    assert len(values) == len(set(values)), "twice"
    assert acknowledged


TRANSACTION_CALLS: dict[str, Callable[[TransactionalProducer, str, bytes], object]] = {
    "send_columns": SENDS["send_columns"],
    "commit_transaction": lambda producer, topic, value: producer.commit_transaction(),
    "abort_transaction": lambda producer, topic, value: producer.abort_transaction(),
    "prepare_transaction": lambda producer, topic, value: producer.prepare_transaction(),
}
_S = TransactionState


@pytest.mark.parametrize("name", TRANSACTION_CALLS)
def test_transaction_of_an_interrupted_call_is_whole_or_aborted(fake: FakeKafka, name: str) -> None:
    topic, call = f"transactions-of-{name}".replace(" ", "-"), TRANSACTION_CALLS[name]
    fake.create_topic(topic)
    committed: list[bytes] = []

    def begin() -> None:
        producer.begin_transaction()
        producer.send(topic, b"%d" % place)
        producer.send_columns(topic, columns_of(b"%d" % place, b"%d" % place))

    with transactional_producer_of(fake) as producer:
        place = 0
        begin()
        for place in places_in(lambda: call(producer, topic, b"called"), CODE):
            if producer.transaction_state is _S.PREPARED_TRANSACTION:
                producer.init_transactions()
            if producer.transaction_state is not _S.READY:
                producer.abort_transaction()
            begin()
            interrupt(place, lambda: call(producer, topic, b"called"))
            state = producer.transaction_state
            is_whole = state is _S.IN_TRANSACTION and name not in SENDS
            if is_whole or state is _S.COMMITTING_TRANSACTION:
                producer.commit_transaction()
                committed.append(b"%d" % place)
        if producer.transaction_state is _S.PREPARED_TRANSACTION:
            producer.init_transactions()
    values = read_committed.by_this_project(fake.bootstrap_servers, topic)[0]
    assert set(committed) <= set(values)
    assert {values.count(value) for value in values if value.isdigit()} <= {3}


def in_transaction(fake: FakeKafka) -> TransactionalProducer:
    producer = transactional_producer_of(fake)
    producer.begin_transaction()
    return producer


@pytest.mark.parametrize("open_producer", [producer_of, in_transaction])
def test_interrupted_close_of_a_producer_leaves_no_thread_or_connection(
    fake: FakeKafka, open_producer: Callable[[FakeKafka], Producer]
) -> None:
    def start() -> Producer:
        producer = open_producer(fake)
        producer.send("orders-of-producers", b"value")
        return producer

    check_interrupted_close(fake, start)


def test_second_signal_at_the_end_of_a_call_leaves_the_object_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers raise as the last step of a call, and before signals are deferred again to undo the call."""
    gate, undone = CallGate("consumer", "busy"), list[str]()
    end, defer = signals.end, signals.defer

    def interrupted_end(level: int) -> None:
        monkeypatch.setattr(signals, "end", end)
        monkeypatch.setattr(signals, "defer", interrupted_defer)
        end(level)
        raise KeyboardInterrupt

    def interrupted_defer() -> int:
        monkeypatch.setattr(signals, "defer", defer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), gate.call(partial(undone.append, "undone")):
        monkeypatch.setattr(signals, "end", interrupted_end)
    assert undone == ["undone"]
    with gate.call():
        pass
