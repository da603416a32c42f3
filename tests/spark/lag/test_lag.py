"""Lag of queries equals that of Spark's own connector, lag of groups that of Kafka's command-line tool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from protocol.errors import BrokerError, ConfigurationError
from spark_kafka_source.lag import HISTORY_SCHEMA, LagListener, lag_of_group, lag_of_query
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import described_by_kafka, move_group
from tests.support.member_queries import new_group
from tests.support.spark_frames import JVM, OURS, await_end, stream
from tests.support.wait_for_brokers import wait_until_decided
from tests.support.wait_until import attempts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_MS = 60_000


def produce(
    kafka: LocalKafka, topic: str, counts: dict[int, int], age_ms: int = 0, step_ms: int = 1000, **settings: Any
) -> None:
    """Write `counts[partition]` records per partition: the first is `age_ms` old, each next one `step_ms` younger."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    now_ms = time.time_ns() // 1_000_000
    for partition, count in counts.items():
        for i in range(count):
            producer.produce(topic, b"v", b"k%d" % i, partition, timestamp=now_ms - age_ms + i * step_ms)
    assert producer.flush(30) == 0


# -- a group, as Kafka's tool sees it -------------------------------------------------------------


def test_lag_of_group_equals_kafka_consumer_groups(
    kafka1: LocalKafka, topic1: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, group = topic1(3), topic1(1), new_group()
    produce(kafka1, first, {0: 10, 1: 5})
    produce(kafka1, second, {0: 4})
    move_group(kafka1, group, {(first, 0): 3, (first, 1): 5, (second, 0): 1})
    lag = lag_of_group(kafka1.bootstrap_servers, group)
    expected = {
        (row.topic, row.partition): (row.current_offset, row.log_end_offset, row.lag)
        for row in described_by_kafka(kafka1, group)
    }
    ours = {(row.topic, row.partition): (row.committed, row.end, row.offsets_behind) for row in lag}
    # The tool leaves out partitions without an offset when the group has no members.
    assert ours == {**expected, (first, 2): (None, 0, None)}
    assert len(expected) == 3
    assert lag.offsets_behind == 7 + 3

    only = lag_of_group({"kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": "x"}, group, [second])
    assert [(row.topic, row.offsets_behind) for row in only] == [(second, 3)]
    assert not caplog.records
    assert len(lag_of_group(kafka1.bootstrap_servers, misspelled := new_group())) == 0
    assert caplog.messages == [f"group {misspelled} has committed no offsets; is that its name?"]
    with pytest.raises(BrokerError, match="no-such-topic"):
        lag_of_group(kafka1.bootstrap_servers, group, ["no-such-topic"])
    with pytest.raises(ConfigurationError, match=r"kafka\.fetch\.min\.bytes"):
        lag_of_group({"kafka.bootstrap.servers": kafka1.bootstrap_servers, "kafka.fetch.min.bytes": "x"}, group)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_seconds_behind_equal_age_of_first_uncommitted_record(
    kafka1: LocalKafka, topic1: TopicFactory, codec: str
) -> None:
    name, group = topic1(3), new_group()
    produce(kafka1, name, {0: 10, 1: 10}, 10 * MINUTE_MS, MINUTE_MS, **{"compression.codec": codec})
    move_group(kafka1, group, {(name, 0): 4, (name, 1): 10, (name, 2): 0})
    lag = lag_of_group(kafka1.bootstrap_servers, group)
    seconds = [row.seconds_behind for row in lag]
    assert seconds[0] == pytest.approx(6 * 60, abs=30)
    assert seconds[1:] == [0.0, 0.0]
    assert lag.seconds_behind == seconds[0]
    assert [row.seconds_behind for row in lag_of_group(kafka1.bootstrap_servers, group, seconds=False)] == [None] * 3


def test_lag_with_read_committed_ends_at_last_stable_offset(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name, group = topic1(1), new_group()
    produce(kafka1, name, {0: 2}, age_ms=MINUTE_MS)
    move_group(kafka1, group, {(name, 0): 0})
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "transactional.id": f"txn-{group}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"open")
    producer.flush(30)
    committed = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "kafka.isolation.level": "read_committed"}
    assert lag_of_group(kafka1.bootstrap_servers, group).offsets_behind == 3
    assert lag_of_group(committed, group).offsets_behind == 2
    producer.abort_transaction(30)
    wait_until_decided(kafka1, [(name, 0)])
    # Only an aborted record and its marker are left: a lag in offsets, but no record with an age.
    move_group(kafka1, group, {(name, 0): 2})
    (row,) = lag_of_group(committed, group)
    assert (row.offsets_behind, row.seconds_behind) == (2, None)


# -- a query, as Spark's own connector sees it ----------------------------------------------------


@pytest.fixture
def listener(spark: SparkSession, kafka1: LocalKafka) -> Iterator[LagListener]:
    listening = LagListener(options={"kafka.bootstrap.servers": kafka1.bootstrap_servers})
    spark.streams.addListener(listening)
    yield listening
    spark.streams.removeListener(listening)


def test_lag_of_query_equals_jvm_connector(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, listener: LagListener
) -> None:
    name = topic1(2)
    produce(kafka1, name, {0: 60, 1: 40}, age_ms=5 * MINUTE_MS)
    produced_s = time.monotonic()

    def run(source: str) -> Any:
        rows = stream(spark, kafka1, source, subscribe=name, maxOffsetsPerTrigger=40)
        writer = rows.writeStream.format("noop").queryName(source.replace("-", "_"))
        query = writer.option("checkpointLocation", str(tmp_path / source)).trigger(availableNow=True).start()
        await_end(query)
        return query

    expected, ours = run(JVM), run(OURS)
    expected_metrics = [
        {key: float(value) for key, value in progress["sources"][0]["metrics"].items() if "OffsetsBehind" in key}
        for progress in expected.recentProgress
        if progress["sources"][0]["metrics"]
    ]
    batches = [progress for progress in ours.recentProgress if progress.numInputRows]
    assert len(batches) == 3
    assert [lag_of_query(progress).metrics() for progress in batches] == expected_metrics[: len(batches)]
    assert lag_of_query(expected.recentProgress[0]).metrics() == expected_metrics[0]
    assert lag_of_query(ours).offsets_behind == 0
    assert lag_of_query(batches[0]).offsets_behind == 60

    for _ in attempts(every_s=0.05):
        if len(times := [sample for sample in listener.history if sample.query == "pykafka_group"]) >= 3:
            break
    assert [(sample.batch, sample.lag.offsets_behind) for sample in times[:3]] == [(0, 60), (1, 20), (2, 0)]
    # The first batch ends at 24 of 60 and 16 of 40, and the records are a second apart.
    assert 5 * 60 - 24 <= times[0].lag.seconds_behind <= 5 * 60 + time.monotonic() - produced_s
    assert listener.latest["pykafka_group"].offsets_behind == 0
    table = listener.to_arrow()
    assert table.schema == HISTORY_SCHEMA
    assert table.num_rows >= 6
