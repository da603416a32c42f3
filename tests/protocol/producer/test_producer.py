"""The columnar producer on a real Kafka without faults: other clients read the rows sent."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, UsageError
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.producer.producing import HEADERS, numbered, producer_of
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
