"""The rows that Kafka has acknowledged, in a log line and in errors; checks and pickling of `foreachBatch`."""

from __future__ import annotations

import pickle
import pickletools

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from protocol.errors import ConfigurationError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.producer.results import ProducedRange
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source import foreach_batch_writer
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.sink.columns import plan_sink
from spark_kafka_source.sink.stream_writer import KafkaStreamWriter
from spark_kafka_source.sink.task_writer import TaskWriter, TaskWritten, summary, written_topics


def written(acknowledged: dict[TopicPartition, ProducedRange]) -> TaskWritten:
    return TaskWritten(written_topics(acknowledged))


def test_log_line_sums_rows_and_partitions_by_topic() -> None:
    first = written({("orders", 0): ProducedRange(0, 9, 10), ("orders", 1): ProducedRange(5, 9, 5)})
    second = written({("orders", 1): ProducedRange(10, 10, 1), ("audit", 0): ProducedRange(-1, -1, 2)})
    messages = [pickle.loads(pickle.dumps(message)) for message in (first, second)]
    assert summary(messages) == "18 rows to orders (16 in 2 partitions), audit (2 in 1 partitions) in 2 tasks"


def test_log_line_counts_unfinished_and_empty_tasks() -> None:
    assert summary([TaskWritten({}), None]) == "no rows in 1 tasks, 1 did not finish"


def test_commit_message_of_3000_partitions_is_small_and_its_log_line_short() -> None:
    names = [f"team.orders.events.v1.{number:04}" for number in range(1000)]
    ranges = {(name, partition): ProducedRange(10**9, 10**9 + 99, 100) for name in names for partition in range(3)}
    message = written({**ranges, ("team.audit", 0): ProducedRange(0, 999, 1_000)})
    assert len(pickle.dumps(message)) < 45_000
    assert summary([message, message]) == (
        "602000 rows to team.audit (2000 in 1 partitions), team.orders.events.v1.0000 (600 in 3 partitions), "
        "team.orders.events.v1.0001 (600 in 3 partitions) and 998 more in 2 tasks"
    )
    one_topic = written({("orders", partition): ProducedRange(0, 99, 100) for partition in range(3_000)})
    assert len(pickle.dumps(one_topic)) < 1_000


def test_stream_stopped_in_mid_batch_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Spark calls `abort` when it stops a query and when a task fails, with None for each task that it killed."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    writer = KafkaStreamWriter(parse_sink_options(options), StructType().add("value", "string"))
    with caplog.at_level("INFO"):
        writer.abort([written({("t", 0): ProducedRange(0, 9, 10)}), None, None], 30)
    (line,) = caplog.records
    assert line.levelname == "INFO"
    assert "batch 30 is not complete, and is written again when the query resumes: 10 rows to t" in line.getMessage()


def test_error_before_the_first_row_names_no_rows_of_the_previous_task(kafka_fake: FakeKafka) -> None:
    """Tasks of a worker process use one producer after the other."""
    plan = plan_sink(StructType().add("topic", "string").add("value", "string"), None)
    kafka_fake.create_topic("t")
    options = parse_sink_options({"kafka.bootstrap.servers": kafka_fake.bootstrap_servers})
    writer = TaskWriter(options.client, options.producer, plan)
    assert writer.write([pa.record_batch({"topic": ["t"], "value": ["a"]})]).topics["t"].rows == 1
    with pytest.raises(UsageError, match="null topic") as raised:
        writer.write([pa.record_batch({"topic": pa.array([None], pa.string()), "value": ["b"]})])
    assert "acknowledged" not in str(raised.value)


CONNECT = {"kafka.bootstrap.servers": "localhost:9092"}


def test_wrong_options_are_refused_before_query_starts() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.acks is '7'"):
        foreach_batch_writer({**CONNECT, "kafka.acks": 7})


def test_option_values_may_be_numbers_and_booleans() -> None:
    written = foreach_batch_writer({**CONNECT, "kafka.linger.ms": 5, "kafka.enable.idempotence": True})
    assert dict(written.options)["kafka.linger.ms"] == "5"
    assert dict(written.options)["kafka.enable.idempotence"] == "true"


def test_writer_is_pickled_by_name_and_repr_hides_values() -> None:
    """A Spark Connect server unpickles it from its own installation, independent of the client's Python version."""
    written = foreach_batch_writer({**CONNECT, "topic": "orders"})
    sent = cloudpickle.dumps(written)
    assert pickle.loads(sent) == written
    assert "spark_kafka_source.sink.foreach_batch" in {value for _, value, _ in pickletools.genops(sent)}
    assert "localhost" not in repr(written)
