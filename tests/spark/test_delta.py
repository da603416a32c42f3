"""docs/delta.md: records reach tables once, and rows of a table a topic, although the driver is killed again and again.

Runs in an environment with the newest Spark that Delta is published for, a download of 450 MB.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.protocol.fetch.consuming import produce
from tests.support.jvm_connector import DELTA_SPARK, delta_jars
from tests.support.read_committed import by_librdkafka
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until
from tests.versions.environments import BUILD, make_environment, packages, spark_home, variables

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(not SOAK, reason="downloads another Spark; `make soak` runs it"),
]
KILLS = 8
SMALL, LARGE = range(700), range(700, 1_400)
# More than the 100 of the page.
LARGE_BYTES = 200


def values(table: Path) -> list[str]:
    """Return the values in the files that commits have added to a table, to which rows are only appended."""
    actions = [
        json.loads(line) for log in (table / "_delta_log").glob("*.json") for line in log.read_text().splitlines()
    ]
    files = [action["add"]["path"] for action in actions if "add" in action]
    return [value for file in files for value in pq.read_table(table / file, columns=["value"])["value"].to_pylist()]


def numbers(texts: list[str]) -> list[int]:
    return sorted(int(text.partition(".")[0]) for text in texts)


def test_queries_of_the_page_write_each_record_once_while_they_are_killed(
    kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic1(2), topic1(2)
    produce(kafka1, source, SMALL, 2)
    produce(kafka1, source, LARGE, 2, size=LARGE_BYTES)
    python = ".".join(map(str, sys.version_info[:2]))
    requirements = packages(DELTA_SPARK, python, oldest=False)
    binary = make_environment(BUILD / "delta", sys.executable, spark_home(DELTA_SPARK), requirements)
    arguments = [kafka1.bootstrap_servers, source, target, str(tmp_path), ",".join(map(str, delta_jars()))]
    command = [str(binary), "-m", "tests.jobs.delta_page", *arguments]
    rng = random.Random(1)

    def progress() -> int:
        """Return the number of batches that the queries have begun, and of those that they have completed."""
        return sum(1 for folder in ("offsets", "commits") for _ in tmp_path.glob(f"checkpoints/*/{folder}/[0-9]*"))

    kills = 0
    while True:
        killed_at = progress() + rng.randint(3, 12)
        with (tmp_path / "log").open("ab") as log:
            environment = {**variables(binary), "PYTHONPATH": str(ROOT)}
            job = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until(lambda: job.poll() is not None or (kills < KILLS and progress() >= killed_at), timeout_s=600)  # noqa: B023
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        if job.returncode >= 0:
            break
        kills += 1
    assert job.returncode == 0, (tmp_path / "log").read_text()[-5_000:]
    assert kills == KILLS
    everything = [*SMALL, *LARGE]
    assert numbers(values(tmp_path / "tables" / "orders")) == everything
    assert numbers(values(tmp_path / "tables" / "orders-small")) == [*SMALL]
    assert numbers(values(tmp_path / "tables" / "orders-large")) == [*LARGE]
    published = by_librdkafka(kafka1.bootstrap_servers, target).values()
    assert numbers([value.decode() for of_partition in published for value in of_partition]) == everything
