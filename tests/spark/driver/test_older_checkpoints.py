"""Checkpoints of an older version: a query resumes as that version would have, and no row is lost or repeated.

For each of `CASES`, `checkpoints/` has the checkpoint of a query, byte for byte, and in `next.json` the rows that the
older version delivered after it. The tests create topics with the same names, records and offsets. Topic ids differ
between clusters, so the tests replace them in the checkpoint.

To write checkpoints with this version: `python -m tests.spark.driver.test_older_checkpoints FOLDER`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from protocol.cluster.client import Client
from protocol.cluster.metadata import topic_id_text
from protocol.config import parse_client
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.consumer_groups import describe, move_group
from tests.support.topic_changes import delete_topics
from tests.support.wait_for_brokers import wait_until_known

CHECKPOINTS = Path(__file__).parent / "checkpoints"
OURS, JVM = "pykafka-group", "kafka"
FIRST_TIME_MS = 1_700_000_000_000
GROUP = "older-readers"

# Batch id -> topic-partition, offset and value of each row.
Batches = dict[str, list[str]]


@dataclass
class Stage:
    """A cluster for one case. The query of the case only runs if `writes`; tests start from the stored checkpoint."""

    kafka: LocalKafka
    spark: SparkSession
    checkpoint: Path
    options: Mapping[str, str]
    writes: bool = False
    records: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})

    def create(self, topic: str, partitions: int = 1) -> None:
        new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})
        self.admin.create_topics([new])[topic].result(30)
        wait_until_known(self.kafka, topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        wait_until_known(self.kafka, topic, partitions)

    def recreate(self, topic: str) -> None:
        """Recreate a topic with one partition. The numbering of its values continues."""
        delete_topics(self.kafka, topic)
        self.create(topic)

    def produce(self, topic: str, partition: int, records: int) -> None:
        """Write records whose values are numbered per partition, with timestamps one second apart."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        for _ in range(records):
            number = self.records[topic, partition]
            self.records[topic, partition] += 1
            when_ms = FIRST_TIME_MS + 1_000 * number
            producer.produce(topic, f"{partition}-{number}", partition=partition, timestamp=when_ms)
        assert producer.flush(30) == 0

    def delete_before(self, topic: str, offset: int) -> None:
        where = TopicPartition(topic, 0, offset)
        self.admin.delete_records([where])[where].result(30)

    def commit(self, topic: str, *offsets: int) -> None:
        move_group(self.kafka, GROUP, {(topic, partition): offset for partition, offset in enumerate(offsets)})

    def run(self, *, fails_in: int | None = None, format: str = OURS) -> None:
        """If `writes`, run the query to the end of the logs, or let it fail in the batch `fails_in`."""
        if self.writes and fails_in is None:
            self.resume(format=format)
        elif self.writes:
            with pytest.raises(StreamingQueryException):
                self.resume(fails_in=fails_in, format=format)

    def resume(self, *, fails_in: int | None = None, format: str = OURS) -> Batches:
        batches: Batches = {}

        def take(batch: DataFrame, number: int) -> None:
            assert number != fails_in
            rows = sorted(batch.selectExpr("topic", "partition", "offset", "string(value)").collect())
            batches[str(number)] = [f"{topic}-{partition} {offset} {value}" for topic, partition, offset, value in rows]

        reader = self.spark.readStream.format(format).options(**self.options)
        rows = reader.option("kafka.bootstrap.servers", self.kafka.bootstrap_servers).load()
        writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return batches

    def last_offsets(self) -> str:
        """Return the JSON of this source's offsets in the newest file of the offset log."""
        newest = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return newest.read_text().splitlines()[-1]

    def topic_ids(self) -> dict[str, str]:
        with Client(parse_client({"bootstrap.servers": self.kafka.bootstrap_servers})) as client:
            return {topic: topic_id_text(client.topic(topic).topic_id) for topic, _ in self.records}


# -- what happens before an older version ends, and what it reads ----------------------------------


def two_partitions(stage: Stage) -> None:
    """Leave a checkpoint with batch 0 complete and batch 1 planned."""
    stage.create("older-subscribe", 2)
    stage.produce("older-subscribe", 0, 10)
    stage.produce("older-subscribe", 1, 5)
    stage.run(fails_in=1)


def group_moved_since(stage: Stage) -> None:
    """Plan the first batch from the group's offsets; then another client moves them."""
    stage.create("older-group", 2)
    stage.produce("older-group", 0, 10)
    stage.produce("older-group", 1, 5)
    stage.commit("older-group", 4, 2)
    stage.run(fails_in=0)
    stage.commit("older-group", 8, 5)


def time_of_the_fifth(stage: Stage) -> None:
    """Plan the first batch from a timestamp, with three of the six records since that time."""
    stage.create("older-time")
    stage.produce("older-time", 0, 10)
    stage.run(fails_in=0)


def partitions_that_came_later(stage: Stage) -> None:
    """Plan the batch that begins a new topic and a new partition."""
    stage.create("older-pattern-a")
    stage.produce("older-pattern-a", 0, 5)
    stage.run()
    stage.grow("older-pattern-a", 2)
    stage.create("older-pattern-b")
    for topic, partition in (("older-pattern-a", 0), ("older-pattern-a", 1), ("older-pattern-b", 0)):
        stage.produce(topic, partition, 4)
    stage.run(fails_in=1)


def all_read(stage: Stage) -> None:
    stage.create("older-ended")
    stage.produce("older-ended", 0, 5)
    stage.run()


def three_gone(stage: Stage) -> None:
    """Plan a batch after deleted records, which it counts as skipped."""
    stage.create("older-skipped")
    stage.produce("older-skipped", 0, 5)
    stage.run()
    stage.produce("older-skipped", 0, 7)
    stage.delete_before("older-skipped", 8)
    stage.run(fails_in=1)


def recreated(stage: Stage) -> None:
    """Plan the first batch of a recreated topic."""
    stage.create("older-recreated")
    stage.produce("older-recreated", 0, 6)
    stage.run()
    stage.recreate("older-recreated")
    stage.produce("older-recreated", 0, 4)
    stage.run(fails_in=1)


def begun_by_the_connector(stage: Stage) -> None:
    """Complete batch 0 with Spark's own connector; plan batch 1 with this source."""
    stage.create("older-connector", 2)
    stage.produce("older-connector", 0, 5)
    stage.run(format=JVM)
    stage.produce("older-connector", 0, 3)
    stage.produce("older-connector", 1, 2)
    stage.run(fails_in=1)


@dataclass(frozen=True)
class Case:
    options: dict[str, str]
    play: Callable[[Stage], None]


EARLIEST = {"startingOffsets": "earliest"}
CASES = {
    "subscribe": Case({"subscribe": "older-subscribe", **EARLIEST, "maxOffsetsPerTrigger": "6"}, two_partitions),
    "group": Case({"subscribe": "older-group", "kafka.group.id": GROUP}, group_moved_since),
    "timestamp": Case(
        {"subscribe": "older-time", "startingTimestamp": str(FIRST_TIME_MS + 4_000), "maxOffsetsPerTrigger": "3"},
        time_of_the_fifth,
    ),
    "pattern": Case(
        {"subscribePattern": "older-pattern-.*", **EARLIEST, "maxInputPartitions": "1"}, partitions_that_came_later
    ),
    "ended": Case({"subscribe": "older-ended", **EARLIEST}, all_read),
    "skipped": Case({"subscribe": "older-skipped", **EARLIEST, "failOnDataLoss": "false"}, three_gone),
    "recreated": Case({"subscribe": "older-recreated", **EARLIEST, "onTopicRecreated": "earliest"}, recreated),
    "connector": Case({"subscribe": "older-connector", **EARLIEST}, begun_by_the_connector),
}


def produce_more(stage: Stage) -> None:
    for topic, partition in list(stage.records):
        stage.produce(topic, partition, 3)


# -- the test ---------------------------------------------------------------------------------------


def put_back(case: str, stage: Stage) -> None:
    """Copy the stored checkpoint of a case, with the topic ids of this cluster."""
    shutil.copytree(CHECKPOINTS / case / "checkpoint", stage.checkpoint)
    old_ids, new_ids = json.loads(stage.last_offsets())["@ids"], stage.topic_ids()
    assert old_ids.keys() == new_ids.keys()
    for path in (stage.checkpoint / "offsets").iterdir():
        text = path.read_text()
        for topic, old_id in old_ids.items():
            text = text.replace(old_id, new_ids[topic])
        path.write_text(text)


@pytest.fixture
def stage(spark: SparkSession, kafka1: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    case = CASES[request.param]
    stage = Stage(kafka1, spark, tmp_path / "checkpoint", case.options)
    case.play(stage)
    yield stage
    delete_topics(kafka1, *{topic for topic, _ in stage.records})


@pytest.mark.parametrize(("case", "stage"), [(name, name) for name in CASES], indirect=["stage"], ids=CASES)
def test_checkpoint_of_older_version_resumes_with_same_batches(case: str, stage: Stage) -> None:
    put_back(case, stage)
    produce_more(stage)
    expected = json.loads((CHECKPOINTS / case / "next.json").read_text())
    assert stage.resume() == expected["batches"]
    offsets = json.loads(stage.last_offsets())
    assert offsets == {**expected["offsets"], "@ids": stage.topic_ids(), "@cluster": offsets["@cluster"]}
    if group := stage.options.get("kafka.group.id"):
        assert {row.lag for row in describe(stage.kafka, group)} == {0}


@pytest.mark.parametrize("stage", ["ended"], indirect=True)
def test_checkpoint_of_older_version_refuses_recreated_topic(stage: Stage) -> None:
    """Keep the stored topic id, which differs from that of the new topic."""
    shutil.copytree(CHECKPOINTS / "ended" / "checkpoint", stage.checkpoint)
    produce_more(stage)
    old_id = json.loads(stage.last_offsets())["@ids"]["older-ended"]
    with pytest.raises(
        StreamingQueryException, match=f"older-ended was deleted and created again: its id was {old_id}"
    ):
        stage.resume()


# -- to write them ----------------------------------------------------------------------------------


def write(folder: Path) -> None:
    from tests.support import spark_home
    from tests.support.jvm_connector import jvm_connector_jars

    spark_home.use()
    jars = ",".join(map(str, jvm_connector_jars()))
    spark = SparkSession.builder.appName("checkpoints").config("spark.jars", jars).getOrCreate()
    with LocalKafka(1) as kafka, TemporaryDirectory() as scratch:
        for name, case in CASES.items():
            stage = Stage(kafka, spark, Path(scratch) / name, case.options, writes=True)
            case.play(stage)
            # Without Spark's hidden checksum files, the tests can edit files of the checkpoint.
            left_out = shutil.ignore_patterns(".*")
            shutil.copytree(stage.checkpoint, folder / name / "checkpoint", ignore=left_out, dirs_exist_ok=True)
            produce_more(stage)
            resumed = {"batches": stage.resume(), "offsets": json.loads(stage.last_offsets())}
            (folder / name / "next.json").write_text(json.dumps(resumed, indent=1) + "\n")
    spark.stop()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
