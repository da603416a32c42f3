"""Results of rows and messages match the log, and a too large one fails alone."""

from __future__ import annotations

import random
import time

import numpy as np
import pyarrow as pa
import pytest

from protocol.errors import DeadlineExceeded
from protocol.producer.results import RecordMetadata
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.producer.on_fake import TOPIC, WAIT_S, nothing_written
from tests.protocol.producer.producing import numbered, producer_of
from tests.support.read_back import read_back


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
