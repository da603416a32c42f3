"""Run `tests.jobs.copy_to_topic` and compare source and copy, as read by librdkafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from itertools import accumulate
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import describe
from tests.support.read_back import Record, read_back

PARTITIONS = 3
ROWS = 10_000


def copy_and_check(kafka: LocalKafka, topic: TopicFactory, folder: Path, session: str, master: str) -> dict[str, Any]:
    """Assert that both copies have every row and that the group's lag is 0. Return the report of the job.

    A query in update mode writes the row count of each partition to a third topic.
    """
    # The records' timestamps are in the past.
    source, streamed, batched = (topic(PARTITIONS) for _ in range(3))
    counted = topic()
    group = f"group-{uuid.uuid4().hex[:8]}"
    fill(kafka, source)
    where = [kafka.bootstrap_servers, source, group, streamed, batched, str(folder / "checkpoint"), counted]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.jobs.copy_to_topic", session, master, *where],
        capture_output=True,
        text=True,
        timeout=540,
        # Spark's own switch for an unused port of the Spark Connect server.
        env={**os.environ, "SPARK_TESTING": "1"} if session == "connect" else None,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    expected = [content(record) for record in read_back(kafka, source)]
    assert len(expected) == ROWS
    for copy in (streamed, batched):
        assert sorted(content(record) for record in read_back(kafka, copy)) == sorted(expected)
    rows = describe(kafka, group)
    assert [(row.topic, row.partition, row.lag) for row in rows] == [(source, n, 0) for n in range(PARTITIONS)]
    assert sum(row.current_offset or 0 for row in rows) == ROWS
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert sum(report["streamed"]) == ROWS
    assert report["lag"] == [ROWS - read for read in accumulate(report["streamed"])]
    assert report["watched"] == report["lag"]
    assert report["last_lag"] == 0
    newest = {record.key: int(record.value or b"") for record in read_back(kafka, counted)}
    assert sorted(newest) == [b"%d" % number for number in range(PARTITIONS)]
    assert sum(newest.values()) == ROWS
    return report


def fill(kafka: LocalKafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    for n in range(ROWS):
        key = None if n % 10 == 0 else f"k{n % 500}"
        producer.produce(topic, key=key, value=f"wert ü {n}", headers=[("n", str(n))], timestamp=1_700_000_000_000 + n)
    assert producer.flush(30) == 0


def content(record: Record) -> tuple[Any, ...]:
    """Return a record's fields except its offset, such that null keys are sortable."""
    return record.partition, record.key or b"", record.key is None, record.value, record.headers, record.timestamp_ms
