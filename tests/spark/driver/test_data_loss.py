"""Lost records are never skipped silently.

A query has read `READ` records of a partition; then the log loses records. The query must fail with the partition and
the offsets, and leave the group's offsets unchanged. With failOnDataLoss=false it reads the remaining records once, and
logs the number of missing offsets. `make soak` repeats everything (`SPARK_KAFKA_SOURCE_REPEATS`).

The scenario `spark_query` also has unclean elections, and deletes topics within batches.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import SparkSession

from protocol.cluster import unknown_topic
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.spark.driver.streams import READ, REPEATS, Row, SparkStream, Stream
from tests.spark.driver.topic_admin import committed, delete_records, offset_at, produce, set_topic, wait_for
from tests.support.soak import variants
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


def rows(value: str, offsets: range) -> list[Row]:
    """Return the rows that `produce` writes."""
    return [(offset, f"{value}{number}") for number, offset in enumerate(offsets)]


HOLE = "offsets 10 to {} are not in the log any more; wanted.*retention or DeleteRecords"
RECREATED_MESSAGE = "was deleted and created again: its id was .*, now it is .*"


def recreated_with(records: int) -> Loss:
    def damage(kafka: LocalKafka, topic: str) -> None:
        recreate(kafka, topic)
        produce(kafka, topic, "new", records)

    pattern = RECREATED_MESSAGE + "; offsets up to 10 of"
    return Loss(damage, CHANGED, pattern, rows("new", range(records)), "offsets up to 10 of .*-0")


LOSSES = {
    "some records are deleted": Loss(
        delete_some, UNREADABLE, HOLE.format(15), rows("old", range(10, 20))[5:], "5 offsets are skipped", 5
    ),
    "all records are deleted": Loss(delete_all, UNREADABLE, HOLE.format(20), [], "10 offsets are skipped", 10),
    "retention takes some": Loss(
        let_retention_take_some, UNREADABLE, HOLE.format(20), rows("new", range(20, 25)), "10 offsets are skipped", 10
    ),
    "recreated, shorter": recreated_with(4),
    "recreated, longer": recreated_with(15),
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


# All losses are tested without Spark above.
@variants("label", list(LOSSES), "recreated, shorter")
def test_data_loss_fails_query(
    label: str, spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Slow: four queries on one checkpoint, one of which fails."""
    stream = SparkStream(spark, kafka, topic(1), tmp_path)
    produce(kafka, stream.topic, "first", READ)
    assert stream.run() == rows("first", range(READ))
    LOSSES[label].damage(kafka, stream.topic)
    check_loss(stream, LOSSES[label])
