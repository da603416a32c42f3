"""A query's first batch, whose start is not in Spark's checkpoint: its replay after a failure, and `availableNow`.

Without Spark: the tests call a reader as a query does. `test_topic_changes` compares with Spark's own connector.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from protocol.base.clock import Deadline
from protocol.errors import DataLoss
from protocol.group.commits.committed_offsets import fetch_offsets
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.support.consumer_groups import move_group
from tests.support.wait_for_brokers import wait_until_known

# The records' timestamps are in 1970.
NO_RETENTION = {"retention.ms": "-1"}
Rows = list[tuple[int, int]]


@dataclass
class Query:
    """A query on one topic with its own group. Each reader is one start of it. Rows are (partition, offset)."""

    kafka: LocalKafka
    topic: str
    options: dict[str, str]
    newest_spark: bool = True
    group: str = field(default_factory=lambda: f"group-{uuid.uuid4().hex[:8]}")

    def reader(self, **further: str) -> KafkaStreamReader:
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers, "subscribe": self.topic}
        options |= {"kafka.group.id": self.group, **self.options, **further}
        named = {key: value.replace("TOPIC", self.topic) for key, value in options.items()}
        return KafkaStreamReader(parse_source_options(named, streaming=True))

    def end_of_next(self, reader: KafkaStreamReader, start: JsonDict) -> JsonDict:
        return reader.latestOffset(start, reader.getDefaultReadLimit()) if self.newest_spark else reader.latestOffset()

    def plan(self, meanwhile: Callable[[], None] = lambda: None) -> JsonDict:
        """Plan the first batch and stop before it is read; return its end, as in the checkpoint."""
        reader = self.reader()
        start = reader.initialOffset()
        meanwhile()
        end = self.end_of_next(reader, start)
        reader.partitions(reader.initialOffset(), end)
        stop(reader)
        return end

    def resume(self, end: JsonDict, **further: str) -> Rows:
        """Replay the first batch and read all later ones; return the rows."""
        reader = self.reader(**further)
        start, rows = reader.initialOffset(), []
        while end != start:
            for task in reader.partitions(start, end):
                rows += [row for batch in reader.read(task) for row in zip(*map(batch.column, (3, 4)), strict=True)]
            start, end = end, self.end_of_next(reader, end)
        stop(reader)
        return sorted((partition.as_py(), offset.as_py()) for partition, offset in rows)

    def produce(self, offsets: range, partition: int = 0) -> None:
        """Write records whose timestamps are as many seconds after 1970 as their offsets."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for offset in offsets:
            producer.produce(self.topic, b"%d" % offset, partition=partition, timestamp=1000 * offset or 1)
        assert producer.flush(30) == 0

    def commit(self, offset: int) -> None:
        move_group(self.kafka, self.group, {(self.topic, 0): offset})

    def committed(self) -> int | None:
        with client_of(self.kafka) as client:
            offsets = fetch_offsets(client, self.group, [(self.topic, 0)], client.deadline())
        return offsets[self.topic, 0].offset if offsets else None

    def add_partition(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        admin.create_partitions([NewPartitions(self.topic, 2)])[self.topic].result(30)
        wait_until_known(self.kafka, self.topic, 2)
        self.produce(range(3), partition=1)


def stop(reader: KafkaStreamReader) -> None:
    if (manager := reader.query.commits.manager) is not None:
        assert manager.flush(Deadline.after_ms(30_000))
    reader.stop()


def rows(begin: int, end: int, partition: int = 0) -> Rows:
    return [(partition, offset) for offset in range(begin, end)]


@dataclass(frozen=True)
class Start:
    """A query with `options`: at the plan, when the log has ten records, they resolve to the offset `begins`.

    At the replay the log has 15 records. The group's offset is 4, unless `group` is False.
    """

    begins: int
    options: dict[str, str]
    before_replay: Callable[[Query], None] = lambda _: None
    group: bool = True
    added: Rows = field(default_factory=list)


NO_GROUP = {"kafka.auto.offset.reset": "latest", "commitOffsets": "false"}
STARTS = {
    "latest": Start(10, {"startingOffsets": "latest"}),
    "latest, new partition": Start(10, {"startingOffsets": "latest"}, Query.add_partition, added=rows(0, 3, 1)),
    "earliest, another option": Start(0, {"startingOffsets": "earliest"}),
    "group": Start(4, {}, lambda query: query.commit(8)),
    "group, past the end": Start(4, {}, lambda query: query.commit(99)),
    "group without offsets": Start(10, NO_GROUP, group=False),
    "time of no record": Start(
        10,
        {"startingTimestamp": "1000000", "startingOffsetsByTimestampStrategy": "latest"},
        Query.add_partition,
        added=rows(0, 3, 1),
    ),
    "time": Start(4, {"startingTimestamp": "4000"}, Query.add_partition, added=rows(0, 3, 1)),
    "JSON -1": Start(10, {"startingOffsets": '{"TOPIC": {"0": -1}}'}),
    "JSON that lacks a new partition": Start(
        4, {"startingOffsets": '{"TOPIC": {"0": 4}}'}, Query.add_partition, added=rows(0, 3, 1)
    ),
}


@pytest.mark.parametrize(
    ("start", "newest_spark"),
    [*((start, True) for start in STARTS.values()), (STARTS["latest"], False), (STARTS["group"], False)],
    ids=[*STARTS, "latest, PySpark before 4.2", "group, PySpark before 4.2"],
)
def test_failed_first_batch_is_replayed_from_its_start(
    kafka1: LocalKafka, topic1: TopicFactory, start: Start, newest_spark: bool, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(kafka1, topic1(config=NO_RETENTION), start.options, newest_spark)
    query.produce(range(10))
    if start.group:
        query.commit(4)
    end = query.plan()
    assert end[query.topic] == {"0": 10}
    assert query.committed() == (start.begins if start.group else None), "no further than what is complete"
    start.before_replay(query)
    query.produce(range(10, 15))
    further = {"startingOffsets": "latest"} if start.begins == 0 else {}
    caplog.clear()
    assert query.resume(end, **further) == [*rows(start.begins, 15), *start.added]
    assert query.committed() == (15 if start.group else None)
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert sum("first batch" in message for message in warnings) == 1


def test_checkpoint_without_start_of_first_batch_begins_at_starting_offsets(
    kafka1: LocalKafka, topic1: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Such checkpoints come from older versions and from Spark's own connector."""
    query = Query(kafka1, topic1(config=NO_RETENTION), {"startingOffsets": '{"TOPIC": {"0": 4}}'})
    query.produce(range(15))
    assert query.resume({query.topic: {"0": 10}}) == rows(4, 15)
    assert "the checkpoint lacks the start of the first batch" in caplog.text


def test_checkpoint_without_start_fails_if_starting_offsets_exceed_its_end(
    kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    """The error does not report a truncated log, whose remedies differ."""
    query = Query(kafka1, topic1(config=NO_RETENTION), {"startingOffsets": "latest"})
    query.produce(range(15))
    end = {query.topic: {"0": 10}}
    with pytest.raises(DataLoss, match=r"lacks the start .*: \S+ starts at 15 and ends at 10\.") as raised:
        query.resume(end)
    assert "truncated" not in str(raised.value)
    assert query.resume(end, failOnDataLoss="false") == rows(10, 15)
    assert query.resume(end, startingOffsets='{"TOPIC": {"0": 8}}') == rows(8, 15)


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"kafka.auto.offset.reset": "latest"}])
def test_available_now_starting_after_its_prepared_end_is_empty(
    kafka1: LocalKafka, topic1: TopicFactory, options: dict[str, str]
) -> None:
    """`prepareForTriggerAvailableNow` fixes the end first; a busy topic has grown when the start is resolved."""
    query = Query(kafka1, topic1(config=NO_RETENTION), options)
    query.produce(range(10))
    reader = query.reader()
    reader.prepareForTriggerAvailableNow()
    query.produce(range(10, 15))
    start = reader.initialOffset()
    query.produce(range(15, 20))
    end = query.end_of_next(reader, start)
    assert query.end_of_next(reader, end) == end, "nothing is new for a run that ends before"
    stop(reader)
    begins = end["@joined"][query.topic]["0"]
    assert (begins, query.committed()) == (end[query.topic]["0"], begins)
    assert query.resume(end) == rows(begins, 20)
