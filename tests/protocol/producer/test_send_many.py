"""Several messages sent synchronously, back-off functions, and topics that do not exist."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, SendFailed, UsageError
from protocol.producer.messages import ProducerMessage
from protocol.producer.producer import Producer
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.producer.producing import TOPIC, WAIT_S, SkippingClock, producer_of

MISSING_SOON: dict[str, object] = {"max.block.ms": 1_000, "retry.backoff.max.ms": 20_000}


class TestSendMany:
    def test_results_are_in_the_order_of_the_messages(self, broker: FakeKafka) -> None:
        messages = [ProducerMessage(TOPIC, f"{number}", partition=number % 2, timestamp_ms=5) for number in range(6)]
        with producer_of(broker.bootstrap_servers, {"linger.ms": 600_000}) as producer:
            written = producer.send_many(messages)
            assert producer.send_many([]) == []
        expected = [(number % 2, number // 2) for number in range(6)]
        assert [(metadata.partition, metadata.offset) for metadata in written] == expected

    def test_waiting_iterable_is_interrupted_and_other_values_are_refused(self, broker: FakeKafka) -> None:
        """The former in a timer's signal: the call must not defer it."""

        def wait() -> Iterator[ProducerMessage]:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            threading.Event().wait(WAIT_S)
            yield ProducerMessage(TOPIC, "late")

        def raise_timeout(*_: object) -> None:
            raise TimeoutError

        former = signal.signal(signal.SIGALRM, raise_timeout)
        with producer_of(broker.bootstrap_servers) as producer:
            with pytest.raises(TimeoutError):
                producer.send_many(wait())
            with pytest.raises(TypeError):
                producer.send_many([None])  # type: ignore[list-item]
        signal.signal(signal.SIGALRM, former)

    def test_failed_messages_are_named_with_their_causes(self, broker: FakeKafka) -> None:
        broker.refuse(PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, partition=(TOPIC, 1))
        messages = [
            ProducerMessage(TOPIC, "0", partition=0),
            ProducerMessage(TOPIC, "1", headers=[("only a name",)]),  # type: ignore[list-item]
            ProducerMessage(TOPIC, "2", partition=1),
            ProducerMessage(TOPIC, "3" * 2_000, partition=0),
            ProducerMessage(TOPIC, "4", partition=0),
        ]
        with producer_of(broker.bootstrap_servers, {"max.request.size": 1_000}) as producer:
            with pytest.raises(
                SendFailed, match="3 of 5 messages were not acknowledged; the first is number 1: "
            ) as raised:
                producer.send_many(messages)
            producer.flush()
        errors = raised.value.errors
        assert list(errors) == [1, 2, 3]
        assert isinstance(errors[1], UsageError)
        assert isinstance(errors[2], BrokerError)
        assert errors[2].code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "max.request.size" in str(errors[3])
        assert {index: result.offset for index, result in raised.value.results.items()} == {0: 0, 4: 1}

    def test_messages_not_acknowledged_in_time_fail(self, broker: FakeKafka) -> None:
        event = threading.Event()
        broker.before[PRODUCE] = lambda body: event.wait(WAIT_S)
        with producer_of(broker.bootstrap_servers) as producer:
            try:
                with pytest.raises(SendFailed) as raised:
                    producer.send_many([ProducerMessage(TOPIC, "0"), ProducerMessage(TOPIC, "1")], timeout_ms=100)
            finally:
                event.set()
        assert [type(error) for error in raised.value.errors.values()] == [DeadlineExceeded, DeadlineExceeded]


class TestDeadlines:
    """A call with a timeout ends before `max.block.ms`, which limits its wait for memory and metadata."""

    @pytest.fixture
    def producer(self, broker: FakeKafka) -> Iterator[Producer]:
        """Yield a producer without room for another 10 kB."""
        slow: dict[str, object] = {"buffer.memory": 20_000, "batch.size": 5_000, "max.block.ms": 20_000}
        producer = producer_of(broker.bootstrap_servers, slow)
        producer.send_and_wait(TOPIC, "connects", partition=0)
        broker.delay_replies(PRODUCE, 3_600)
        producer.send(TOPIC, bytes(15_000), partition=0)
        yield producer
        producer.abort()

    @pytest.mark.timeout(10)
    def test_wait_for_memory_ends(self, producer: Producer) -> None:
        with pytest.raises(DeadlineExceeded, match=r"the time of this call is over\. Nothing of this call was sent"):
            producer.send_and_wait(TOPIC, bytes(10_000), partition=1, timeout_ms=100)
        with pytest.raises(SendFailed) as raised:
            producer.send_many([ProducerMessage(TOPIC, bytes(10_000), partition=1)] * 3, timeout_ms=100)
        assert {type(error) for error in raised.value.errors.values()} == {DeadlineExceeded}

    @pytest.mark.timeout(10)
    def test_wait_for_metadata_ends(self, broker: FakeKafka, producer: Producer) -> None:
        broker.delay_replies(METADATA, 3_600, ALWAYS)
        with pytest.raises(DeadlineExceeded, match="Metadata of other"):
            producer.send_and_wait("other", "v", timeout_ms=100)
        with pytest.raises(SendFailed) as raised:
            producer.send_many([ProducerMessage("other", "v")] * 3, timeout_ms=100)
        assert {type(error) for error in raised.value.errors.values()} == {DeadlineExceeded}

    def test_short_wait_does_not_prove_that_a_topic_is_missing(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers, {"retry.backoff.max.ms": 20_000}) as producer:
            with pytest.raises(DeadlineExceeded):
                producer.send_and_wait("later", "v", timeout_ms=100)
            broker.create_topic("later")
            assert producer.send_and_wait("later", "v").offset == 0

    @pytest.mark.timeout(10)
    @pytest.mark.parametrize(
        "call",
        [
            lambda producer: producer.flush(100),
            lambda producer: producer.send_and_wait(TOPIC, "v", timeout_ms=100),
            lambda producer: producer.send_many([ProducerMessage(TOPIC, "v")], timeout_ms=100),
        ],
        ids=["flush", "send_and_wait", "send_many"],
    )
    def test_wait_for_another_thread_in_its_partitioner_ends(
        self, broker: FakeKafka, call: Callable[[Producer], object]
    ) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def choose(topic: str, rows: pa.RecordBatch, count: int) -> pa.Array:
            inside.set()
            assert go_on.wait(WAIT_S)
            return pa.array([0] * rows.num_rows, pa.int32())

        with producer_of(broker.bootstrap_servers, partitioner=choose) as producer, ThreadPoolExecutor(1) as threads:
            sent = threads.submit(producer.send_columns, TOPIC, pa.record_batch({"value": pa.array([b"v"])}))
            try:
                assert inside.wait(WAIT_S)
                with pytest.raises((DeadlineExceeded, SendFailed), match=r"not acknowledged in time|still sending"):
                    call(producer)
            finally:
                go_on.set()
            sent.result(WAIT_S).result()


class TestBackoffFunction:
    def test_function_gets_failures_and_retries(self, broker: FakeKafka) -> None:
        calls: list[tuple[int, int]] = []

        def backoff(failures: int, retries: int) -> float:
            calls.append((failures, retries))
            return 1

        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
        with producer_of(broker.bootstrap_servers, {"retries": 9}, retry_backoff=backoff) as producer:
            producer.send_and_wait(TOPIC, "v", partition=0)
            broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            producer.send_and_wait(TOPIC, "v", partition=0)
        assert calls == [(1, 9), (2, 9), (3, 9), (1, 9)]

    @pytest.mark.parametrize("returned", [None, -1, float("nan"), float("inf")])
    def test_wrong_value_is_logged_and_the_default_applies(
        self, broker: FakeKafka, caplog: pytest.LogCaptureFixture, returned: float
    ) -> None:
        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with (
            caplog.at_level(logging.WARNING, "protocol"),
            producer_of(broker.bootstrap_servers, retry_backoff=lambda failures, retries: returned) as producer,
        ):
            assert producer.send_and_wait(TOPIC, "v").offset == 0
        assert "retry_backoff has failed; the default applies" in caplog.text


class TestMissingTopics:
    @pytest.fixture
    def clock(self) -> SkippingClock:
        return SkippingClock()

    @pytest.fixture
    def producer(self, broker: FakeKafka, clock: SkippingClock) -> Iterator[Producer]:
        properties = {"bootstrap.servers": broker.bootstrap_servers, **MISSING_SOON}
        client = Client(properties, clock)
        client.metadata([])  # within its own time: max.block.ms is short for a first connection on a busy machine
        with Producer(client, properties) as producer:
            yield producer

    @pytest.fixture
    def refused(self, broker: FakeKafka, producer: Producer) -> Callable[[], tuple[str, int]]:
        """Return a function that sends to a missing topic, and returns the error and the number of its requests."""

        def send() -> tuple[str, int]:
            before = len(broker.request_bodies(METADATA))
            with pytest.raises(DeadlineExceeded, match=r"Create the topic later first") as raised:
                producer.send("later", "v")
            return str(raised.value), len(broker.request_bodies(METADATA)) - before

        return send

    def test_sends_after_the_first_fail_at_once_until_the_topic_exists(
        self, broker: FakeKafka, clock: SkippingClock, producer: Producer, refused: Callable[[], tuple[str, int]]
    ) -> None:
        first, requests = refused()
        assert requests > 1
        with pytest.raises(KafkaError, match="Create the topic later first"):
            producer.send_columns("later", pa.RecordBatch.from_pydict({"value": [b"v"]}))
        assert [refused() for _ in range(3)] == [(first, 0)] * 3
        assert producer.send_and_wait(TOPIC, "other topics are not affected").offset == 0
        clock.skip(21)
        assert [refused() for _ in range(3)] == [(first, 1), (first, 0), (first, 0)]
        clock.skip(61)
        assert refused()[1] > 1, "after a minute the topic is waited for again"
        broker.create_topic("later", 1)
        clock.skip(21)
        assert producer.send_and_wait("later", "v").offset == 0

    def test_missing_partition_fails_at_once_and_others_are_written(
        self, broker: FakeKafka, clock: SkippingClock, producer: Producer
    ) -> None:
        for _ in range(2):
            before = len(broker.request_bodies(METADATA))
            with pytest.raises(UsageError, match=r"partition 2 was requested, but topic t has 2"):
                producer.send(TOPIC, "v", partition=2)
            assert producer.send_and_wait(TOPIC, "v", partition=1).partition == 1
        assert len(broker.request_bodies(METADATA)) == before
        broker.create_partitions(TOPIC, 3)
        clock.skip(21)
        assert producer.send_and_wait(TOPIC, "v", partition=2).partition == 2

    def test_topic_that_is_being_created_is_waited_for(
        self, broker: FakeKafka, clock: SkippingClock, producer: Producer, refused: Callable[[], tuple[str, int]]
    ) -> None:
        refused()
        broker.create_topic("later", 1)
        clock.skip(21)
        leaderless = {"error_code": ErrorCode.LEADER_NOT_AVAILABLE, "partitions": []}
        broker.edit_replies(METADATA, lambda body: {**body, "topics": [body["topics"][0] | leaderless]}, 2)
        assert producer.send_and_wait("later", "v").offset == 0
