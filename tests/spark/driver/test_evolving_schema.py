"""A query reads on while the schema of its values evolves, its registry is stopped, and the query is killed."""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import fastavro
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.chaos import Program
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


def fields_of(version: int, number: int) -> dict[str, int]:
    return dict.fromkeys(("id", *(f"f{number}" for number in range(1, version + 1))), number)


class Avro:
    """Schemas and values of Avro: a field that the writer lacks is -1."""

    format, kind, absent = "confluent-avro", "AVRO", -1
    other = '{"type": "record", "name": "R", "fields": []}', b""

    def schema(self, version: int) -> str:
        """Return a version: each adds the field `f<version>`, which is the id."""
        added = [{"name": f"f{number}", "type": "long", "default": -1} for number in range(1, version + 1)]
        return json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, *added]})

    def value(self, version: int, number: int) -> bytes:
        out = io.BytesIO()
        schema = fastavro.parse_schema(json.loads(self.schema(version)))
        fastavro.schemaless_writer(out, schema, fields_of(version, number))
        return out.getvalue()


class Protobuf:
    """The same in Protobuf, where a field that the writer lacks is null."""

    format, kind, absent = "confluent-protobuf", "PROTOBUF", None
    other = 'syntax = "proto3"; message R { string id = 1; }', b"\0\x0a\1x"

    def schema(self, version: int) -> str:
        added = "".join(f" optional int64 f{number} = {number + 1};" for number in range(1, version + 1))
        return f'syntax = "proto3"; message R {{ optional int64 id = 1;{added} }}'

    def value(self, version: int, number: int) -> bytes:
        # Varints of five bytes: not the shortest, and valid.
        digits = bytes((number >> 7 * place & 0x7F) | (0x80 if place < 4 else 0) for place in range(5))
        return b"\0" + b"".join(bytes((number << 3,)) + digits for number in range(1, version + 2))


class Json:
    """The same in JSON."""

    format, kind, absent = "confluent-json", "JSON", None
    other = '{"type": "object", "properties": {"id": {"type": "string"}}}', b'{"id": "x"}'

    def schema(self, version: int) -> str:
        properties = {name: {"type": "integer"} for name in fields_of(version, 0)}
        return json.dumps({"type": "object", "properties": properties, "additionalProperties": False})

    def value(self, version: int, number: int) -> bytes:
        return json.dumps(fields_of(version, number)).encode()


Language = Avro | Protobuf | Json
of_each_language = pytest.mark.parametrize("language", [Avro(), Protobuf(), Json()], ids=["avro", "protobuf", "json"])


class Writing:
    """Writes records until `stop`, with the newest version; notes the version of each."""

    def __init__(self, language: Language, kafka: LocalKafka, topic: str, registry: FakeSchemaRegistry) -> None:
        self.versions: list[int] = []
        self.incompatible: list[int] = []
        self._language, self._kafka, self._topic, self._registry = language, kafka, topic, registry
        self._stop = threading.Event()
        self._ids: list[int] = []
        text, value = language.other
        self._other = framed(registry.register("other", text, language.kind), value)
        self.evolve()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def evolve(self) -> None:
        text = self._language.schema(len(self._ids) + 1)
        self._ids.append(self._registry.register(f"{self._topic}-value", text, self._language.kind))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap_servers, "linger.ms": 50, "log_level": 0})
        while not self._stop.wait(0.05):
            producer.poll(0)  # frees the queue of what is acknowledged
            for _ in range(10):
                number, version = len(self.versions), len(self._ids)
                self.versions.append(version)
                value = self._other
                if number % INCOMPATIBLE_EVERY == INCOMPATIBLE_EVERY - 1:
                    self.incompatible.append(number)
                else:
                    value = framed(self._ids[version - 1], self._language.value(version, number))
                producer.produce(self._topic, value)
        assert producer.flush(60) == 0


def framed(schema_id: int, value: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + value


@of_each_language
def test_query_reads_on_while_schema_evolves_and_registry_stops_and_query_is_killed(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, language: Language
) -> None:
    topic, dead = topic1(), topic1()
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    rng = random.Random(3)
    with FakeSchemaRegistry() as registry:
        writing = Writing(language, kafka1, topic, registry)
        arguments = [language.format, kafka1.bootstrap_servers, topic, registry.url, dead, str(checkpoint), str(output)]
        # (share of the time, what happens)
        events = [
            *(((number + 1) / (VERSIONS + 1), "evolve") for number in range(VERSIONS)),
            *((0.3 + 0.4 * number, "stop the registry") for number in range(2)),
            *((0.4 + 0.4 * number, "start the registry") for number in range(2)),
            *((rng.uniform(0.1, 0.95), "kill") for _ in range(KILLS)),
        ]
        job = Program([sys.executable, "-m", "tests.jobs.decode_to_parquet", *arguments, "3600"], tmp_path / "job")
        job.start()
        began_s = time.monotonic()
        waiting = 0
        try:
            for share, event in [*sorted(events), (1, "end")]:
                time.sleep(max(0, began_s + share * SECONDS - time.monotonic()))
                if event == "kill":
                    job.kill()
                    job.start()
                elif event == "stop the registry":
                    registry.stop()
                elif event == "start the registry":
                    registry.start()
                    # A query that was started meanwhile has failed: load() needs the registry.
                    if not job.runs:
                        waiting += 1
                        job.start()
                elif event == "evolve":
                    writing.evolve()
        finally:
            writing.stop()
            job.kill()
        assert subprocess.run([sys.executable, "-m", "tests.jobs.decode_to_parquet", *arguments, "all"]).returncode == 0
    rows = spark.read.option("mergeSchema", "true").parquet(str(output)).collect()
    by_offset = {row["offset"]: row.asDict() for row in rows}
    assert len(rows) == len(by_offset)
    assert sorted(by_offset) == [
        number for number in range(len(writing.versions)) if number not in writing.incompatible
    ]
    for number, row in by_offset.items():
        assert row["id"] == row["f1"] == number
        for each in range(1, VERSIONS + 1):
            written = number if writing.versions[number] >= each else language.absent
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


@of_each_language
def test_dead_letters_are_read_after_the_registry_has_their_schema(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, language: Language
) -> None:
    topic, dead = topic1(), topic1()
    with FakeSchemaRegistry() as registry:
        registry.register(f"{topic}-value", language.schema(1), language.kind)
        producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})
        producer.produce(topic, framed(2, language.value(2, 7)))
        assert producer.flush(30) == 0
        folders = (str(tmp_path / "checkpoint"), str(tmp_path / "output"))
        arguments = [language.format, kafka1.bootstrap_servers, topic, registry.url, dead, *folders, "all"]
        job = [sys.executable, "-m", "tests.jobs.decode_to_parquet", *arguments]
        assert subprocess.run(job).returncode == 0
        assert registry.register("another", language.schema(2), language.kind) == 2
        replay = ["replay", dead, "--bootstrap-server", kafka1.bootstrap_servers, "--execute"]
        replayed = CliRunner().invoke(pykafka, replay)
        assert replayed.exit_code == 0, replayed.output
        assert subprocess.run(job).returncode == 0
    rows = spark.read.parquet(folders[1]).select("offset", "id", "f1").collect()
    assert [tuple(row) for row in rows] == [(1, 7, 7)]
