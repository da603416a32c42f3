"""A handler that raises: retries, then stop, skip or a dead letter."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from protocol import Client, Processor, Producer, RetryPolicy
from protocol.errors import UsageError
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.kafka_terms import NO_TIMESTAMP_MS
from protocol.processing.failures import dead_letter_headers
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.record_batches import Batch, Record, write_batch
from tests.protocol.processing.conftest import EMPTY, Committed, Handler, Start, Write
from tests.support.wait_until import comes_true, wait_until

NUMBERS = [b"%d" % number for number in range(100)]
KEYS = [b"%d" % number for number in range(10)]
AT_ONCE = RetryPolicy(retries=2, backoff_ms=1)
NEVER = RetryPolicy(retries=0)


class Failing:
    """Fails some values a number of times."""

    def __init__(self, **times: int) -> None:
        self.left = {value[1:].encode(): count for value, count in times.items()}
        self.calls: list[bytes] = []
        self.values: list[bytes] = []

    def __call__(self, message: ConsumerMessage) -> None:
        value = message.value or b""
        self.calls.append(value)
        if self.left.get(value, 0) > 0:
            self.left[value] -= 1
            raise ZeroDivisionError(f"no {value!r}")
        self.values.append(value)


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_record_is_retried_until_it_succeeds(write: Write, start: Start, committed: Committed, order: str) -> None:
    write(NUMBERS, KEYS)
    failing = Failing(_7=2, _42=1)
    running = start(failing, order=order, retry=AT_ONCE)
    wait_until(lambda: committed() == {0: 100} | EMPTY or running.ended, committed, every_s=0.02)
    assert running.raised is None
    assert sorted(failing.values) == sorted(NUMBERS)
    assert failing.calls.count(b"7") == 3
    assert running.processor.metrics.retries == 3
    if order == "partition":
        assert failing.values == NUMBERS
    if order == "key":
        of_key = [value for value in failing.values if value.endswith(b"7")]
        assert of_key == sorted(of_key, key=int)


def test_first_failure_is_raised_and_one_of_a_running_handler_logged(
    write: Write, start: Start, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    write(NUMBERS[:2])
    first, second = (handler.block(value) for value in NUMBERS[:2])
    handler.failing = {b"0": ZeroDivisionError(), b"1": LookupError()}
    running = start(handler, order="none", retry=NEVER)
    wait_until(lambda: handler.at_blocks == 2)
    first.set()
    wait_until(lambda: running.processor._pool._stopped)
    second.set()
    assert running.join() is handler.failing[b"0"]
    assert "orders-0, offset 0: the handler has failed, and the processing stops" in caplog.text
    assert "orders-0, offset 1: the handler has failed while it was waited for" in caplog.text


def test_failing_record_is_skipped_logged_and_counted(
    write: Write, start: Start, committed: Committed, caplog: pytest.LogCaptureFixture
) -> None:
    write(NUMBERS, KEYS)
    failing = Failing(_7=99, _42=99)
    running = start(failing, on_failure="skip", retry=AT_ONCE)
    wait_until(lambda: committed() == {0: 100} | EMPTY, committed, every_s=0.02)
    assert sorted(failing.values) == sorted(set(NUMBERS) - {b"7", b"42"})
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert sorted(error.getMessage() for error in errors) == [
        f"orders-0, offset {offset}: the handler has failed; the record is skipped" for offset in (42, 7)
    ]
    assert all(error.exc_info and "ZeroDivisionError" in repr(error.exc_info) for error in errors)
    wait_until(lambda: running.processor.metrics.handled == 98)
    assert (running.processor.metrics.skipped, running.processor.metrics.retries) == (2, 4)


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_poison_record_goes_to_the_dead_letter_topic(
    fake: FakeKafka, write: Write, start: Start, committed: Committed, order: str
) -> None:
    write(NUMBERS[:5], [b"k"])
    write([b"\x00poison\xff", None], [b"key", None], headers=[("trace", b"\x01\xff"), ("none", None)])
    write(NUMBERS[5:], [b"k"])
    failing = Failing()

    def handle(message: ConsumerMessage) -> None:
        if message.value is None or message.value.startswith(b"\x00"):
            raise ZeroDivisionError("poison")
        failing(message)

    running = start(handle, order=order, dead_letter_topic="dead", retry=NEVER)
    wait_until(lambda: committed() == {0: 102} | EMPTY or running.ended, committed, every_s=0.02)
    assert running.raised is None
    assert sorted(failing.values) == sorted(NUMBERS)
    assert running.processor.metrics.dead_letters == 2
    result = sorted(fake.records("dead"), key=lambda letter: letter.value is None)
    assert [(record.key, record.value, record.timestamp_ms) for record in result] == [
        (b"key", b"\x00poison\xff", 1_000),
        (None, None, 1_001),
    ]
    assert [(len(record.headers), record.headers[:2], record.headers[4]) for record in result] == [
        (8, [("trace", b"\x01\xff"), ("none", None)], ("__connect.errors.offset", offset)) for offset in (b"5", b"6")
    ]


def test_dead_letter_keeps_its_timestamp_or_has_that_of_its_writing(
    fake: FakeKafka, client: Client, start: Start, handler: Handler, committed: Committed
) -> None:
    times_ms = (0, 1_764_000_000_000, NO_TIMESTAMP_MS)
    batches = [
        write_batch(Batch([Record(value=b"%d" % number)], number, first_timestamp=time_ms, max_timestamp=time_ms))
        for number, time_ms in enumerate(times_ms)
    ]
    fake.rewrite("orders", 0, b"".join(batches))
    handler.failing = {b"%d" % number: ZeroDivisionError() for number in range(3)}
    began_ms = client.clock.wall_ms()
    running = start(handler, order="partition", dead_letter_topic="dead", retry=NEVER)
    wait_until(lambda: committed() == {0: 3} | EMPTY or running.ended, committed, every_s=0.02)
    old, recent, without = (letter.timestamp_ms for letter in fake.records("dead"))
    assert (old, recent) == (0, 1_764_000_000_000)
    assert without is not None
    assert began_ms <= without <= client.clock.wall_ms()


def test_dead_letter_is_acknowledged_before_the_offset_is_committed(
    fake: FakeKafka, write: Write, start: Start, handler: Handler, committed: Committed
) -> None:
    write(NUMBERS, KEYS)
    handler.failing[b"7"] = ZeroDivisionError()
    acknowledge = threading.Event()

    def hold(reply: Any) -> Any:
        assert acknowledge.wait(30)
        return reply

    fake.edit_replies("Produce", hold, times=1)
    start(handler, dead_letter_topic="dead", retry=NEVER)
    wait_until(lambda: len(handler.values) >= 90 and committed() == {0: 7} | EMPTY, committed, every_s=0.02)
    assert not comes_true(lambda: committed() != {0: 7} | EMPTY, 0.2)
    acknowledge.set()
    wait_until(lambda: committed() == {0: 100} | EMPTY, committed, every_s=0.02)


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_failing_batch_is_bisected_to_its_poison_records(
    fake: FakeKafka, write: Write, start: Start, committed: Committed, order: str
) -> None:
    write(NUMBERS, KEYS)
    poison = {b"7", b"42", b"43"}
    observed: list[int] = []
    lock = threading.Lock()

    def handle(batch: Any) -> None:
        values = batch.columns["value"].to_pylist()
        if poison & set(values):
            raise ZeroDivisionError
        with lock:
            observed.extend(map(int, values))

    running = start(handle, order=order, batch_size=32, dead_letter_topic="dead", retry=AT_ONCE)
    wait_until(lambda: committed() == {0: 100} | EMPTY or running.ended, committed, every_s=0.02)
    assert running.raised is None
    assert {letter.value for letter in fake.records("dead")} == poison
    assert sorted(observed) == sorted(set(range(100)) - {7, 42, 43}), "each good record once"
    if order == "partition":
        assert observed == sorted(observed)
        # Two of each of two batches, and two of each poison record, but none of a part of a batch.
        assert running.processor.metrics.retries == 10
    if order == "key":
        assert all(
            (of_key := [value for value in observed if value % 10 == key]) == sorted(of_key) for key in range(10)
        )


def test_given_producer_stays_open(
    fake: FakeKafka, client: Client, write: Write, handler: Handler, start: Start
) -> None:
    write(NUMBERS[:10])
    handler.failing[b"7"] = ZeroDivisionError()
    with Producer(client, {}) as producer:
        running = start(handler, dead_letter_topic="dead", producer=producer, retry=NEVER)
        wait_until(lambda: running.processor.metrics.dead_letters == 1)
        running.close()
        producer.send_and_wait("dead", b"later")
    assert [letter.value for letter in fake.records("dead")] == [b"7", b"later"]
    with pytest.raises(UsageError, match="no dead_letter_topic"):
        Processor(client, handler, ["orders"], config={"group.id": "g"}, producer=producer)


# -- retries, and headers of dead letters --------------------------------------------------------


def test_waits_double_with_jitter_up_to_the_maximum() -> None:
    policy = RetryPolicy(retries=5, backoff_ms=100, backoff_max_ms=500)
    waits = [[policy.wait_s(ValueError(), attempts, 0) or 0 for _ in range(50)] for attempts in range(1, 6)]
    for each, expected in zip(waits, (0.1, 0.2, 0.4, 0.5, 0.5), strict=True):
        assert all(0.8 * expected <= wait <= 1.2 * expected for wait in each)
        assert len(set(each)) > 40
    assert policy.wait_s(ValueError(), 6, 0) is None


def test_no_retry_is_later_than_the_timeout() -> None:
    policy = RetryPolicy(retries=100, timeout_ms=1_000, backoff_ms=100)
    assert policy.wait_s(ValueError(), 1, 0.8) is not None
    assert policy.wait_s(ValueError(), 1, 0.95) is None


@pytest.mark.parametrize("name", ["retries", "timeout_ms", "backoff_ms", "backoff_max_ms"])
def test_zero_is_allowed_and_negative_numbers_are_refused(name: str) -> None:
    assert getattr(RetryPolicy(**{name: 0}), name) == 0
    with pytest.raises(UsageError, match="must not be negative"):
        RetryPolicy(**{name: -1})


def test_defaults_are_those_of_the_docstring() -> None:
    assert RetryPolicy() == RetryPolicy(3, None, 100, 10_000, (Exception,))
    assert RetryPolicy(retries=0).wait_s(ValueError(), 1, 0) is None
    assert RetryPolicy(timeout_ms=0).wait_s(ValueError(), 1, 0) is None
    assert RetryPolicy(timeout_ms=0, backoff_ms=0).wait_s(ValueError(), 1, 0) == 0


def test_dead_letter_has_the_names_of_kafka_connect_after_the_headers_of_the_record() -> None:
    old = [("trace", b"1"), ("__connect.errors.topic", b"older"), ("none", None)]
    message = ConsumerMessage("orders", 3, 17, 1_700_000_000_000, 0, b"k", b"v", old)
    assert list(dead_letter_headers(message, ZeroDivisionError("é \ud800"))) == [
        *old,
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"17"),
        ("__connect.errors.timestamp", b"1700000000000"),
        ("__connect.errors.exception.class.name", b"builtins.ZeroDivisionError"),
        ("__connect.errors.exception.message", "é ?".encode()),
    ]


def test_exception_without_text_has_a_dead_letter() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise TypeError

    message = ConsumerMessage("orders", 0, 1, -1, -1, None, None, None)
    headers = dict(dead_letter_headers(message, Unprintable()))
    assert headers["__connect.errors.exception.message"] == b""
