"""The producer on a real Kafka: other clients read the rows, results match the log, and rows survive killed brokers."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import BrokerError, DeadlineExceeded, UsageError
from protocol.producer.idempotence import IdempotentSession, ProducerIdentity
from protocol.producer.producer import Producer
from protocol.producer.results import RecordMetadata
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.producer.producing import (
    HEADERS,
    TOPIC,
    WAIT_S,
    assert_all_once_in_order,
    nothing_written,
    numbered,
    producer_of,
    send_numbered,
)
from tests.support.internals import sender_of
from tests.support.kafka_proxy import Fate, KafkaProxy
from tests.support.read_back import read_back
from tests.support.soak import SOAK


class TestRowsRead:
    @pytest.mark.parametrize(
        ("codec", "level"),
        [("none", {}), ("gzip", {"compression.gzip.level": 1}), ("snappy", {}), ("lz4", {}), ("zstd", {})],
    )
    def test_keys_values_headers_and_timestamps_arrive(
        self, kafka: LocalKafka, topic: TopicFactory, codec: str, level: dict[str, object]
    ) -> None:
        name = topic(2)
        columns = pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"k", None, b"", b"\xff" * 300], pa.binary()),
                "value": pa.array([b"v", b"", None, b"x" * 5_000], pa.binary()),
                "timestamp_ms": pa.array([1_700_000_000_000, None, 0, 1_700_000_000_001], pa.int64()),
                "headers": pa.array(
                    [
                        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
                        None,
                        [],
                        [{"key": "ü", "value": b""}],
                    ],
                    HEADERS,
                ),
            }
        )
        before_ms = int(time.time() * 1000)
        with producer_of(kafka.bootstrap_servers, {"compression.type": codec, **level}) as producer:
            producer.send_columns(name, columns, pa.array([1, 1, 1, 1], pa.int32()))
        records = read_back(kafka, name)
        assert [(record.partition, record.key, record.value) for record in records] == [
            (1, b"k", b"v"),
            (1, None, b""),
            (1, b"", None),
            (1, b"\xff" * 300, b"x" * 5_000),
        ]
        assert [record.headers for record in records] == [(("a", b"1"), ("a", None)), None, None, (("ü", b""),)]
        assert [records[n].timestamp_ms for n in (0, 2, 3)] == [1_700_000_000_000, 0, 1_700_000_000_001]
        assert before_ms <= records[1].timestamp_ms <= time.time() * 1000


class TestRefusals:
    def test_record_too_large_for_the_broker_fails_alone(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(1, config={"max.message.bytes": "5000"})
        values = [b"%03d" % number if number != 70 else b"x" * 8_000 for number in range(120)]
        with producer_of(kafka.bootstrap_servers) as producer:
            # An early reply may arrive before the flush.
            with pytest.raises(BrokerError) as raised:  # noqa: PT012
                producer.send_columns(name, pa.RecordBatch.from_pydict({"value": pa.array(values)}))
                producer.flush()
            assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
            assert "max.message.bytes" in str(raised.value)
            assert f"{name}-0 at 127.0.0.1" in str(raised.value)
            producer.flush()
        assert [record.value for record in read_back(kafka, name)] == values[:70] + values[71:]

    def test_records_above_the_request_size_fail_alone(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(2)
        values = [b"%03d" % number if number not in (50, 70) else b"x" * 20_000 for number in range(100)]
        partitions = np.arange(100, dtype=np.int32) % 2
        with producer_of(kafka.bootstrap_servers, {"max.request.size": 10_000, "batch.size": 100}) as producer:
            sent = producer.send_columns(name, pa.RecordBatch.from_pydict({"value": pa.array(values)}), partitions)
            errors, result = sent.errors(), sent.columns()
        assert list(errors) == [50, 70]
        message = "(row 50 of its batch, which has 1 more: 70)", "20", "more than max.request.size (10000)"
        for part in (name, *message, "max.message.bytes"):
            assert part in str(errors[50])
        offsets = iter(range(48)), iter(range(50))
        expected = [(-1, -1) if row in errors else (row % 2, next(offsets[row % 2])) for row in range(100)]
        assert list(zip(result["partition"].to_pylist(), result["offset"].to_pylist(), strict=True)) == expected
        written = {(record.partition, record.offset): record.value for record in read_back(kafka, name)}
        assert written == {where: values[row] for row, where in enumerate(expected) if row not in errors}

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ([("key", b"k")], "column value is missing"),
            ([("value", b"v"), ("offset", 1)], "offset is not a column of a record"),
            ([("value", 1)], "column value is int64; it must be binary"),
            ([("value", b"v"), ("timestamp_ms", 1.5)], "timestamp_ms is double"),
            ([("value", b"v"), ("value", b"w")], "value is the name of 2 columns"),
        ],
    )
    def test_invalid_columns_are_named(self, columns: list[tuple[str, object]], message: str) -> None:
        names, values = zip(*columns, strict=True)
        rows = pa.RecordBatch.from_arrays([pa.array([value]) for value in values], names=list(names))
        with pytest.raises(UsageError, match=message), producer_of("127.0.0.1:1") as producer:
            producer.send_columns("t", rows)

    @pytest.mark.parametrize("rows", [0, 1])
    def test_topic_that_is_no_string_is_named(self, rows: int) -> None:
        topic: Any = b"t"
        with (
            pytest.raises(UsageError, match=r"topic is b't'; it must be a str"),
            producer_of("127.0.0.1:1") as producer,
        ):
            producer.send_columns(topic, numbered(0, rows))


def in_log(kafka: LocalKafka, topic: str) -> dict[bytes | None, tuple[int, int, int]]:
    """Return (partition, offset, timestamp) by value."""
    return {record.value: (record.partition, record.offset, record.timestamp_ms) for record in read_back(kafka, topic)}


def in_result(columns: pa.RecordBatch, result: pa.RecordBatch) -> dict[bytes | None, tuple[int, int, int]]:
    rows = zip(*(result.column(name).to_pylist() for name in ("partition", "offset", "timestamp_ms")), strict=True)
    return dict(zip(columns.column("value").to_pylist(), rows, strict=True))


class TestColumns:
    @pytest.mark.parametrize("settings", [{}, {"message.timestamp.type": "LogAppendTime"}])
    def test_results_of_rows_match_the_log(
        self, kafka: LocalKafka, topic: TopicFactory, settings: dict[str, str]
    ) -> None:
        name = topic(7, config={"max.message.bytes": "2500", **settings})
        rng, now_ms = random.Random(3), int(time.time() * 1_000)
        values_by_key = {}
        # The broker refuses some record batches, which are split.
        with producer_of(kafka.bootstrap_servers, {"batch.size": 6_000}) as producer:
            calls = []
            for first in range(0, 2_000, 250):
                columns = numbered(first, 250)
                times = [rng.choice([None, now_ms - 5_000 - first]) for _ in range(250)]
                columns = columns.append_column("timestamp_ms", pa.array(times, pa.int64()))
                inputs = pa.array([rng.choice([None, 0, 3]) for _ in range(250)], pa.int32())
                calls.append((columns, producer.send_columns(name, columns, inputs)))
            for columns, sent in calls:
                values_by_key.update(in_result(columns, sent.result(20_000)))
        assert values_by_key == in_log(kafka, name)
        assert len(values_by_key) == 2_000

    def test_result_is_awaited_until_its_deadline(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers) as producer:
            with nothing_written(broker):
                sent = producer.send_columns(TOPIC, numbered(0, 2))
                with pytest.raises(DeadlineExceeded, match="2 of 2 rows sent to t are not acknowledged in time"):
                    sent.result(50)
            assert sent.result(20_000).num_rows == 2

    def test_result_of_no_rows_is_done_at_once(self) -> None:
        with producer_of("127.0.0.1:1") as producer:
            sent = producer.send_columns("t", numbered(0, 0))
            assert sent.done
            assert sent.result().num_rows == 0


class TestMessages:
    def test_fields_of_messages_are_written(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(2)
        with producer_of(kafka.bootstrap_servers) as producer:
            headers = [("a", b"1"), ("a", None), ("ü", b"")]
            first = producer.send(name, "text", key="k", headers=headers, timestamp_ms=5, partition=1)
            producer.send(name, None, key=b"gone", partition=1)
            producer.send(name, b"", partition=1)
            assert first.result(WAIT_S) == RecordMetadata(name, 1, 0, 5)
        records = read_back(kafka, name)
        assert [(record.key, record.value) for record in records] == [(b"k", b"text"), (b"gone", None), (None, b"")]
        assert records[0].headers == tuple(headers)
        assert records[0].timestamp_ms == 5

    @pytest.mark.parametrize("error", [ValueError("I do not like it"), SystemExit("I do not like it")])
    def test_failing_custom_partitioner_fails_only_its_call(
        self, kafka: LocalKafka, topic: TopicFactory, error: BaseException
    ) -> None:
        name = topic(2)

        def choose(topic: str, columns: pa.RecordBatch, count: int) -> np.ndarray:
            if b"bad" in columns.column("value").to_pylist():
                raise error
            return np.full(columns.num_rows, 1, np.int32)

        sent = [(b"bad", None), (b"good", None), (b"bad", 0), (b"x" * 9_000, None), (b"good", None)]
        settings = {"linger.ms": 200, "max.request.size": 5_000}
        with producer_of(kafka.bootstrap_servers, settings, partitioner=choose) as producer:
            columns = producer.send_columns(name, pa.RecordBatch.from_pydict({"value": [b"columns"]}))
            futures = [producer.send(name, value, partition=partition) for value, partition in sent]
            assert "I do not like it" in str(futures[0].exception(WAIT_S))
            assert "more than max.request.size" in str(futures[3].exception(WAIT_S))
            written = [futures[number].result(WAIT_S) for number in (1, 2, 4)]
            assert [(metadata.partition, metadata.offset) for metadata in written] == [(1, 1), (0, 0), (1, 2)]
            assert columns.result().column("offset").to_pylist() == [0]
            with pytest.raises(type(error), match="I do not like it"):
                producer.send_columns(name, pa.RecordBatch.from_pydict({"value": [b"bad"]}))
            assert producer.send(name, b"good").result(WAIT_S).partition == 1


@pytest.fixture
def proxy(kafka: LocalKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy.of(kafka) as running:
        yield running


def test_rows_survive_a_leader_that_resumes_after_another_took_over(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(6, replication_factor=3, config={"min.insync.replicas": "2"})
    with producer_of(kafka.bootstrap_servers, {"request.timeout.ms": 2_000}) as producer:
        send_numbered(producer, name, 0, 6, 6)
        producer.flush()
        victim = producer.client.leader(name, 0)[0].node_id
        try:
            kafka.pause(victim)
            for first in range(6, 6_006, 600):
                send_numbered(producer, name, first, 600, 6)
            producer.flush()
        finally:
            kafka.resume(victim)
        # Requests still in the old leader's sockets must have no effect.
        for first in range(6_006, 9_006, 600):
            send_numbered(producer, name, first, 600, 6)
        producer.flush()
    assert_all_once_in_order(kafka, name, 9_006, 6)


@pytest.mark.soak
def test_rows_survive_killed_leaders_and_lost_replies_under_load(
    kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
) -> None:
    """Slow: a broker is killed and starts again, and each cut connection waits for the replicas."""
    name = topic(12, replication_factor=3, config={"min.insync.replicas": "2"})
    count, kills = (1_000_000, 8) if SOAK else (50_000, 1)
    proxy.replies[PRODUCE] = lambda reply: Fate.CUT if reply.number % 40 == 0 else Fate.PASS
    max_in_flight, killed, down = 0, 0, None
    # Rows in memory must be written within delivery.timeout.ms, also by brokers of a busy machine.
    properties = {"batch.size": 2_048, "buffer.memory": 4 << 20}
    try:
        with producer_of(proxy.servers, properties) as producer:
            for first in range(0, count, 1_000):
                send_numbered(producer, name, first, 1_000, 12)
                max_in_flight = max(max_in_flight, sender_of(producer).in_flight)
                if down is None and first * (kills + 1) >= (killed + 1) * count and sender_of(producer).in_flight:
                    down = producer.client.leader(name, killed % 12)[0].node_id
                    kafka.kill(down)
                    killed += 1
                elif down is not None and first * 2 * (kills + 1) >= (2 * killed + 1) * count:
                    kafka.start(down)
                    down = None
            producer.flush()
    finally:
        if down is not None:
            kafka.start(down)
    assert killed == kills
    assert max_in_flight >= 5
    assert_all_once_in_order(kafka, name, count, 12)


def test_last_epoch_is_followed_by_a_new_producer_id(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(1)
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        session, deadline = IdempotentSession(client), client.deadline()
        first = session.identity(deadline)
        assert session.successor(first, deadline) == ProducerIdentity(first.producer_id, 1)
        last = ProducerIdentity(first.producer_id, 32_767)
        second = session.successor(last, deadline)
        assert second.producer_id != first.producer_id
        assert second.producer_epoch == 0
        assert session.successor(last, deadline) == second, "all partitions share one new id"
        with Producer(client, {"batch.size": 4_096}, session=session) as producer:
            send_numbered(producer, name, 0, 100, 1)
    assert_all_once_in_order(kafka, name, 100, 1)
