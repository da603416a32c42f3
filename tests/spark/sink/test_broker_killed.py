"""A broker is killed while a query writes: no row is lost or duplicated, and every partition keeps its order.

A proxy also drops replies to Produce: a killed broker alone seldom makes a producer repeat a written batch.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from protocol.wire.messages.m00_produce import PRODUCE
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.kafka_proxy import Fate, KafkaProxy
from tests.support.read_back import read_back
from tests.support.soak import SOAK
from tests.support.wait_until import attempts, wait_until

pytestmark = pytest.mark.soak

ROWS = 100_000
PARTITIONS = 6
_ROWS_AT_A_TIME = 1_000
_PAUSE_S = 0.1


@pytest.fixture
def restarted(tmp_path: Path) -> Path:
    """Return the file whose creation releases the last rows."""
    return tmp_path / "restarted"


@pytest.fixture
def slow_rows(spark: SparkSession, restarted: Path) -> Iterator[DataFrame]:
    """Return rows at a pace that lets a broker be killed and restarted meanwhile; the second half is slower."""
    present = str(restarted)

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            time.sleep(_PAUSE_S if number * _ROWS_AT_A_TIME < ROWS // 2 else 2 * _PAUSE_S)
            if batch["id"][-1].as_py() == ROWS - 1:
                wait_until(Path(present).exists, timeout_s=300, every_s=0.05)
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS_AT_A_TIME))
    yield spark.range(0, ROWS, 1, 1).mapInArrow(slowly, "id long")
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not SOAK, reason="takes half a minute; the producer's own tests kill and restart brokers under load"
)
def test_rows_are_written_once_in_order_while_broker_restarts(
    slow_rows: DataFrame, kafka: LocalKafka, topic: TopicFactory, restarted: Path
) -> None:
    name = topic(PARTITIONS, replication_factor=3, config={"min.insync.replicas": "2"})
    rows = slow_rows.selectExpr("concat('k', id % 1000) AS key", "cast(id AS string) AS value")
    with KafkaProxy.of(kafka) as proxy, ThreadPoolExecutor(1) as other_thread:
        proxy.replies[PRODUCE] = lambda reply: Fate.CUT if reply.number % 50 == 0 else Fate.PASS
        # Small record batches, so that many are in flight when the broker is killed.
        options = {"kafka.bootstrap.servers": proxy.servers, "kafka.batch.size": "4096", "topic": name}
        killing = other_thread.submit(kill_and_restart, kafka, name, restarted)
        rows.write.format("pykafka-group").options(**options).mode("append").save()
        held_at_restart = killing.result()
        assert proxy.frame_counts["Produce", "reply"] > 100
    assert held_at_restart < ROWS, "the broker was to die, and come back, in the middle"
    in_order = defaultdict(list)
    for record in read_back(kafka, name):
        in_order[record.partition].append(int(record.value or b""))
    assert set(in_order) == set(range(PARTITIONS))
    for values in in_order.values():
        assert values == sorted(values)
    assert sorted(value for values in in_order.values() for value in values) == list(range(ROWS))


def kill_and_restart(kafka: LocalKafka, topic: str, restarted: Path) -> int:
    """Kill a broker at 5 % of the records and restart it at half; return the number of records at the restart."""
    victim = kafka.broker_ids[1]
    try:
        wait_until_written(kafka, topic, ROWS // 20)
        kafka.kill(victim)
        try:
            return wait_until_written(kafka, topic, ROWS // 2)
        finally:
            kafka.start(victim)
    finally:
        restarted.touch()


def wait_until_written(kafka: LocalKafka, topic: str, records: int) -> int:
    """Wait until the topic has at least this many records; return their number."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "watch", "log_level": 0})
    pending = 0
    try:
        for _ in attempts(120, 0.1):
            if pending >= records:
                return pending
            # Fails during a leader election.
            with suppress(KafkaException):
                partitions = consumer.list_topics(topic, timeout=1).topics[topic].partitions
                ends = [
                    consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=1)
                    for partition in partitions
                ]
                pending = sum(high for _, high in ends)
    finally:
        consumer.close()
    raise AssertionError(f"{topic} holds {pending} of {records} records")
