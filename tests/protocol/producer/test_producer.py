"""The columnar producer on a real Kafka without faults: other clients read the rows sent."""

from __future__ import annotations

import random
import time
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, UsageError
from protocol.producer.producer import Producer
from protocol.producer.results import RecordMetadata
from protocol.records.batch_header import HEADER_BYTES
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.producer.producing import HEADERS, assert_all_once_in_order, numbered, producer_of, send_numbered
from tests.support.internals import assembler_of
from tests.support.read_back import read_back


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

    def test_keys_go_to_the_partitions_of_librdkafka(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        rng = random.Random(5)
        keys = [rng.randbytes(rng.randrange(1, 40)) for _ in range(10_000)]
        same = {"murmur2": "murmur2_random", "fnv1a": "fnv1a_random", "crc32": "consistent_random"}
        for ours, reference in same.items():
            name = topic(7)
            second = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": reference})
            for key in keys:
                second.produce(name, key=key, value=b"theirs")
            assert second.flush(30) == 0
            with producer_of(kafka.bootstrap_servers, {"batch.size": 100_000, "partitioner.class": ours}) as producer:
                columns = {"key": pa.array(keys, pa.binary()), "value": pa.array([b"ours"] * len(keys), pa.binary())}
                producer.send_columns(name, pa.RecordBatch.from_pydict(columns))
            placed: dict[bytes | None, set[tuple[bytes | None, int]]] = {}
            for record in read_back(kafka, name):
                placed.setdefault(record.value, set()).add((record.key, record.partition))
            assert len(placed[b"ours"]) == len(set(keys))
            assert placed[b"ours"] == placed[b"theirs"], ours


class TestBatching:
    def test_memory_stays_bounded_during_continuous_sends(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(40)
        bound = 150_000
        most = 0
        options = {"batch.size": 1_000_000, "buffer.memory": bound}
        with producer_of(kafka.bootstrap_servers, options) as producer:
            for first in range(0, 8_000, 500):
                send_numbered(producer, name, first, 500, 40)
                with assembler_of(producer)._lock:  # otherwise rows just being passed on may be counted twice
                    most = max(most, producer.held_bytes)
        # Rows are admitted by their own size; record batches, which are made meanwhile, also have headers.
        assert 0 < most <= bound + 40 * 2 * HEADER_BYTES
        assert_all_once_in_order(kafka, name, 8_000, 40)


def test_synchronous_sends_return_partitions_and_offsets(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(2)
    with Producer({"bootstrap.servers": kafka.bootstrap_servers}, linger_ms=600_000) as producer:
        first, second = (
            producer.send_columns(name, numbered(at, 3), np.array(partitions, np.int32))
            for at, partitions in ((0, [0, 0, 0]), (3, [1, 0, 1]))
        )
        third = producer.send_and_wait(name, "single", key=b"k", partition=1, timestamp_ms=5)
        first, second = first.result(), second.result()
    assert (first["partition"].to_pylist(), first["offset"].to_pylist()) == ([0, 0, 0], [0, 1, 2])
    assert (second["partition"].to_pylist(), second["offset"].to_pylist()) == ([1, 0, 1], [0, 3, 1])
    assert third == RecordMetadata(name, 1, 2, 5)
    assert [(record.value or b"")[:9] for record in read_back(kafka, name)] == [
        *(b"%09d" % number for number in (0, 1, 2, 4, 3, 5)),
        b"single",
    ]


class TestRefusals:
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
            assert "80" in str(raised.value)
            producer.flush()
        assert [record.value for record in read_back(kafka, name)] == values[:70] + values[71:]

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
