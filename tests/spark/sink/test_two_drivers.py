"""Two drivers with one checkpoint and prefix: the older one is suspended (SIGSTOP) until the newer one has ended.

For `make soak`. `test_two_starts` makes the same calls without Spark, and pauses the older start before some of them.
"""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.copied_exactly_once import POINTS, Copy, write_numbers
from tests.support.kafka_proxy import KafkaProxy
from tests.support.soak import SOAK
from tests.support.transaction_version import transactions_before_kip_890

pytestmark = pytest.mark.soak

PARTITIONS = 3
ROWS = 900
POINTS_OF_TWO = [
    "before a task has a producer id",
    "while a task writes",
    "when all tasks have written",
    "when the decision is written, and not committed",
    "between the EndTxn calls",
]


@pytest.mark.skipif(not SOAK, reason="half a minute each; `make soak` runs them")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [2, 1])
@pytest.mark.parametrize("point", POINTS_OF_TWO)
def test_resumed_older_driver_ends_fenced_by_newer_driver(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, point: str, version: int
) -> None:
    source = write_numbers(kafka1, f"numbers-{uuid.uuid4().hex[:8]}", PARTITIONS, ROWS)
    stderr_path, stop = tmp_path / "stderr", POINTS[point]()
    protocol = nullcontext() if version == 2 else transactions_before_kip_890(kafka1)
    with protocol, KafkaProxy.of(kafka1) as proxy:
        options = {"maxOffsetsPerTrigger": "300", "kafka.batch.size": "500"}
        copied = Copy(spark, kafka1, proxy, source, topic1(PARTITIONS), PARTITIONS, ROWS, tmp_path / "copy", options)
        with running(copied.start_job(stderr_path)) as job:
            stop.kill = lambda _: suspend_all(job)
            stop.arm(proxy)
            assert stop.done.wait(300), stderr_path.read_text()
            copied.disarm()
            assert copied.run(), "nothing was left to do"
            for process in process_tree(job):
                process.resume()
            assert job.wait(300) == 1
        assert "was started again elsewhere" in stderr_path.read_text()
        copied.check()


@contextmanager
def running(job: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield job
    finally:
        for process in process_tree(job):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.wait()


def process_tree(job: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the driver, its JVM and the Python processes, parents first."""
    try:
        driver = psutil.Process(job.pid)
        return [driver, *driver.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def suspend_all(job: subprocess.Popen[bytes]) -> None:
    suspended = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    while active := [process for process in process_tree(job) if process.status() not in suspended]:
        active[0].suspend()
