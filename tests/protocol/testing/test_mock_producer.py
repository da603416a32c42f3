"""`MockProducer`: expectations in order, results as of a real producer, and failures of unmet expectations."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pytest

import protocol
from protocol.broker_errors import broker_error
from protocol.errors import BrokerError, UsageError
from protocol.testing import FakeKafka, MockProducer

REFUSED = broker_error(87, "produce to orders-0")


def test_methods_are_those_of_the_producer() -> None:
    for name, reference in inspect.getmembers(protocol.Producer, lambda member: inspect.isfunction(member)):
        if not name.startswith("_") and name != "reset_sequences":
            assert inspect.signature(getattr(MockProducer, name)) == inspect.signature(reference), name


def test_results_equal_those_of_a_real_producer() -> None:
    def use(producer: Any) -> list[object]:
        first = producer.send("orders", b"1", key=b"k", timestamp_ms=5)
        producer.flush()
        second = producer.send_and_wait("orders", "2", key="k", timestamp_ms=6)
        columns = pa.RecordBatch.from_pydict({"value": [b"3", None], "key": [b"k", b"k"], "timestamp_ms": [7, 8]})
        rows = producer.send_columns("orders", columns)
        acknowledged = [rows.result().to_pydict(), dict(producer.acknowledged)]
        many = producer.send_many([("orders", "4", "k"), protocol.ProducerMessage("orders", "5", timestamp_ms=9)])
        producer.flush()
        producer.close()
        return [first.result(), second, *acknowledged, many[0].offset, many[1].timestamp_ms, producer.acknowledged]

    with FakeKafka() as kafka:
        kafka.create_topic("orders", 3)
        with protocol.Producer(bootstrap_servers=kafka.bootstrap_servers) as real:
            expected = use(real)
    with MockProducer({"orders": 3}) as mock:
        mock.expect_send("orders", times=6)
        assert use(mock) == expected


def test_given_fields_are_compared() -> None:
    with MockProducer() as producer:
        producer.expect_send("orders", "1", key="k", headers=[("h", b"x")], timestamp_ms=5, partition=0)
        producer.send("orders", b"1", key=b"k", headers=[("h", b"x")], timestamp_ms=5)
        producer.expect_send(headers=[("h", b"x")])
        columns = pa.table(
            {"value": ["1"], "key": ["k"], "timestamp_ms": [5], "headers": [[{"key": "h", "value": "x"}]]}
        )
        producer.send_columns("orders", columns)
    assert producer.sent == 2 * [("orders", 0, b"k", b"1", [("h", b"x")], 5)]


def test_message_with_another_field_raises_in_the_call_and_at_the_end() -> None:
    producer = MockProducer()
    producer.expect_send("orders", b"1")
    with pytest.raises(AssertionError, match="value is b'2', expected b'1'"):
        producer.send("orders", b"2")
    with pytest.raises(AssertionError, match="value is b'2'"):
        producer.close()


@pytest.mark.parametrize("refuse", [lambda message: False, lambda message: pytest.fail("no")])
def test_check_refuses_a_message(refuse: object) -> None:
    producer = MockProducer()
    producer.expect_send(check=refuse)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        producer.send("orders", b"1")


def test_check_that_returns_none_accepts_the_message() -> None:
    with MockProducer() as producer:
        producer.expect_send(check=lambda message: None)
        producer.send("orders", b"1")


def test_unexpected_message_is_refused() -> None:
    producer = MockProducer()
    with pytest.raises(AssertionError, match="was not expected"):
        producer.send("orders", b"1")


def test_missing_messages_fail_the_with_block() -> None:
    producer = MockProducer()
    producer.expect_send("orders", times=3)
    with (
        pytest.raises(AssertionError, match=r"2 expected messages were not sent, first: a message \(topic='orders'"),
        producer,
    ):
        producer.send("orders", b"1")


def test_exception_of_the_block_is_not_replaced_by_missing_messages() -> None:
    producer = MockProducer()
    producer.expect_send("orders")
    with pytest.raises(ZeroDivisionError), producer:
        _ = 1 / 0


def test_expected_error_fails_the_message_alone() -> None:
    with MockProducer() as producer:
        producer.expect_send("orders", error=REFUSED)
        producer.expect_send("orders")
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            producer.send_and_wait("orders", b"1")
        assert producer.send("orders", b"2").result().offset == 0


def test_failed_row_is_raised_by_the_result_or_by_flush() -> None:
    with MockProducer() as producer:
        producer.expect_send("orders", error=REFUSED)
        producer.expect_send("orders")
        producer.expect_send("orders", error=REFUSED)
        columns = pa.RecordBatch.from_pydict({"value": [b"1", b"2"]})
        sent = producer.send_columns("orders", columns)
        assert list(sent.errors()) == [0]
        producer.flush()
        producer.send_columns("orders", columns.slice(0, 1))
        with pytest.raises(BrokerError):
            producer.flush()
        producer.flush()


def test_row_fails_with_the_error_object_of_an_earlier_call() -> None:
    """Requesting the result of the earlier call reports only that one."""
    columns = pa.RecordBatch.from_pydict({"value": [b"1"]})
    with MockProducer() as producer:
        for _ in range(2):
            producer.expect_send("orders", error=REFUSED)
        earlier = producer.send_columns("orders", columns)
        assert list(earlier.errors()) == [0]
        producer.send_columns("orders", columns)
        assert list(earlier.errors()) == [0]
        with pytest.raises(BrokerError):
            producer.flush()


def test_partition_that_the_topic_lacks_is_a_usage_error() -> None:
    producer = MockProducer({"orders": 2})
    with pytest.raises(UsageError, match="orders has no partition 2, only 0 to 1"):
        producer.send("orders", b"1", partition=2)


@pytest.mark.parametrize("topic", [None, 5, ["orders"]])
def test_topic_that_is_no_text_is_a_usage_error(topic: Any) -> None:
    producer = MockProducer()
    producer.expect_send()
    for send in (producer.send, producer.send_and_wait):
        with pytest.raises(UsageError, match=r"topic is .*; it must be a str"):
            send(topic, b"1")
    for values in ([b"1"], []):
        with pytest.raises(UsageError, match=r"topic is .*; it must be a str"):
            producer.send_columns(topic, pa.record_batch({"value": pa.array(values, pa.binary())}))


@pytest.mark.parametrize("topic", ["no such topic", "", ".", "x" * 250])
def test_invalid_topic_name_is_refused_as_by_brokers(topic: str) -> None:
    with FakeKafka() as kafka, protocol.Producer(bootstrap_servers=kafka.bootstrap_servers) as real:
        for producer in (real, MockProducer()):
            columns = pa.record_batch({"value": pa.array([b"1"], pa.binary())})
            for send in (producer.send, producer.send_and_wait):
                with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
                    send(topic, b"1")
            with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
                producer.send_columns(topic, columns)


def test_closed_producer_refuses_messages() -> None:
    producer = MockProducer()
    producer.close()
    with pytest.raises(UsageError, match="closed"):
        producer.send("orders", b"1")


def test_null_partition_is_chosen_and_wrong_ones_are_refused() -> None:
    columns = pa.record_batch({"value": [b"a"]})
    with MockProducer({"orders": 3}) as producer:
        producer.expect_send("orders")
        producer.send_columns("orders", columns, pa.array([None], pa.int32()))
        for inputs, message in (([0, 1], "2 partitions were given for 1 rows"), ([1 << 32], "no 32-bit integers")):
            with pytest.raises(UsageError, match=message):
                producer.send_columns("orders", columns, pa.array(inputs))
