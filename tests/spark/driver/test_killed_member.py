"""A query killed in a batch that gained partitions: after the restart it replays the batch of the checkpoint.

For `make soak`. In `test_membership` a query fails in such a batch; `test_killed_query` kills a query in other batches.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from protocol.config import parse_consumer
from protocol.group.membership.assignment import TopicSubscription
from protocol.group.membership.membership import Membership
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.support.consumer_groups import members_of, move_group, wait_for_lag_zero
from tests.support.member_queries import Key, fill, new_group, query_of
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

PARTITIONS = 4


@contextmanager
def job_of(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.jobs.member_query", *arguments]
    # A new session: the JVM and the Python workers are killed with it.
    job = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield job
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def next_batch(job: subprocess.Popen[str]) -> tuple[int, list[Key]]:
    """Return the job's next batch: number and rows. Lines of the JVM are skipped."""
    assert job.stdout is not None
    number, rows = json.loads(next(line for line in job.stdout if line.startswith("[")))
    return number, [(partition, offset) for partition, offset in rows]


def planned(checkpoint: Path, batch: int, topic: str) -> list[Key]:
    """Return the rows of a batch by its offsets in the checkpoint: from the previous end or `@joined` to the end."""

    def logged(number: int) -> dict[str, dict[str, dict[str, int]]]:
        return dict(json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]))

    end = logged(batch)
    begin = logged(batch - 1).get(topic, {}) | end.get("@joined", {}).get(topic, {})
    return [(int(key), offset) for key, until in end[topic].items() for offset in range(begin[key], until)]


@pytest.mark.skipif(not SOAK, reason="takes half a minute; `make soak` runs it")
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KIP_848)])
def test_query_killed_in_batch_with_gained_partitions_replays_it(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, protocol: str
) -> None:
    name, group = topic1(PARTITIONS), new_group()
    fill(kafka1, name, PARTITIONS, 10)
    move_group(kafka1, group, {(name, number): 5 for number in range(PARTITIONS)})
    arguments = (kafka1.bootstrap_servers, name, group, protocol, str(tmp_path))
    config = parse_consumer({"group.id": group, "group.protocol": protocol})
    with client_of(kafka1) as client, job_of(*arguments) as job:
        # The other member owns two partitions and reads nothing.
        with Membership(client, config, TopicSubscription(frozenset({name}))) as idle:

            def shared() -> bool:
                idle.poll_rebalance(client.deadline(50))
                return len(idle.owned) == 2 and len(members_of(kafka1, group)) == 2

            wait_until(shared, timeout_s=180)  # starting another Spark takes long
            own = next_batch(job)[1]
        assert job.stdin is not None
        print(file=job.stdin, flush=True)
        batch, rows = next_batch(job)
    gained = {partition for partition, _ in rows}
    assert gained
    assert gained.isdisjoint(partition for partition, _ in own)
    assert sorted(rows) == sorted(planned(tmp_path, batch, name))
    assert not (tmp_path / "commits" / str(batch)).exists()
    with query_of(spark, kafka1, name, group, protocol, tmp_path / "other") as run:
        fill(kafka1, name, PARTITIONS, 10)
        run.await_(lambda: set(run.rows) >= {(number, 19) for number in range(PARTITIONS)})
        wait_for_lag_zero(kafka1, group, PARTITIONS)
        with query_of(spark, kafka1, name, group, protocol, tmp_path) as again:
            again.await_(lambda: len(again.rows) >= len(rows))
            assert sorted(again.rows[: len(rows)]) == sorted(rows)
            assert again.first_batch == batch
