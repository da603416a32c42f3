"""Lost records are never skipped silently.

A query has read `READ` records of a partition; then the log loses records. The query must fail with the partition and
the offsets, and leave the group's offsets unchanged. With failOnDataLoss=false it reads the remaining records once, and
logs the number of missing offsets. `make soak` repeats everything (`SPARK_KAFKA_SOURCE_REPEATS`).
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import SparkSession

from protocol.cluster import unknown_topic
from protocol.errors import DataLoss
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.spark.driver.streams import READ, REPEATS, Row, SparkStream, Stream
from tests.spark.driver.topic_admin import (
    admin,
    committed,
    delete_records,
    in_sync,
    leader_of,
    offset_at,
    produce,
    replicated,
    set_topic,
    wait_for,
)
from tests.support.soak import SOAK, variants
from tests.support.topic_changes import delete_topics, recreate

pytestmark = pytest.mark.soak

NOTHING = -1001

CHANGED = "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED"
DELETED = "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
UNREADABLE = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"


# -- what happens to a log ------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """A way to lose records, and the expected results.

    `damage` removes records and writes others. Then the query fails with an error that matches `error_pattern`. With
    failOnDataLoss=false it reads `remaining` (offset, value), logs a warning matching `logged`, and counts `skipped`
    offsets.
    """

    damage: Callable[[LocalKafka, str], None]
    error_class: str
    error_pattern: str
    remaining: list[Row]
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
    # The leader applies this with a delay and until then deletes old records, but none with a future timestamp.
    produce(kafka, topic, "new", 5, timestamp_ms=int(time.time() * 1000) + 600_000)


def recreate_shorter(kafka: LocalKafka, topic: str) -> None:
    recreate(kafka, topic)
    produce(kafka, topic, "new", 4)


def recreate_longer(kafka: LocalKafka, topic: str) -> None:
    recreate(kafka, topic)
    produce(kafka, topic, "new", 15)


def rows(value: str, offsets: range) -> list[Row]:
    """Return the rows that `produce` writes."""
    return [(offset, f"{value}{number}") for number, offset in enumerate(offsets)]


HOLE = "offsets 10 to {} are not in the log any more; wanted.*retention or DeleteRecords"
RECREATED_MESSAGE = "was deleted and created again: its id was .*, now it is .*"
LOSSES = {
    "some records are deleted": Loss(
        delete_some, UNREADABLE, HOLE.format(15), rows("old", range(10, 20))[5:], "5 offsets are skipped", 5
    ),
    "all records are deleted": Loss(delete_all, UNREADABLE, HOLE.format(20), [], "10 offsets are skipped", 10),
    "retention takes some": Loss(
        let_retention_take_some, UNREADABLE, HOLE.format(20), rows("new", range(20, 25)), "10 offsets are skipped", 10
    ),
    "recreated, shorter": Loss(
        recreate_shorter,
        CHANGED,
        RECREATED_MESSAGE + "; offsets up to 10 of",
        rows("new", range(4)),
        "offsets up to 10 of .*-0",
    ),
    "recreated, longer": Loss(
        recreate_longer,
        CHANGED,
        RECREATED_MESSAGE + "; offsets up to 10 of",
        rows("new", range(15)),
        "offsets up to 10 of .*-0",
    ),
    "deleted": Loss(delete_topics, DELETED, "-0 no longer exists: .* up to offset 10", [], "up to offset 10"),
}


def check_loss(stream: Stream | SparkStream, loss: Loss) -> None:
    """Check a stream that has read `READ` records and whose log then lost records."""
    with pytest.raises(Exception, match=rf"\[{loss.error_class}\]") as caught:
        stream.run()
    message = str(caught.value)
    assert re.search(loss.error_pattern, message)
    assert stream.topic in message
    assert "failOnDataLoss=false" in message
    # The broker deletes a topic's committed offsets with the topic; the query commits none for a recreated topic.
    remaining = NOTHING if loss.error_pattern.startswith(RECREATED_MESSAGE) or loss.error_class == DELETED else READ
    wait_for(lambda: committed(stream.kafka, stream.group, stream.topic) == remaining)
    assert stream.run(failOnDataLoss="false") == loss.remaining
    assert stream.skipped == loss.skipped
    if loss.remaining:
        last, _ = loss.remaining[-1]
        wait_for(lambda: committed(stream.kafka, stream.group, stream.topic) == last + 1)
        produce(stream.kafka, stream.topic, "on", 3)
        assert stream.run() == rows("on", range(last + 1, last + 4))
        assert stream.skipped == loss.skipped


def check_logged(loss: Loss, stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert any(stream.topic in warning and re.search(loss.logged, warning) for warning in warnings), warnings


@pytest.mark.timeout(120 + 20 * REPEATS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_data_loss_is_logged_and_skips_only_missing_offsets(
    loss: Loss,
    kafka: LocalKafka,
    topic: TopicFactory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Shorter, since a deleted topic does not return; long enough for all brokers to learn of a recreated topic.
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 1_000)
    for _ in range(REPEATS):
        stream = Stream(kafka, topic(1))
        produce(kafka, stream.topic, "first", READ)
        assert stream.run() == rows("first", range(READ))
        loss.damage(kafka, stream.topic)
        check_loss(stream, loss)
        check_logged(loss, stream, caplog)


def test_topic_deleted_after_planning_fails_batch_on_each_replay(
    kafka: LocalKafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replay of the batch fails. With failOnDataLoss=false it has the other topic's rows; the query continues."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 300)
    for _ in range(REPEATS):
        retained, deleted = topic(1), topic(1)
        stream = Stream(kafka, f"{retained},{deleted}")
        for name in (retained, deleted):
            produce(kafka, name, "first", READ)
        assert len(stream.run()) == 2 * READ
        for name in (retained, deleted):
            produce(kafka, name, "next", 3)
        stream.plan()
        delete_topics(kafka, deleted)
        for _ in range(2):
            with pytest.raises(DataLoss, match=rf"\[{UNREADABLE}\] {deleted}-0: .* deleted.*failOnDataLoss=false"):
                stream.run()
        assert stream.run(failOnDataLoss="false") == rows("next", range(READ, READ + 3))
        produce(kafka, retained, "last", 2)
        assert stream.run(failOnDataLoss="false") == rows("last", range(READ + 3, READ + 5))


@pytest.mark.parametrize("option", ["failOnDataLoss=false", "onTopicRecreated=earliest"])
def test_topic_recreated_after_planning_is_read_whole_by_next_batch(
    option: str, kafka: LocalKafka, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """The new topics have fewer records than were read, as many as were planned, or more."""
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
    result = stream.run(recreate_all, **dict([option.split("=")]))
    assert sorted(result) == sorted(row for length in lengths for row in rows("new", range(length)))
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    for name in names:
        lost = f"{name}-0: the topic was deleted and created again .*onTopicRecreated=earliest: 3 offsets are skipped"
        assert len([warning for warning in warnings if re.search(lost, warning)]) == 1, warnings


# -- an unclean election ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Truncation:
    """The log loses the second half of the records that were read; then `new` other records are appended."""

    new: int
    error_class: str
    error_pattern: str
    grows_unnoticed: bool = False
    """The log first grows to its former end, unnoticed by a batch of another partition, then by three records."""

    @property
    def remaining(self) -> list[Row]:
        end = READ // 2 + self.new
        return rows("new", range(READ // 2, end)) + (rows("next", range(end, end + 3)) if self.grows_unnoticed else [])


AGREED = "has the log that was read only up to offset 5"
GROWN = Truncation(15, UNREADABLE, f"the log was truncated below offset 10: .* {AGREED}")
TRUNCATIONS = [
    Truncation(2, CHANGED, "ends at offset 7, but the query has read up to 10: .* Offsets 5 to 10 were read"),
    GROWN,
    Truncation(5, UNREADABLE, f"the log was truncated below offset 10: .* {AGREED}", grows_unnoticed=True),
]


@pytest.mark.skipif(not SOAK, reason="takes half a minute; `make soak` runs it")
@pytest.mark.timeout(120 + 60 * REPEATS)
def test_truncated_log_is_detected_after_it_has_grown_again(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Replicas that lack the second half of the read records become leaders, in one election for all cases."""
    for _ in range(REPEATS):
        leader, follower, second = random.sample(kafka.broker_ids, 3)
        topics = [replicated(kafka, [leader, follower], [second, leader]) for _ in range(len(TRUNCATIONS) + 3)]
        with_spark = SparkStream(spark, kafka, topics[0], tmp_path)
        streams: list[Stream | SparkStream] = [with_spark, *(Stream(kafka, topic) for topic in topics[1:-2])]
        planned = [Stream(kafka, topic) for topic in topics[-2:]]
        try:
            for stream in [*streams, *planned]:
                produce(kafka, stream.topic, "first", READ // 2)
            assert [stream.run() for stream in planned] == [rows("first", range(READ // 2))] * 2
            kafka.stop(follower)
            wait_for(lambda: all(in_sync(kafka, topic) == {leader} for topic in topics))  # noqa: B023
            for stream in streams:
                produce(kafka, stream.topic, "lost", READ - READ // 2)
                assert len(stream.run()) == READ
            for each in planned:
                produce(kafka, each.topic, "lost", READ - READ // 2)
                each.plan()
            kafka.stop(leader)
            kafka.start(follower)
            wait_for(lambda: all(leader_of(kafka, topic) == follower for topic in topics))  # noqa: B023
        finally:
            kafka.start(
                *{leader, follower} - {broker_id for broker_id in kafka.broker_ids if kafka.pid(broker_id) is not None}
            )
        for stream, case in zip(streams, [GROWN, *TRUNCATIONS], strict=True):
            produce(kafka, stream.topic, "new", case.new)
            if case.grows_unnoticed:
                produce(kafka, stream.topic, "other", 3, partition=1)
                assert stream.run() == []
                produce(kafka, stream.topic, "next", 3)
            loss = Loss(
                lambda *_: None, case.error_class, case.error_pattern, case.remaining, "Offsets 5 to 10 were read"
            )
            check_loss(stream, loss)
            if isinstance(stream, Stream):
                check_logged(loss, stream, caplog)
        check_planned(planned[0], 0)
        check_planned(planned[1], READ)
        admin(kafka).delete_topics(topics)


def check_planned(stream: Stream, new: int) -> None:
    """Check a stream that has planned a batch up to `READ`, whose records a truncation has replaced by `new` ones."""
    produce(stream.kafka, stream.topic, "new", new)
    for _ in range(2):
        with pytest.raises(DataLoss, match=f"below offset {READ}: .* Offsets {READ // 2} to {READ} "):
            stream.run()
    assert stream.run(failOnDataLoss="false") == rows("new", range(READ // 2, READ // 2 + new))
    produce(stream.kafka, stream.topic, "on", 3)
    assert stream.run() == rows("on", range(READ // 2 + new, READ // 2 + new + 3))


# All losses are tested without Spark above.
@variants("label", list(LOSSES), "some records are deleted", "recreated, shorter")
def test_data_loss_fails_query(
    label: str, spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    stream = SparkStream(spark, kafka, topic(1), tmp_path)
    produce(kafka, stream.topic, "first", READ)
    assert stream.run() == rows("first", range(READ))
    LOSSES[label].damage(kafka, stream.topic)
    check_loss(stream, LOSSES[label])


# -- transient errors -----------------------------------------------------------------------------
