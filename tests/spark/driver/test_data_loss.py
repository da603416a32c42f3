"""Records that are gone are never passed over silently, and trouble that passes never moves a position.

Loss: a query has read `READ` records of a partition, and then the log loses some. It must fail, with the partition
and the offsets named and the group left where it was; with failOnDataLoss=false it reads all that is there, once,
and says how many offsets are missing. Trouble: single replies are lost, late or replaced by errors under a query.
`make soak` repeats everything (`SPARK_KAFKA_SOURCE_REPEATS`).
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster import unknown_topic
from protocol.errors import DataLoss
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from protocol.wire.schema import Api
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.lag import lag_of_query
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict, Offsets
from tests.conftest import TopicFactory
from tests.kafka_proxy import Exchange, Fate, KafkaProxy
from tests.soak import SOAK, variants
from tests.topic_changes import delete_topics, recreate

# `make soak` asks for 20.
REPEATS = int(os.environ.get("SPARK_KAFKA_SOURCE_REPEATS", "1"))
READ = 10
NOTHING = -1001
REQUEST_TIMEOUT_S = 1.0

CHANGED = "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED"
DELETED = "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
UNREADABLE = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"

_NO_COORDINATOR = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}

Row = tuple[int, str]


# -- what happens to a log ------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """`spoil` takes records away, and writes others. Then the query fails with `said`, a pattern.

    `left` is what is there to be read, (offset, value); `logged` is the pattern of the warning when the query may go
    on without the rest, and `skipped` how many offsets it counts as left out.
    """

    spoil: Callable[[LocalKafka, str], None]
    error_class: str
    said: str
    left: list[Row]
    logged: str
    skipped: int = 0


def delete_some(kafka: LocalKafka, topic: str) -> None:
    produce(kafka, topic, "old", 10)
    delete_records(kafka, topic, 15)


def delete_all(kafka: LocalKafka, topic: str) -> None:
    produce(kafka, topic, "old", 10)
    delete_records(kafka, topic, 20)


def let_retention_take_some(kafka: LocalKafka, topic: str) -> None:
    produce(kafka, topic, "old", 10)
    set_topic(kafka, topic, {"retention.ms": "1"})
    wait_for(lambda: offset_at(kafka, topic, OffsetSpec.earliest()) == 20)
    set_topic(kafka, topic, {"retention.ms": "-1"})
    # The leader learns of that later. Till then it takes what is older than now, not what is of a time to come.
    produce(kafka, topic, "new", 5, timestamp_ms=int(time.time() * 1000) + 600_000)


def recreate_shorter(kafka: LocalKafka, topic: str) -> None:
    recreate(kafka, topic)
    produce(kafka, topic, "new", 4)


def recreate_longer(kafka: LocalKafka, topic: str) -> None:
    recreate(kafka, topic)
    produce(kafka, topic, "new", 15)


def rows(value: str, offsets: range) -> list[Row]:
    """What `produce` writes."""
    return [(offset, f"{value}{number}") for number, offset in enumerate(offsets)]


HOLE = "offsets 10 to {} are not in the log any more; wanted.*retention or DeleteRecords"
ANEW = "was deleted and created again: its id was .*, now it is .*"
LOSSES = {
    "some records are deleted": Loss(
        delete_some, UNREADABLE, HOLE.format(15), rows("old", range(10, 20))[5:], "5 offsets are skipped", 5
    ),
    "all records are deleted": Loss(delete_all, UNREADABLE, HOLE.format(20), [], "10 offsets are skipped", 10),
    "retention takes some": Loss(
        let_retention_take_some, UNREADABLE, HOLE.format(20), rows("new", range(20, 25)), "10 offsets are skipped", 10
    ),
    "recreated, shorter": Loss(
        recreate_shorter, CHANGED, ANEW + "; offsets up to 10 of", rows("new", range(4)), "offsets up to 10 of .*-0"
    ),
    "recreated, longer": Loss(
        recreate_longer, CHANGED, ANEW + "; offsets up to 10 of", rows("new", range(15)), "offsets up to 10 of .*-0"
    ),
    "deleted": Loss(delete_topics, DELETED, "-0 is not there any more: .* up to offset 10", [], "up to offset 10"),
}


# -- streams, with Spark and without ---------------------------------------------------


class Stream:
    """Without Spark, for many repeats: calls a reader as micro-batches do, each `run` a new one."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.kafka, self.topic, self.group = kafka, topic, new_group()
        self.checkpoint: JsonDict | None = None
        self._planned: JsonDict | None = None

    def run(self, spoil: Callable[[], None] | None = None, **options: str) -> list[Row]:
        """What there is to read of partition 0, until nothing is new; first the batch that is planned already.

        `spoil` comes between the plan of the first batch and its tasks.
        """
        found: list[Row] = []
        with self._reader(options) as reader:
            while (end := self._planned or self._next_end(reader)) != self.checkpoint:
                self._planned = end
                assert self.checkpoint is not None
                tasks = reader.partitions(self.checkpoint, end)
                if spoil is not None:
                    spoil()
                    spoil = None
                for task in tasks:
                    for batch in reader.read(task):
                        found += [
                            (row["offset"], row["value"].decode()) for row in batch.to_pylist() if row["partition"] == 0
                        ]
                self.checkpoint, self._planned = end, None
        return found

    def plan(self) -> None:
        """The next batch's end, as if the query stopped before it was read."""
        with self._reader({}) as reader:
            self._planned = self._next_end(reader)

    @contextmanager
    def _reader(self, options: Mapping[str, str]) -> Iterator[KafkaStreamReader]:
        reader = KafkaStreamReader(parse_source_options(self._options(options), streaming=True))
        try:
            yield reader
        finally:
            # A run of Spark's gives its last commit ten seconds, this one as much as a slow machine needs.
            if (manager := reader._query.commits._manager) is not None:
                manager.flush(Deadline.after_ms(30_000))
            reader.stop()

    def _next_end(self, reader: KafkaStreamReader) -> JsonDict:
        if self.checkpoint is None:
            self.checkpoint = reader.initialOffset()
        return reader.latestOffset(self.checkpoint, reader.getDefaultReadLimit())

    @property
    def skipped(self) -> int:
        assert self.checkpoint is not None
        return sum(Offsets.from_json_dict(self.checkpoint).skipped.values())

    def _options(self, options: Mapping[str, str]) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.group.id": self.group,
            **options,
        }


class Batches:
    """What a query has delivered, by batch: a batch that is tried again replaces itself."""

    def __init__(self) -> None:
        self.by_id: dict[int, list[tuple[int, int, str]]] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        found = batch.selectExpr("partition", "offset", "string(value)").collect()
        self.by_id[batch_id] = sorted((row[0], row[1], row[2]) for row in found)

    def all(self) -> list[tuple[int, int, str]]:
        return [row for batch_id in sorted(self.by_id) for row in self.by_id[batch_id]]


def query_of(
    spark: SparkSession, servers: str, batches: Batches, checkpoint: Path, trigger: Mapping[str, Any], **options: str
) -> StreamingQuery:
    rows = spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", servers).options(**options).load()
    writer = rows.writeStream.foreachBatch(batches).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


class SparkStream:
    """The same with Spark: each `run` is a query."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, topic: str, folder: Path) -> None:
        self.kafka, self.topic, self.group = kafka, topic, new_group()
        self._spark, self._folder = spark, folder / topic
        self.skipped = 0

    def run(self, **options: str) -> list[Row]:
        batches = Batches()
        given = {"subscribe": self.topic, "startingOffsets": "earliest", "kafka.group.id": self.group, **options}
        servers = self.kafka.bootstrap_servers
        query = query_of(self._spark, servers, batches, self._folder, {"availableNow": True}, **given)
        assert query.awaitTermination(60)
        self.skipped = lag_of_query(query).skipped
        return [(offset, value) for partition, offset, value in batches.all() if partition == 0]


def check_loss(stream: Stream | SparkStream, loss: Loss) -> None:
    """The log of a stream that has read `READ` records has lost some."""
    with pytest.raises(Exception, match=rf"\[{loss.error_class}\]") as caught:
        stream.run()
    said = str(caught.value)
    assert re.search(loss.said, said)
    assert stream.topic in said
    assert "failOnDataLoss=false" in said
    # with a topic the broker forgets what groups have committed for it, and nothing is committed for another one
    left = NOTHING if loss.said.startswith(ANEW) or loss.error_class == DELETED else READ
    wait_for(lambda: committed(stream.kafka, stream.group, stream.topic) == left)
    assert stream.run(failOnDataLoss="false") == loss.left
    assert stream.skipped == loss.skipped
    if loss.left:
        last, _ = loss.left[-1]
        wait_for(lambda: committed(stream.kafka, stream.group, stream.topic) == last + 1)
        produce(stream.kafka, stream.topic, "on", 3)
        assert stream.run() == rows("on", range(last + 1, last + 4))
        assert stream.skipped == loss.skipped


def check_logged(loss: Loss, stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert any(stream.topic in warning and re.search(loss.logged, warning) for warning in warnings), warnings


@pytest.mark.timeout(120 + 20 * REPEATS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_loss_is_told_and_only_what_is_missing_is_skipped(
    loss: Loss,
    kafka: LocalKafka,
    topic: TopicFactory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a topic that is missing for good need not be waited for; one recreated must be known to all brokers by then
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 1_000)
    for _ in range(REPEATS):
        stream = Stream(kafka, topic(1))
        produce(kafka, stream.topic, "first", READ)
        assert stream.run() == rows("first", range(READ))
        loss.spoil(kafka, stream.topic)
        check_loss(stream, loss)
        check_logged(loss, stream, caplog)


def test_a_topic_deleted_when_its_batch_is_planned_already(
    kafka: LocalKafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch fails each time it is tried again; with failOnDataLoss=false it is what is there, and others follow."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 300)
    for _ in range(REPEATS):
        kept, gone = topic(1), topic(1)
        stream = Stream(kafka, f"{kept},{gone}")
        for name in (kept, gone):
            produce(kafka, name, "first", READ)
        assert len(stream.run()) == 2 * READ
        for name in (kept, gone):
            produce(kafka, name, "next", 3)
        stream.plan()
        delete_topics(kafka, gone)
        for _ in range(2):
            with pytest.raises(DataLoss, match=rf"\[{UNREADABLE}\] {gone}-0: .* deleted.*failOnDataLoss=false"):
                stream.run()
        assert stream.run(failOnDataLoss="false") == rows("next", range(READ, READ + 3))
        produce(kafka, kept, "last", 2)
        assert stream.run(failOnDataLoss="false") == rows("last", range(READ + 3, READ + 5))


@pytest.mark.parametrize("option", ["failOnDataLoss=false", "onTopicRecreated=earliest"])
def test_a_topic_recreated_between_plan_and_reading(
    option: str, kafka: LocalKafka, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """With fewer records than were read, as many as were planned, and more. The next batch has them all."""
    names, lengths = [topic(1) for _ in range(3)], [4, READ + 3, READ + 10]
    stream = Stream(kafka, ",".join(names))
    for name in names:
        produce(kafka, name, "first", READ)
    assert len(stream.run()) == 3 * READ

    def recreate_all() -> None:
        recreate(kafka, *names)
        for name, length in zip(names, lengths, strict=True):
            produce(kafka, name, "new", length)

    for name in names:
        produce(kafka, name, "next", 3)
    found = stream.run(recreate_all, **dict([option.split("=")]))
    assert sorted(found) == sorted(row for length in lengths for row in rows("new", range(length)))
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    for name in names:
        lost = f"{name}-0: the topic was deleted and created again .*onTopicRecreated=earliest: 3 offsets are skipped"
        assert len([each for each in warnings if re.search(lost, each)]) == 1, warnings


# -- an unclean election ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Truncation:
    """Half of what was read is gone; then others are written in its place until the log is `new` records long again."""

    new: int
    error_class: str
    said: str
    grows_unnoticed: bool = False
    """First only to where it ended before, while the other partition goes on; then by three records more."""

    @property
    def left(self) -> list[Row]:
        end = READ // 2 + self.new
        return rows("new", range(READ // 2, end)) + (rows("next", range(end, end + 3)) if self.grows_unnoticed else [])


AGREED = "it is still the one that was read only up to offset 5"
GROWN = Truncation(15, UNREADABLE, f"the log was truncated below offset 10: .* {AGREED}")
TRUNCATIONS = [
    Truncation(2, CHANGED, "ends at offset 7, but the query has read up to 10: .* Offsets 5 to 10 were read"),
    GROWN,
    Truncation(5, UNREADABLE, f"the log was truncated below offset 10: .* {AGREED}", grows_unnoticed=True),
]


@pytest.mark.skipif(not SOAK, reason="takes half a minute; `make soak` runs it")
@pytest.mark.timeout(120 + 60 * REPEATS)
def test_a_truncated_log_is_told_also_when_it_has_grown_again(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Replicas without the second half of what was read take over: one election for all cases."""
    for _ in range(REPEATS):
        leader, follower, other = random.sample(kafka.broker_ids, 3)
        topics = [replicated(kafka, [leader, follower], [other, leader]) for _ in range(len(TRUNCATIONS) + 1)]
        with_spark = SparkStream(spark, kafka, topics[0], tmp_path)
        streams = [with_spark, *(Stream(kafka, each) for each in topics[1:])]
        try:
            for stream in streams:
                produce(kafka, stream.topic, "first", READ // 2)
            kafka.stop(follower)
            wait_for(lambda: all(in_sync(kafka, each.topic) == {leader} for each in streams))  # noqa: B023
            for stream in streams:
                produce(kafka, stream.topic, "lost", READ - READ // 2)
                assert len(stream.run()) == READ
            kafka.stop(leader)
            kafka.start(follower)
            wait_for(lambda: all(leader_of(kafka, each.topic) == follower for each in streams))  # noqa: B023
        finally:
            kafka.start(*{leader, follower} - {each for each in kafka.broker_ids if kafka.pid(each) is not None})
        for stream, case in zip(streams, [GROWN, *TRUNCATIONS], strict=True):
            produce(kafka, stream.topic, "new", case.new)
            if case.grows_unnoticed:
                produce(kafka, stream.topic, "other", 3, partition=1)
                assert stream.run() == []
                produce(kafka, stream.topic, "next", 3)
            loss = Loss(lambda *_: None, case.error_class, case.said, case.left, "Offsets 5 to 10 were read")
            check_loss(stream, loss)
            if isinstance(stream, Stream):
                check_logged(loss, stream, caplog)
        admin(kafka).delete_topics(topics)


# Without Spark they are all above.
@variants("what", list(LOSSES), "some records are deleted", "recreated, shorter")
def test_loss_fails_the_query(
    what: str, spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    stream = SparkStream(spark, kafka, topic(1), tmp_path)
    produce(kafka, stream.topic, "first", READ)
    assert stream.run() == rows("first", range(READ))
    LOSSES[what].spoil(kafka, stream.topic)
    check_loss(stream, LOSSES[what])


# -- trouble that passes --------------------------------------------------------------------------


class Once:
    """Lets the rule decide about one frame that it has something to say of, and all others go on."""

    def __init__(self, rule: Callable[[Exchange], Fate | float | bytes | None]) -> None:
        self._rule = rule
        self._lock = threading.Lock()
        self.fired = False

    def __call__(self, exchange: Exchange) -> Fate | float | bytes:
        with self._lock:
            fate = None if self.fired else self._rule(exchange)
            self.fired = self.fired or fate is not None
        return Fate.PASS if fate is None else fate


def lost(_: Exchange) -> Fate:
    return Fate.CUT


def late(_: Exchange) -> float:
    """Longer than the client waits: a timeout."""
    return REQUEST_TIMEOUT_S * 1.5


NOTHING_KNOWN = {
    "topics": [],
    "partitions": [],
    "records": b"",
    "offset": -1,
    "end_offset": -1,
    "committed_offset": -1,
    "high_watermark": -1,
}


def refused(code: ErrorCode, *path: str) -> Callable[[Exchange], bytes | None]:
    """The rows at `path` carry an error code instead of what they said; None where the reply has none."""

    def rule(exchange: Exchange) -> bytes | None:
        body = exchange.reply()
        found = [body]
        for key in path:
            found = [row for each in found for row in each[key]]
        for row in found:
            row.update({key: nothing for key, nothing in NOTHING_KNOWN.items() if key in row}, error_code=code)
        return exchange.reply_with(body) if found else None

    return rule


FETCHED = ("responses", "partitions")
LISTED = ("topics", "partitions")
Trouble = Mapping[Api, Callable[[Exchange], "Fate | float | bytes | None"]]

RUNNING: dict[str, Trouble] = {
    "Metadata: unknown topic": {METADATA: refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topics")},
    "Metadata: no leader": {METADATA: refused(ErrorCode.LEADER_NOT_AVAILABLE, "topics", "partitions")},
    "Metadata lost": {METADATA: lost},
    "Metadata late": {METADATA: late},
    "ListOffsets: unknown topic": {LIST_OFFSETS: refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *LISTED)},
    "ListOffsets: not the leader": {LIST_OFFSETS: refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, *LISTED)},
    "ListOffsets: not yet": {LIST_OFFSETS: refused(ErrorCode.OFFSET_NOT_AVAILABLE, *LISTED)},
    "ListOffsets lost": {LIST_OFFSETS: lost},
    "ListOffsets late": {LIST_OFFSETS: late},
    "Fetch: unknown topic": {FETCH: refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *FETCHED)},
    "Fetch: unknown topic id": {FETCH: refused(ErrorCode.UNKNOWN_TOPIC_ID, *FETCHED)},
    "Fetch: not the leader": {FETCH: refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, *FETCHED)},
    "Fetch: old epoch": {FETCH: refused(ErrorCode.FENCED_LEADER_EPOCH, *FETCHED)},
    "Fetch: out of range": {FETCH: refused(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCHED)},
    "Fetch: out of range, epoch lost": {
        FETCH: refused(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCHED),
        OFFSET_FOR_LEADER_EPOCH: lost,
    },
    "Fetch: out of range, epoch late": {
        FETCH: refused(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCHED),
        OFFSET_FOR_LEADER_EPOCH: late,
    },
    "Fetch: out of range, epoch refused": {
        FETCH: refused(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCHED),
        OFFSET_FOR_LEADER_EPOCH: refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, *LISTED),
    },
    "Fetch lost": {FETCH: lost},
    "Fetch late": {FETCH: late},
    "OffsetCommit: loading": {OFFSET_COMMIT: refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *LISTED)},
    "OffsetCommit lost": {OFFSET_COMMIT: lost},
}
STARTING: dict[str, Trouble] = {
    "OffsetFetch: loading": {OFFSET_FETCH: refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups")},
    "OffsetFetch: moved": {OFFSET_FETCH: refused(ErrorCode.NOT_COORDINATOR, "groups")},
    "OffsetFetch: open transaction": {
        OFFSET_FETCH: refused(ErrorCode.UNSTABLE_OFFSET_COMMIT, "groups", "topics", "partitions")
    },
    "OffsetFetch lost": {OFFSET_FETCH: lost},
    "OffsetFetch late": {OFFSET_FETCH: late},
    "ListOffsets lost": {LIST_OFFSETS: lost},
    "Metadata: unknown topic": {METADATA: refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topics")},
}


@dataclass
class Commits:
    """The offsets of every OffsetCommit that passes, by partition."""

    of: dict[int, list[int]] = field(default_factory=dict)

    def __call__(self, exchange: Exchange) -> Fate:
        for topic in exchange.request()["topics"]:
            for row in topic["partitions"]:
                self.of.setdefault(row["partition_index"], []).append(row["committed_offset"])
        return Fate.PASS

    def never_go_back(self) -> bool:
        return all(offsets == sorted(offsets) for offsets in self.of.values())


@pytest.mark.timeout(300 + 60 * REPEATS)
def test_trouble_that_passes_moves_no_position_of_a_running_query(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, group, batches, commits = topic(2), new_group(), Batches(), Commits()
    with KafkaProxy.of(kafka) as proxy:
        proxy.requests[OFFSET_COMMIT] = commits
        query = query_of(
            spark,
            proxy.servers,
            batches,
            tmp_path,
            {"processingTime": "50 milliseconds"},
            **group_options(name, group),
        )
        written = 0

        def go_on() -> None:
            nonlocal written
            for partition in range(2):
                produce(kafka, name, f"{written}-", 2, partition=partition)
            written += 2
            wait_for(lambda: len(batches.all()) >= 2 * written and all(rule.fired for rule in armed), query)

        armed: list[Once] = []
        go_on()
        for _ in range(REPEATS):
            for what in random.sample(sorted(RUNNING), len(RUNNING)):
                rules = {api: Once(rule) for api, rule in RUNNING[what].items()}
                armed = list(rules.values())
                proxy.replies.update(rules)
                go_on()
                proxy.replies.clear()
        wait_for(lambda: all(committed(kafka, group, name, each) == written for each in range(2)), query)
        query.stop()
    assert commits.never_go_back()
    found = batches.all()
    for partition in range(2):
        offsets = [offset for number, offset, _ in found if number == partition]
        assert offsets == list(range(written))


@pytest.mark.parametrize("what", STARTING)
def test_trouble_that_passes_moves_no_position_of_a_query_that_starts(
    what: str, kafka: LocalKafka, topic: TopicFactory
) -> None:
    """It begins where the group is, at 4: not at the beginning, not at the end; also after a restart."""
    for _ in range(REPEATS):
        name, commits = topic(1), Commits()
        produce(kafka, name, "first", READ)
        with KafkaProxy.of(kafka) as proxy:
            stream = Stream(kafka, name)
            commit(kafka, stream.group, name, 4)
            proxy.requests[OFFSET_COMMIT] = commits
            options = {**group_options(name, stream.group), "kafka.bootstrap.servers": proxy.servers}
            for begins in (4, READ):
                rules = {api: Once(rule) for api, rule in STARTING[what].items()}
                proxy.replies.update(rules)
                assert [offset for offset, _ in stream.run(**options)] == list(range(begins, begins + 6))
                assert all(rule.fired for rule in rules.values())
                produce(kafka, name, "more", 6)
        assert commits.never_go_back()
        wait_for(lambda: committed(kafka, stream.group, name) == READ + 6)  # noqa: B023


# -- Kafka by librdkafka --------------------------------------------------------------------------


def admin(kafka: LocalKafka) -> AdminClient:
    return _admin(kafka.bootstrap_servers)


@lru_cache(maxsize=1)
def _admin(servers: str) -> AdminClient:
    # kept, since nobody would answer the futures of one that is gone
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def produce(
    kafka: LocalKafka, topic: str, value: str, records: int, *, partition: int = 0, timestamp_ms: int = 0
) -> None:
    """`records` of the values `value`0, `value`1, …; without a time that of now."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "linger.ms": 0})
    for number in range(records):
        producer.produce(topic, f"{value}{number}", partition=partition, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def delete_records(kafka: LocalKafka, topic: str, before: int) -> None:
    wanted = TopicPartition(topic, 0, before)
    for deleted in admin(kafka).delete_records([wanted]).values():
        assert deleted.result(30).low_watermark == before


def set_topic(kafka: LocalKafka, topic: str, settings: Mapping[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for altered in admin(kafka).incremental_alter_configs([resource]).values():
        altered.result(30)


def replicated(kafka: LocalKafka, *replicas: list[int]) -> str:
    """A topic with these replicas for each partition, the first being the leader, and unclean elections."""
    name = f"truncated-{uuid.uuid4().hex[:8]}"
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    admin(kafka).create_topics([NewTopic(name, len(replicas), replica_assignment=list(replicas), config=settings)])[
        name
    ].result(30)
    wait_for(lambda: leader_of(kafka, name) == replicas[0][0])
    return name


def leader_of(kafka: LocalKafka, topic: str) -> int:
    known = admin(kafka).list_topics(topic, timeout=10).topics[topic].partitions
    return known[0].leader if known else -1


def in_sync(kafka: LocalKafka, topic: str) -> set[int]:
    return set(admin(kafka).list_topics(topic, timeout=10).topics[topic].partitions[0].isrs)


def offset_at(kafka: LocalKafka, topic: str, where: OffsetSpec) -> int:
    [listed] = admin(kafka).list_offsets({TopicPartition(topic, 0): where}).values()
    return listed.result(30).offset


def committed(kafka: LocalKafka, group: str, topic: str, partition: int = 0) -> int | None:
    """None while the group's coordinator is not to be had: librdkafka does not ask again."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    [answer] = admin(kafka).list_consumer_group_offsets([asked]).values()
    try:
        return answer.result(30).topic_partitions[0].offset
    except KafkaException as error:
        if error.args[0].code() not in _NO_COORDINATOR:
            raise
        return None


def commit(kafka: LocalKafka, group: str, topic: str, offset: int) -> None:
    """Until it is taken: a coordinator that does not know a new topic yet refuses the row, not the call."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])

    def taken() -> bool:
        [altered] = admin(kafka).alter_consumer_group_offsets([wanted]).values()
        [row] = altered.result(30).topic_partitions
        return row.error is None

    wait_for(taken)


def group_options(topic: str, group: str) -> dict[str, str]:
    return {
        "subscribe": topic,
        "kafka.group.id": group,
        "kafka.auto.offset.reset": "earliest",
        "startingOffsets": "group",
        "kafka.request.timeout.ms": str(int(REQUEST_TIMEOUT_S * 1000)),
        "kafka.default.api.timeout.ms": "20000",
    }


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def wait_for(condition: Callable[[], bool], query: StreamingQuery | None = None, timeout_s: float = 60) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert query is None or query.isActive, f"the query died: {query.exception()}"
        assert time.monotonic() < give_up_s, f"it did not happen in {timeout_s} s"
        time.sleep(0.05)
