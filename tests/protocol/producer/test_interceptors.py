"""Interceptors of a producer: what they see and change, in which order, and what their exceptions do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from protocol.errors import KafkaError, UsageError
from protocol.producer import producer as producer_module
from protocol.producer.interceptors import BatchMetadata, ProducerInterceptor
from protocol.producer.messages import ProducerMessage
from protocol.producer.producer import Producer
from protocol.producer.results import RecordMetadata
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing import FakeKafka
from tests.protocol.producer.producing import producer_of

COLUMNS = pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"2", b"3"])})


class Recorded(ProducerInterceptor):
    """Appends its name to values, and notes its calls."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name = name
        self.calls = calls

    def on_send(self, message: ProducerMessage) -> ProducerMessage:
        self.calls.append((self.name, message.value))
        return message._replace(value=str(message.value) + self.name)

    def on_send_columns(self, topic: str, columns: pa.RecordBatch) -> pa.RecordBatch:
        self.calls.append((self.name, columns.column("value").to_pylist()))
        changed = [value + self.name.encode() for value in columns.column("value").to_pylist()]
        return pa.RecordBatch.from_pydict({"value": pa.array(changed)})

    def on_acknowledgement(self, metadata: RecordMetadata | BatchMetadata, error: KafkaError | None) -> None:
        self.calls.append((self.name, metadata, error, threading.current_thread().name.split("-")[0]))

    on_acknowledgement_columns = on_acknowledgement

    def close(self) -> None:
        self.calls.append((self.name, "close"))


class FailingAfterSends(ProducerInterceptor):
    def fail(self, *_: object) -> Any:
        raise SystemExit(1)

    on_acknowledgement = on_acknowledgement_columns = close = fail


class Failing(ProducerInterceptor):
    def fail(self, *_: object) -> Any:
        raise ValueError("broken interceptor")

    on_send = on_send_columns = on_acknowledgement = on_acknowledgement_columns = close = fail


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 1)
        yield kafka


def values_in(fake: FakeKafka, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in fake.records(topic)]


def test_message_passes_the_chain_in_order_and_acknowledgement_comes_before_callbacks(fake: FakeKafka) -> None:
    calls: list[Any] = []
    with producer_of(fake.bootstrap_servers, interceptors=[Recorded("a", calls), Recorded("b", calls)]) as producer:
        future = producer.send("orders", "v", timestamp_ms=7)
        future.add_done_callback(lambda done: calls.append("callback"))
        assert future.result(30).offset == 0
    written = RecordMetadata("orders", 0, 0, 7)
    assert calls[:2] == [("a", "v"), ("b", "va")]
    assert calls[2:4] == [("a", written, None, "produce"), ("b", written, None, "produce")]
    assert calls[4:] == ["callback", ("a", "close"), ("b", "close")]
    assert values_in(fake) == [b"vab"]


def test_columns_pass_the_chain_as_columns(fake: FakeKafka) -> None:
    calls: list[Any] = []
    with producer_of(fake.bootstrap_servers, interceptors=[Recorded("a", calls), Recorded("b", calls)]) as producer:
        sent = producer.send_columns("orders", COLUMNS)
        producer.flush()
        assert sent.result().num_rows == 3
    assert calls[:2] == [("a", [b"1", b"2", b"3"]), ("b", [b"1a", b"2a", b"3a"])]
    written = BatchMetadata("orders", 0, 0, 3)
    assert calls[2:4] == [("a", written, None, "produce"), ("b", written, None, "produce")]
    assert values_in(fake) == [b"1ab", b"2ab", b"3ab"]


@pytest.mark.parametrize(
    ("failing", "hooks"),
    [(Failing, {"on_send", "on_send_columns"}), (FailingAfterSends, set())],
    ids=["exception", "exit"],
)
def test_exceptions_of_interceptors_are_logged_and_change_nothing(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture, failing: type[ProducerInterceptor], hooks: set[str]
) -> None:
    calls: list[Any] = []
    chain = [failing(), Recorded("a", calls)]
    with producer_of(fake.bootstrap_servers, interceptors=chain) as producer:
        assert producer.send("orders", "v").result(30).offset == 0
        producer.send_columns("orders", COLUMNS)
        producer.flush()
        assert producer.send_and_wait("orders", "w").offset == 4
    assert values_in(fake) == [b"va", b"1a", b"2a", b"3a", b"wa"]
    assert calls[-1] == ("a", "close")
    result = {record.message.split(" of ")[0] for record in caplog.records}
    assert result == {"on_acknowledgement", "on_acknowledgement_columns", "close", *hooks}


@pytest.mark.parametrize("returned", [None, COLUMNS.slice(1), "columns"], ids=["none", "fewer rows", "text"])
def test_wrong_results_of_interceptors_are_ignored(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture, returned: Any
) -> None:
    class Wrong(ProducerInterceptor):
        def result(self, *_: object) -> Any:
            return returned

        on_send = on_send_columns = result

    with producer_of(fake.bootstrap_servers, interceptors=[Wrong()]) as producer:
        producer.send("orders", b"0").result(30)
        producer.send_columns("orders", COLUMNS)
    assert values_in(fake) == [b"0", b"1", b"2", b"3"]
    assert "must return a ProducerMessage" in caplog.text
    assert "with 3 rows" in caplog.text


def test_failed_sends_are_acknowledged_with_their_error(fake: FakeKafka) -> None:
    calls: list[Any] = []
    chain = [Recorded("a", calls)]
    properties = {"max.request.size": 1_000}
    with producer_of(fake.bootstrap_servers, properties, interceptors=chain) as producer:
        with pytest.raises(UsageError, match="only a name"):
            producer.send("orders", "v", headers=[("only a name",)])  # type: ignore[list-item]
        failure = producer.send("orders", "x" * 2_000, partition=0).exception(30)
        sent = producer.send_columns("orders", pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"x" * 2_000])}))
        errors = sent.errors(30_000)
        with pytest.raises(UsageError, match="2 partitions were given"):
            producer.send_columns("orders", COLUMNS, pa.array([0, 0], pa.int32()))
    results = [call for call in calls if len(call) == 4]
    assert [result[1] for result in results[:2]] == [
        RecordMetadata("orders", -1, -1, -1),
        RecordMetadata("orders", 0, -1, -1),
    ]
    assert "only a name" in str(results[0][2])
    assert results[1][2] is failure
    assert (BatchMetadata("orders", -1, -1, 1), errors[1]) in [result[1:3] for result in results]
    assert (BatchMetadata("orders", 0, 0, 1), None) in [result[1:3] for result in results]
    assert results[-1][1] == BatchMetadata("orders", -1, -1, 3)
    assert results[-1][3] == "MainThread"


def test_rows_that_a_partitioner_refuses_are_acknowledged_with_its_error(fake: FakeKafka) -> None:
    def refuse(*_: object) -> int:
        raise ValueError("no partition for this")

    calls: list[Any] = []
    with (
        producer_of(fake.bootstrap_servers, partitioner=refuse, interceptors=[Recorded("a", calls)]) as producer,
        pytest.raises(ValueError, match="no partition"),
    ):
        producer.send_columns("orders", COLUMNS)
    (result,) = [call for call in calls if len(call) == 4]
    assert result[1] == BatchMetadata("orders", -1, -1, 3)
    assert "no partition for this" in str(result[2])


def test_end_comes_although_an_acknowledgement_waits_for_a_lock_of_the_user(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "_STOP_MS", 100)
    lock, waits = threading.Lock(), threading.Event()

    class Locking(ProducerInterceptor):
        def on_acknowledgement_columns(self, metadata: BatchMetadata, error: KafkaError | None) -> None:
            waits.set()
            with lock:
                pass

    producer = producer_of(fake.bootstrap_servers, {"linger.ms": 60_000}, interceptors=[Locking()])
    closing = threading.Thread(target=producer.abort)
    with lock:
        sent = producer.send_columns("orders", COLUMNS)
        closing.start()
        assert waits.wait(30)
        assert len(sent.errors(30_000)) == 3
    closing.join(30)
    assert not closing.is_alive()


def test_interceptor_may_send_messages_in_an_acknowledgement(fake: FakeKafka) -> None:
    fake.create_topic("audit", 1)

    class Audit(ProducerInterceptor):
        def __init__(self) -> None:
            self.producer: Producer | None = None

        def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
            if metadata.topic != "audit" and self.producer is not None:
                self.producer.send("audit", f"{metadata.topic} {metadata.offset}")

    audit = Audit()
    with producer_of(fake.bootstrap_servers, interceptors=[audit]) as producer:
        audit.producer = producer
        producer.send_and_wait("orders", "v")
        producer.flush()
    assert values_in(fake, "audit") == [b"orders 0"]


def test_interceptors_of_a_transaction_see_the_abort(fake: FakeKafka) -> None:
    calls: list[Any] = []
    properties = {"bootstrap.servers": fake.bootstrap_servers, "transactional.id": "t", "linger.ms": 60_000}
    with TransactionalProducer(properties, interceptors=[Recorded("a", calls)]) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", "v")
        producer.abort_transaction()
    ((_, metadata, error, _),) = [call for call in calls if len(call) == 4]
    assert metadata == RecordMetadata("orders", -1, -1, -1)
    assert "aborted" in str(error)
