"""A streaming query that is stopped or fails in the middle of a micro-batch."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from protocol.cluster import unknown_topic
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.sink.stream_writer import KafkaStreamWriter
from spark_kafka_source.sink.task_writer import TaskWritten
from tests.conftest import TopicFactory
from tests.support.read_back import read_back
from tests.support.wait_until import wait_until

ROWS = 500
LAST = f"{ROWS - 1:03}"


class WatchedSink(DataSource):
    """Our sink; log lines of Spark's Python processes are appended to the file of the option `log`.

    A task waits one second, not ten, for a partition that does not exist.
    """

    @classmethod
    def name(cls) -> str:
        return "watched-sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = dict(self.options)
        log = options.pop("log")

        class Watched(KafkaStreamWriter):  # type: ignore[misc]
            def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
                _log_to(log)
                # Only during this task: Spark's Python workers also run tasks of other tests.
                with patch.object(unknown_topic, "TRANSIENT_UNKNOWN_MS", 1_000):
                    return super().write(iterator)

            def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
                _log_to(log)
                super().abort(messages, batchId)

        return Watched(parse_sink_options(options), schema)


def _log_to(path: str) -> None:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return the file whose creation releases the last row of the batch."""
    return tmp_path / "gate"


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path, gate: Path) -> Iterator[DataFrame]:
    """Return a stream of one micro-batch with one task. Many Arrow batches: most rows are written before the last."""
    folder, present = tmp_path / "lines", str(gate)
    folder.mkdir()
    (folder / "lines.txt").write_text("".join(f"{row:03}{'.' * 1000}\n" for row in range(ROWS)))

    def wait_for_gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch["value"][-1].as_py().startswith(LAST):
                wait_until(Path(present).exists, timeout_s=300, every_s=0.05)
            yield batch

    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "20")
    yield spark.readStream.format("text").load(str(folder)).mapInArrow(wait_for_gate, "value string")
    spark.conf.set(setting, before)


@pytest.fixture
def start(spark: SparkSession, kafka1: LocalKafka, tmp_path: Path) -> Callable[[DataFrame, str], StreamingQuery]:
    def start(rows: DataFrame, topic: str) -> StreamingQuery:
        spark.dataSource.register(WatchedSink)
        options = {
            "kafka.bootstrap.servers": kafka1.bootstrap_servers,
            "kafka.batch.size": "5000",
            "kafka.default.api.timeout.ms": "15000",  # longer than the wait for an unknown partition
            "topic": topic,
            "log": str(tmp_path / "log"),
            "checkpointLocation": str(tmp_path / "checkpoint"),
        }
        return rows.writeStream.format("watched-sink").options(**options).trigger(availableNow=True).start()

    return start


def wait_for_some(kafka: LocalKafka, topic: str, query: StreamingQuery) -> None:
    wait_until(lambda: read_back(kafka, topic) or not query.isActive, timeout_s=60, every_s=0.1)
    assert query.isActive, query.exception()


def numbers(kafka: LocalKafka, topic: str) -> set[bytes]:
    return {(record.value or b"")[:3] for record in read_back(kafka, topic)}


def test_stream_stopped_within_batch_logs_no_warning_and_resumes_it(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    rows: DataFrame,
    start: Callable[[DataFrame, str], StreamingQuery],
    gate: Path,
    tmp_path: Path,
) -> None:
    """Slow: stops a stream while its task writes, and restarts it."""
    name = topic1(1)
    query = start(rows, name)
    wait_for_some(kafka1, name, query)
    query.stop()
    # Spark may cancel the job before it interrupts the query; then the query fails.
    assert query.exception() is None or "abort" in str(query.exception())
    assert LAST.encode() not in numbers(kafka1, name)
    log = (tmp_path / "log").read_text()
    assert not re.search("^(WARNING|ERROR|CRITICAL)", log, re.MULTILINE), log
    gate.touch()
    assert start(rows, name).awaitTermination(60)
    assert numbers(kafka1, name) == {f"{row:03}".encode() for row in range(ROWS)}


def test_stream_failed_within_batch_reports_cause_and_written_rows(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    rows: DataFrame,
    start: Callable[[DataFrame, str], StreamingQuery],
    gate: Path,
) -> None:
    name = topic1(1)
    query = start(rows.selectExpr("value", f"if(value LIKE '{LAST}%', 7, 0) AS partition"), name)
    wait_for_some(kafka1, name, query)
    gate.touch()
    with pytest.raises(StreamingQueryException) as failure:
        query.awaitTermination(60)
    assert "partition 7 was requested" in str(failure.value)
    assert re.search(rf"Before that, Kafka acknowledged rows of this task: \d+ rows to {name}", str(failure.value))
