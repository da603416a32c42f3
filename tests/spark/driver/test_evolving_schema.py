"""A query reads on while the schema of its values evolves, its registry is stopped, and the query is killed."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.soak import SOAK, scaled

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not SOAK, reason="takes ten minutes; `make soak` runs it"),
    pytest.mark.timeout(2_400),
]

VERSIONS = 5
SECONDS = scaled("EVOLVING_SECONDS", 60, 600)
KILLS = 5
INCOMPATIBLE_EVERY = 97


def schema(version: int) -> dict[str, Any]:
    """Return a version: each adds the field `f<version>`, which is the id, or -1 for records of earlier versions."""
    added = [{"name": f"f{number}", "type": "long", "default": -1} for number in range(1, version + 1)]
    return {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, *added]}


class Writing:
    """Writes records until `stop`, with the newest version; notes the version of each."""

    def __init__(self, kafka: LocalKafka, topic: str, registry: FakeSchemaRegistry) -> None:
        self.versions: list[int] = []
        self.incompatible: list[int] = []
        self._kafka, self._topic, self._registry = kafka, topic, registry
        self._stop = threading.Event()
        self._version = 0
        self._other = registry.register("other", '{"type": "record", "name": "R", "fields": []}')
        self.evolve()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def evolve(self) -> None:
        text = schema(self._version + 1)
        self._schema = fastavro.parse_schema(text)
        self._id = self._registry.register(f"{self._topic}-value", json.dumps(schema(self._version + 1)))
        self._version += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap_servers, "linger.ms": 50, "log_level": 0})
        while not self._stop.wait(0.05):
            producer.poll(0)  # frees the queue of what is acknowledged
            for _ in range(10):
                number, version = len(self.versions), self._version
                self.versions.append(version)
                if number % INCOMPATIBLE_EVERY == INCOMPATIBLE_EVERY - 1:
                    self.incompatible.append(number)
                    producer.produce(self._topic, struct.pack(">bI", 0, self._other))
                    continue
                out = io.BytesIO(struct.pack(">bI", 0, self._id))
                out.seek(5)
                fields = {f"f{each}": number for each in range(1, version + 1)}
                fastavro.schemaless_writer(out, self._schema, {"id": number, **fields})
                producer.produce(self._topic, out.getvalue())
        assert producer.flush(60) == 0


def test_query_reads_on_while_schema_evolves_and_registry_stops_and_query_is_killed(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic, dead = topic1(), topic1()
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    rng = random.Random(3)
    with FakeSchemaRegistry() as registry:
        writing = Writing(kafka1, topic, registry)
        arguments = [kafka1.bootstrap_servers, topic, registry.url, dead, str(checkpoint), str(output)]
        # (share of the time, what happens)
        events = [
            *(((number + 1) / (VERSIONS + 1), "evolve") for number in range(VERSIONS)),
            *((0.3 + 0.4 * number, "stop the registry") for number in range(2)),
            *((0.4 + 0.4 * number, "start the registry") for number in range(2)),
            *((rng.uniform(0.1, 0.95), "kill") for _ in range(KILLS)),
        ]
        job = start(arguments)
        began_s = time.monotonic()
        waiting = 0
        try:
            for share, event in sorted(events):
                time.sleep(max(0, began_s + share * SECONDS - time.monotonic()))
                if event == "kill":
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
                    job = start(arguments)
                elif event == "stop the registry":
                    registry.stop()
                elif event == "start the registry":
                    registry.start()
                    # A query that was started meanwhile has failed: load() needs the registry.
                    if job.poll() is not None:
                        waiting += 1
                        job = start(arguments)
                elif event == "evolve":
                    writing.evolve()
            time.sleep(max(0, began_s + SECONDS - time.monotonic()))
        finally:
            writing.stop()
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        assert subprocess.run([sys.executable, "-m", "tests.jobs.decode_to_parquet", *arguments, "all"]).returncode == 0
    rows = spark.read.option("mergeSchema", "true").parquet(str(output)).collect()
    by_offset = {row["offset"]: row.asDict() for row in rows}
    assert len(rows) == len(by_offset)
    assert sorted(by_offset) == [each for each in range(len(writing.versions)) if each not in writing.incompatible]
    for number, row in by_offset.items():
        assert row["id"] == number
        for each in range(1, VERSIONS + 1):
            written = number if writing.versions[number] >= each else -1
            # None: the query that read the record had taken an earlier version.
            assert row.get(f"f{each}") in (None, written), (number, each, row)
    letters = spark.read.format("pykafka-group").options(**{
        "kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": dead, "includeHeaders": "true",
    }).load().collect()  # fmt: skip
    offsets = [
        int(bytes(header.value)) for row in letters for header in row.headers if header.key.endswith("errors.offset")
    ]
    assert set(offsets) == set(writing.incompatible)
    print(f"{len(writing.versions)} records, {len(letters)} dead letters of {len(writing.incompatible)} records, "
          f"{waiting} restarts after the registry")  # fmt: skip


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.jobs.decode_to_parquet", *arguments, "3600"]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_dead_letters_are_read_after_the_registry_has_their_schema(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic, dead = topic1(), topic1()
    with FakeSchemaRegistry() as registry:
        registry.register(f"{topic}-value", json.dumps(schema(1)))
        producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})
        producer.produce(topic, struct.pack(">bI", 0, 2) + b"\x02\x04")
        assert producer.flush(30) == 0
        arguments = [
            kafka1.bootstrap_servers,
            topic,
            registry.url,
            dead,
            str(tmp_path / "c"),
            str(tmp_path / "o"),
            "all",
        ]
        job = [sys.executable, "-m", "tests.jobs.decode_to_parquet", *arguments]
        assert subprocess.run(job).returncode == 0
        assert registry.register("another", json.dumps({**schema(1), "doc": "mended"})) == 2
        replay = ["replay", dead, "--bootstrap-server", kafka1.bootstrap_servers, "--execute"]
        replayed = CliRunner().invoke(pykafka, replay)
        assert replayed.exit_code == 0, replayed.output
        assert subprocess.run(job).returncode == 0
    rows = spark.read.parquet(str(tmp_path / "o")).select("offset", "id", "f1").collect()
    assert [tuple(row) for row in rows] == [(1, 1, 2)]
