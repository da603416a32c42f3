"""The exactly-once sink: a `read_committed` reader sees each row once, whichever process is killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support import read_committed
from tests.support.console_consumer import console_command
from tests.support.copied_exactly_once import POINTS, Copy, write_numbers
from tests.support.documents import block
from tests.support.kafka_proxy import KafkaProxy
from tests.support.soak import SOAK, scaled
from tests.support.spark_frames import stream, write

pytestmark = pytest.mark.soak

# More in `make soak`.
KILLS = scaled("KILLS", 1, 20)
PARTITIONS = 3
ROWS = 9_000


CopyFactory = Callable[..., Copy]


@pytest.fixture(scope="module")
def source(kafka1: LocalKafka) -> str:
    return write_numbers(kafka1, "numbers", PARTITIONS, ROWS)


@pytest.fixture
def copy(spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, source: str, tmp_path: Path) -> CopyFactory:
    with KafkaProxy.of(kafka1) as proxy:

        def make(**options: str) -> Copy:
            target = topic1(PARTITIONS)
            return Copy(spark, kafka1, proxy, source, target, PARTITIONS, ROWS, tmp_path / "checkpoint", options)

        yield make


def test_replayed_batch_writes_no_row_again(copy: CopyFactory) -> None:
    """Slow: a batch of 4,000 rows is copied in each of several triggers, and the query starts twice."""
    copied = copy(maxOffsetsPerTrigger="4000")
    *_, last_batch = copied.run()
    assert last_batch >= 2
    copied.check()
    for name in (f"{last_batch}", f".{last_batch}.crc"):
        (copied.checkpoint / "commits" / name).unlink()
    assert copied.run() == [last_batch], "it was to be replayed"
    copied.check()


SMALL_BATCHES = {
    "maxOffsetsPerTrigger": "600" if KILLS == 1 else "30",
    "kafka.batch.size": "500",
    "kafka.group.id": f"copies-{uuid.uuid4().hex[:8]}",
}


# `make soak` tests all points; the scenario exactly_once_sink kills at any line.
SOME_POINTS = ["while a task writes", "when the decision is written, and not committed"]


# Deterministic rows must keep their order; of other rows, those of two attempts must not be mixed.
@pytest.mark.timeout(120 + 120 * KILLS)
@pytest.mark.parametrize(
    ("options", "points"),
    [({}, list(POINTS)), ({"shuffled": "3"}, list(POINTS))] if SOAK else [({}, SOME_POINTS)],
    ids=["as they lie", "shuffled"] if SOAK else ["as they lie"],
)
def test_killed_processes_leave_every_row_once(copy: CopyFactory, options: dict[str, str], points: list[str]) -> None:
    """Slow: each kill ends Spark's workers, and the batch is written again."""
    copied = copy(**SMALL_BATCHES, **options)
    for point in points * KILLS:
        copied.run_into(POINTS[point]())
    copied.run(maxOffsetsPerTrigger=str(ROWS))
    copied.check()


@pytest.mark.skipif(not SOAK, reason="takes half a minute; `make soak` runs it")
@pytest.mark.timeout(120 + 300 * KILLS)
def test_killed_driver_and_workers_leave_every_row_once(copy: CopyFactory) -> None:
    copied = copy(**SMALL_BATCHES)
    for point in list(POINTS) * KILLS if SOAK else ["between the EndTxn calls"]:
        job, kill = copied.start_job(), POINTS[point]()
        kill.kill = partial(_kill_all, job)
        kill.arm(copied.proxy)
        assert job.wait(300) == -signal.SIGKILL
        copied.disarm()
    copied.run(maxOffsetsPerTrigger=str(ROWS))
    copied.check()
    java = console_command(copied.kafka, copied.target, "java", isolation_level="read_committed")
    output = subprocess.run([*java, "--timeout-ms=5000"], capture_output=True, timeout=60, check=False).stdout
    assert sorted(int(line) for line in output.splitlines() if line.isdigit()) == list(range(ROWS))


def _kill_all(job: subprocess.Popen[bytes], _: int) -> None:
    os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("point", "says"),
    [
        ("when all tasks have written", "ended before they could be committed.*pykafka txn abort"),
        ("while a task writes", "a newer producer took over, or it was aborted"),
        ("between the EndTxn calls", "is decided: start the query again"),
    ][: None if SOAK else 1],
)
def test_externally_aborted_transactions_fail_query_and_restart_continues(
    copy: CopyFactory, point: str, says: str
) -> None:
    copied, stop = copy(**SMALL_BATCHES), POINTS[point]()
    stop.kill = lambda _: copied.abort_from_outside()
    copied.run_into(stop, says)
    copied.run(maxOffsetsPerTrigger=str(ROWS))
    copied.check()


def committed_numbers(kafka: LocalKafka, topic: str) -> list[int]:
    by_partition = read_committed.by_librdkafka(kafka.bootstrap_servers, topic).values()
    return sorted(int(value) for values in by_partition for value in values)


def test_batch_write_is_atomic(spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    name = topic1(PARTITIONS)
    options = {"topic": name, "transactionalIdPrefix": "batch", "deliveryGuarantee": "exactly-once"}

    def write_values(values: str) -> None:
        write(spark.range(0, ROWS, 1, 3).selectExpr(f"{values} AS value"), kafka1, **options)

    with pytest.raises(PythonException, match=r"max\.request\.size"):
        write_values(f"if(id = {ROWS - 1}, repeat('.', 3000000), string(id))")
    assert committed_numbers(kafka1, name) == []
    write_values("string(id)")
    assert committed_numbers(kafka1, name) == list(range(ROWS))


def test_example_of_docs_copies_every_row_once(copy: CopyFactory) -> None:
    copied = copy()
    names: dict[str, Any] = {"orders": stream(copied.spark, copied.kafka, subscribe=copied.source)}
    places = {"localhost:9092": copied.proxy.servers, "checkpoints/copied": str(copied.checkpoint)}
    places['"copied"'] = f'"{copied.target}"'
    exec(block("delivery.md", "exactly-once").with_names(places), names)
    query = names["query"]
    query.processAllAvailable()
    query.stop()
    assert committed_numbers(copied.kafka, copied.target) == list(range(ROWS))
