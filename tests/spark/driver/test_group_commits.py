"""Committed offsets of a query's group, read by Kafka's tool: complete, in time, never ahead of the checkpoint."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.support.consumer_groups import describe, described_by_kafka, members_of, move_group, wait_for_lag_zero
from tests.support.member_queries import fill, new_group
from tests.support.noop_queries import row_count, run_query, start_query
from tests.support.soak import variants
from tests.support.spark_frames import streamed
from tests.support.wait_for_brokers import wait_until_decided
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak


NONE, CLASSIC, CONSUMER = "none", "classic", pytest.param("consumer", marks=NEEDS_KIP_848)


def modes(*some: object) -> pytest.MarkDecorator:
    """Run with `some` modes; in `make soak` with all: no group member, or a member of either protocol."""
    return variants("mode", [NONE, CLASSIC, CONSUMER], *some)


def stream(
    spark: SparkSession, kafka: LocalKafka, topic: str, group: str, mode: str = "none", **options: str
) -> DataFrame:
    where = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    where |= {"kafka.group.protocol": mode, "kafka.auto.offset.reset": "earliest"}
    return spark.readStream.format("pykafka-group").options(**where, **options).load()


SEVERAL_BATCHES = pytest.param({"maxOffsetsPerTrigger": "70"}, id="several batches")


@variants("options", [pytest.param({}, id="one batch"), SEVERAL_BATCHES], SEVERAL_BATCHES)
@modes(NONE, CONSUMER)
def test_available_now_leaves_lag_zero_on_all_partitions(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, mode: str, options: dict[str, str]
) -> None:
    name, group = topic1(4), new_group()
    fill(kafka1, name, partitions=3, records=100)
    query = run_query(stream(spark, kafka1, name, group, mode, **options), tmp_path)
    rows = described_by_kafka(kafka1, group)
    assert [(row.partition, row.current_offset, row.lag) for row in rows] == [
        *((partition, 100, 0) for partition in range(3)),
        (3, 0, 0),
    ]
    assert row_count(query) == 300


@modes(CLASSIC)
def test_idle_stream_has_lag_zero(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, mode: str
) -> None:
    name, group = topic1(2), new_group()
    query = start_query(stream(spark, kafka1, name, group, mode), tmp_path, processingTime="200 milliseconds")
    fill(kafka1, name, partitions=2, records=50)
    rows = wait_for_lag_zero(kafka1, group, partitions=2)
    query.stop()
    assert [row.current_offset for row in rows] == [50, 50]


@modes(NONE)
def test_log_ending_in_transaction_marker_has_lag_zero(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, mode: str
) -> None:
    name, group = topic1(1), new_group()
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for n in range(10):
            producer.produce(name, value=f"v{n}", partition=0)
        producer.flush(30)
        end(30)
    wait_until_decided(kafka1, [(name, 0)])
    query = run_query(stream(spark, kafka1, name, group, mode, **{"kafka.isolation.level": "read_committed"}), tmp_path)
    (row,) = described_by_kafka(kafka1, group)
    assert (row.current_offset, row.log_end_offset, row.lag) == (22, 22, 0)
    assert row_count(query) == 10


@modes(CONSUMER)
def test_new_query_resumes_at_committed_offsets_without_gap_or_repeat(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, mode: str
) -> None:
    name, group = topic1(2), new_group()
    for run in range(2):
        fill(kafka1, name, partitions=2, records=5)
        rows = stream(spark, kafka1, name, group, mode).select("partition", "offset")
        result = sorted(tuple(row) for row in streamed(rows, tmp_path / str(run)))
        assert result == [(partition, 5 * run + offset) for partition in range(2) for offset in range(5)]


@modes(NONE, CLASSIC)
def test_restart_resumes_at_checkpoint_and_corrects_committed_offset(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, mode: str
) -> None:
    name, group = topic1(1), new_group()
    for _ in range(2):
        fill(kafka1, name, partitions=1, records=10)
        query = run_query(stream(spark, kafka1, name, group, mode), tmp_path)
        read = row_count(query)
        assert read == 10
        # The member leaves after the query has ended; until then no other client may commit.
        wait_until(lambda: not members_of(kafka1, group), timeout_s=60, every_s=0.05)
        move_group(kafka1, group, {(name, 0): 0})
        assert [row.current_offset for row in describe(kafka1, group)] == [0]
    query = run_query(stream(spark, kafka1, name, group, mode), tmp_path)
    assert [row.current_offset for row in describe(kafka1, group)] == [20]
