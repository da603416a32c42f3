"""Transient errors never move a query's position: single replies are lost, late, or replaced by errors.

`make soak` repeats everything (`SPARK_KAFKA_SOURCE_REPEATS`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from protocol.broker_errors import ErrorCode
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from protocol.wire.schema import Api
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.spark.driver.streams import READ, REPEATS, Batches, Stream, new_group, query_of
from tests.spark.driver.topic_admin import (
    commit,
    committed,
    produce,
    wait_for,
)
from tests.support.kafka_proxy import Exchange, Fate, KafkaProxy

pytestmark = pytest.mark.soak

REQUEST_TIMEOUT_S = 1.0


class Once:
    """Apply a rule of the proxy once: to the first frame for which it returns a fate. Other frames pass."""

    def __init__(self, rule: Callable[[Exchange], Fate | float | bytes | None]) -> None:
        self._rule = rule
        self._lock = threading.Lock()
        self.fired = False

    def __call__(self, exchange: Exchange) -> Fate | float | bytes:
        with self._lock:
            fate = None if self.fired else self._rule(exchange)
            self.fired = self.fired or fate is not None
        return Fate.PASS if fate is None else fate


def drop_reply(_: Exchange) -> Fate:
    return Fate.CUT


def delay_reply(_: Exchange) -> float:
    """Delay the reply beyond the request timeout."""
    return REQUEST_TIMEOUT_S * 1.5


FIELDS_OF_FAILED_ROWS = {
    "topics": [],
    "partitions": [],
    "records": b"",
    "offset": -1,
    "end_offset": -1,
    "committed_offset": -1,
    "high_watermark": -1,
}


def replace_by_error(code: ErrorCode, *path: str) -> Callable[[Exchange], bytes | None]:
    """Return a rule that replaces the rows at `path` of a reply by an error code. No fate for replies without rows."""

    def rule(exchange: Exchange) -> bytes | None:
        body = exchange.reply()
        collected = [body]
        for key in path:
            collected = [row for record in collected for row in record[key]]
        for row in collected:
            row.update({key: nothing for key, nothing in FIELDS_OF_FAILED_ROWS.items() if key in row}, error_code=code)
        return exchange.reply_with(body) if collected else None

    return rule


FETCH_ROWS = ("responses", "partitions")
TOPIC_ROWS = ("topics", "partitions")
Faults = Mapping[Api, Callable[[Exchange], "Fate | float | bytes | None"]]

RUNNING_QUERY_FAULTS: dict[str, Faults] = {
    "Metadata: unknown topic": {METADATA: replace_by_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topics")},
    "Metadata: no leader": {METADATA: replace_by_error(ErrorCode.LEADER_NOT_AVAILABLE, "topics", "partitions")},
    "Metadata lost": {METADATA: drop_reply},
    "Metadata late": {METADATA: delay_reply},
    "ListOffsets: unknown topic": {LIST_OFFSETS: replace_by_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *TOPIC_ROWS)},
    "ListOffsets: not the leader": {LIST_OFFSETS: replace_by_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, *TOPIC_ROWS)},
    "ListOffsets: not yet": {LIST_OFFSETS: replace_by_error(ErrorCode.OFFSET_NOT_AVAILABLE, *TOPIC_ROWS)},
    "ListOffsets lost": {LIST_OFFSETS: drop_reply},
    "ListOffsets late": {LIST_OFFSETS: delay_reply},
    "Fetch: unknown topic": {FETCH: replace_by_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *FETCH_ROWS)},
    "Fetch: unknown topic id": {FETCH: replace_by_error(ErrorCode.UNKNOWN_TOPIC_ID, *FETCH_ROWS)},
    "Fetch: not the leader": {FETCH: replace_by_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, *FETCH_ROWS)},
    "Fetch: old epoch": {FETCH: replace_by_error(ErrorCode.FENCED_LEADER_EPOCH, *FETCH_ROWS)},
    "Fetch: out of range": {FETCH: replace_by_error(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCH_ROWS)},
    "Fetch: out of range, epoch lost": {
        FETCH: replace_by_error(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCH_ROWS),
        OFFSET_FOR_LEADER_EPOCH: drop_reply,
    },
    "Fetch: out of range, epoch late": {
        FETCH: replace_by_error(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCH_ROWS),
        OFFSET_FOR_LEADER_EPOCH: delay_reply,
    },
    "Fetch: out of range, epoch refused": {
        FETCH: replace_by_error(ErrorCode.OFFSET_OUT_OF_RANGE, *FETCH_ROWS),
        OFFSET_FOR_LEADER_EPOCH: replace_by_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, *TOPIC_ROWS),
    },
    "Fetch lost": {FETCH: drop_reply},
    "Fetch late": {FETCH: delay_reply},
    "OffsetCommit: loading": {OFFSET_COMMIT: replace_by_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *TOPIC_ROWS)},
    "OffsetCommit lost": {OFFSET_COMMIT: drop_reply},
}
STARTING_QUERY_FAULTS: dict[str, Faults] = {
    "OffsetFetch: loading": {OFFSET_FETCH: replace_by_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups")},
    "OffsetFetch: moved": {OFFSET_FETCH: replace_by_error(ErrorCode.NOT_COORDINATOR, "groups")},
    "OffsetFetch: open transaction": {
        OFFSET_FETCH: replace_by_error(ErrorCode.UNSTABLE_OFFSET_COMMIT, "groups", "topics", "partitions")
    },
    "OffsetFetch lost": {OFFSET_FETCH: drop_reply},
    "OffsetFetch late": {OFFSET_FETCH: delay_reply},
    "ListOffsets lost": {LIST_OFFSETS: drop_reply},
    "Metadata: unknown topic": {METADATA: replace_by_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topics")},
}


@dataclass
class Commits:
    """Records the offsets of each OffsetCommit that passes the proxy, by partition."""

    of: dict[int, list[int]] = field(default_factory=dict)

    def __call__(self, exchange: Exchange) -> Fate:
        for topic in exchange.request()["topics"]:
            for row in topic["partitions"]:
                self.of.setdefault(row["partition_index"], []).append(row["committed_offset"])
        return Fate.PASS

    def never_decrease(self) -> bool:
        return all(offsets == sorted(offsets) for offsets in self.of.values())


@pytest.mark.timeout(300 + 60 * REPEATS)
def test_transient_errors_never_move_position_of_running_query(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Slow: a batch of a real query for each fault of a reply, through a proxy."""
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

        def produce_and_wait() -> None:
            nonlocal written
            for partition in range(2):
                produce(kafka, name, f"{written}-", 2, partition=partition)
            written += 2
            wait_for_query(query, lambda: len(batches.all()) >= 2 * written and all(rule.fired for rule in rules_left))

        rules_left: list[Once] = []
        produce_and_wait()
        for seed in range(REPEATS):
            print(f"in the order of seed {seed}")  # pytest shows it with a failure
            for case in random.Random(seed).sample(sorted(RUNNING_QUERY_FAULTS), len(RUNNING_QUERY_FAULTS)):
                rules = {api: Once(rule) for api, rule in RUNNING_QUERY_FAULTS[case].items()}
                rules_left = list(rules.values())
                proxy.replies.update(rules)
                produce_and_wait()
                proxy.replies.clear()
        wait_for_query(query, lambda: all(committed(kafka, group, name, number) == written for number in range(2)))
        query.stop()
    assert commits.never_decrease()
    result = batches.all()
    for partition in range(2):
        offsets = [offset for number, offset, _ in result if number == partition]
        assert offsets == list(range(written))


@pytest.mark.parametrize("case", STARTING_QUERY_FAULTS)
def test_transient_errors_never_move_position_of_starting_query(
    case: str, kafka: LocalKafka, topic: TopicFactory
) -> None:
    """The query starts at the group's offset 4, not at the start or end of the log; the restart resumes."""
    for _ in range(REPEATS):
        name, commits = topic(1), Commits()
        produce(kafka, name, "first", READ)
        with KafkaProxy.of(kafka) as proxy:
            stream = Stream(kafka, name)
            commit(kafka, stream.group, name, 4)
            proxy.requests[OFFSET_COMMIT] = commits
            options = {**group_options(name, stream.group), "kafka.bootstrap.servers": proxy.servers}
            for begins in (4, READ):
                rules = {api: Once(rule) for api, rule in STARTING_QUERY_FAULTS[case].items()}
                proxy.replies.update(rules)
                assert [offset for offset, _ in stream.run(**options)] == list(range(begins, begins + 6))
                assert all(rule.fired for rule in rules.values())
                produce(kafka, name, "more", 6)
        assert commits.never_decrease()
        wait_for(lambda: committed(kafka, stream.group, name) == READ + 6)  # noqa: B023


def group_options(topic: str, group: str) -> dict[str, str]:
    return {
        "subscribe": topic,
        "kafka.group.id": group,
        "kafka.auto.offset.reset": "earliest",
        "startingOffsets": "group",
        "kafka.request.timeout.ms": str(int(REQUEST_TIMEOUT_S * 1000)),
        "kafka.default.api.timeout.ms": "20000",
    }


def wait_for_query(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    wait_for(lambda: condition() or not query.isActive)
    assert query.isActive, f"the query died: {query.exception()}"
