"""A streaming query as a group member: it shares partitions with other members, and commits its rows.

The other members are queries and librdkafka consumers, in both protocols.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.support.consumer_groups import members_of, set_session_timeout, wait_for_lag_zero
from tests.support.documents import block
from tests.support.member_queries import Key, Run, drivers, fill, new_group, query_of
from tests.support.soak import variants
from tests.support.wait_until import attempts, wait_until

pytestmark = pytest.mark.soak

CLASSIC, CONSUMER = "classic", pytest.param("consumer", marks=NEEDS_KIP_848)


def protocols(*some: object) -> pytest.MarkDecorator:
    """Run with `some` protocols; in `make soak` with both. tests/protocol/group tests the protocols themselves."""
    return variants("protocol", [CLASSIC, CONSUMER], *some)


class Librdkafka:
    """A librdkafka consumer in a thread. `rows` are (partition, offset), each committed after it is added."""

    def __init__(self, kafka: LocalKafka, topic: str, group: str, protocol: str) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "client.id": "librdkafka",
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
        self.rows: list[Key] = []
        self.assignments = 0
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._on_assign)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_assign(self, consumer: Consumer, partitions: list[Any]) -> None:
        self.assignments += 1

    def _run(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            self.rows.append((message.partition(), message.offset()))
            with contextlib.suppress(KafkaException):  # the partition may have been revoked meanwhile
                self._consumer.commit(message, asynchronous=False)
        self._consumer.close()

    def __enter__(self) -> Librdkafka:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def shares(kafka: LocalKafka, group: str) -> list[int]:
    """Return the sorted numbers of partitions per member, from the coordinator."""
    return sorted(len(member.assignment) for member in members_of(kafka, group))


@protocols(CLASSIC)
def test_two_queries_of_one_group_read_each_row_once(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: str
) -> None:
    name, group = topic1(4), new_group()
    fill(kafka1, name, 4, 10)
    # A session timeout longer than a batch on a busy machine.
    long = {"kafka_session_timeout_ms": "40000"} if protocol == "classic" else {}
    if protocol == "consumer":
        set_session_timeout(kafka1, group, 40_000)
    with query_of(spark, kafka1, name, group, protocol, tmp_path / "a", **long) as first:
        first.await_(lambda: len(first.rows) == 40)
        with query_of(spark, kafka1, name, group, protocol, tmp_path / "b", **long) as second:

            def shared() -> bool:
                fill(kafka1, name, 4, 1)
                wait_for_lag_zero(kafka1, group, 4)
                return len(second.partitions) == 2

            second.await_(shared)
        stopped_s, before = time.monotonic(), len(first.rows)
        fill(kafka1, name, 4, 5)
        first.await_(lambda: len(first.rows) >= before + 20)
        assert time.monotonic() - stopped_s < 30, "a stopped query leaves at once, not when its session times out"
        ends = {row.partition: row.current_offset or 0 for row in wait_for_lag_zero(kafka1, group, 4)}
    rows = sorted(first.rows + second.rows)
    assert rows == [(partition, offset) for partition, end in ends.items() for offset in range(end)], "each row once"


@protocols(CONSUMER)
def test_query_takes_over_partitions_after_librdkafka_leaves(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: str
) -> None:
    name, group = topic1(4), new_group()
    options = {"kafka_client_id": "the-query"}
    with query_of(spark, kafka1, name, group, protocol, tmp_path, **options) as ours:
        with Librdkafka(kafka1, name, group, protocol) as librdkafka:
            fill(kafka1, name, 4, 1)
            ours.await_(lambda: shares(kafka1, group) == [2, 2])
            fill(kafka1, name, 4, 10)
            members = kafka1.describe_group(group, "--members", "--verbose")
            assert len(re.findall(rf"{group} .*/127.0.0.1 +the-query +2 ", members)) == 1, members
            assert len(re.findall(rf"{group} .*/127.0.0.1 +librdkafka +2 ", members)) == 1, members
            wait_for_lag_zero(kafka1, group, 4)
        before = len(ours.rows)
        fill(kafka1, name, 4, 5)
        ours.await_(lambda: len(ours.rows) >= before + 20)
        ends = {row.partition: row.current_offset or 0 for row in wait_for_lag_zero(kafka1, group, 4)}
    every = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    assert set(ours.rows) | set(librdkafka.rows) == every


@protocols(CLASSIC, CONSUMER)
def test_batch_with_gained_partitions_is_replayed_as_planned(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: str
) -> None:
    """The query fails in its first batch with gained partitions. Another member reads their rows before the restart."""
    name, group = topic1(2), new_group()
    with query_of(spark, kafka1, name, group, protocol, tmp_path / "other") as run:
        fill(kafka1, name, 2, 5)
        run.await_(lambda: len(run.rows) == 10)
        wait_for_lag_zero(kafka1, group, 2)
        ours = Run()
        ours.fail = True
        ours.start(spark, kafka1, name, group, protocol, tmp_path / "ours")
        for _ in attempts(60, 0.1):
            if error := ours.query.exception():
                break
            fill(kafka1, name, 2, 1)
        assert "on purpose" in str(error)
        failed = list(ours.rows)
        assert failed
        assert min(offset for _, offset in failed) >= 5, "it began at the group's offset"
        wait_for_lag_zero(kafka1, group, 2)  # the other member has read the rows of the failed batch
        with query_of(spark, kafka1, name, group, protocol, tmp_path / "ours") as again:
            again.await_(lambda: len(again.rows) >= len(failed))
            assert again.rows[: len(failed)] == failed
            assert again.first_batch == ours.last_batch


@protocols(CLASSIC)
def test_resumed_driver_reads_no_row_of_new_owner(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: str
) -> None:
    name, group = topic1(2), new_group()
    fill(kafka1, name, 2, 10)
    further = drivers()
    with query_of(spark, kafka1, name, group, protocol, tmp_path) as ours:
        ours.await_(lambda: len(ours.rows) == 20)
        wait_for_lag_zero(kafka1, group, 2)
        (driver,) = drivers() - further
        driver.suspend()
        try:
            with Librdkafka(kafka1, name, group, protocol) as librdkafka:
                fill(kafka1, name, 2, 10)
                ours.await_(lambda: len(librdkafka.rows) == 20)
                driver.resume()
                ours.await_(lambda: len(members_of(kafka1, group)) == 2)
                wait_for_lag_zero(kafka1, group, 2)
        finally:
            driver.resume()
        fill(kafka1, name, 2, 10)
        ours.await_(lambda: len(ours.rows) == 40)
        assert [row.current_offset for row in wait_for_lag_zero(kafka1, group, 2)] == [30, 30]
    assert set(ours.rows) & set(librdkafka.rows) == set()


@protocols(CONSUMER)
def test_restarted_static_member_causes_no_rebalance(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: str
) -> None:
    name, group = topic1(2), new_group()
    options = {"kafka_group_instance_id": "a"}
    if protocol == "classic":
        options["kafka_session_timeout_ms"] = "60000"
    else:
        set_session_timeout(kafka1, group, 60_000)
    with Librdkafka(kafka1, name, group, protocol) as librdkafka:
        # Otherwise the query might own both partitions at first.
        wait_until(lambda: shares(kafka1, group) == [2], timeout_s=60, every_s=0.05)
        with query_of(spark, kafka1, name, group, protocol, tmp_path, **options) as ours:

            def shared() -> bool:
                fill(kafka1, name, 2, 1)
                return len(ours.rows) > 0 and shares(kafka1, group) == [1, 1]

            ours.await_(shared)
        before, (own,) = librdkafka.assignments, ours.partitions
        fill(kafka1, name, 2, 5)
        with query_of(spark, kafka1, name, group, protocol, tmp_path, **options) as ours:
            ours.await_(lambda: len(ours.rows) >= 5)
            assert ours.partitions == {own}
            assert librdkafka.assignments == before


def test_example_of_docs_reads_as_group_member(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name, group = topic1(2), new_group()
    names = {"broker-1:9092": kafka1.bootstrap_servers, '"orders"': repr(name), "orders-etl": group}
    result: dict[str, Any] = {"spark": spark}
    exec(block("groups.md", "group.protocol").with_names(names), result)
    run = Run()
    writer = result["rows"].writeStream.foreachBatch(run.keep).option("checkpointLocation", str(tmp_path))
    run.query = writer.start()
    try:
        run.await_(lambda: len(members_of(kafka1, group)) == 1)
        wait_for_lag_zero(kafka1, group, 2)
        fill(kafka1, name, 2, 5)
        run.await_(lambda: len(run.rows) == 10)
    finally:
        run.query.stop()
    run.await_(lambda: not members_of(kafka1, group))
