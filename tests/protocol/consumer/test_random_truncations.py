"""Ranges of logs that were truncated, compacted or cut off between plan and read: exactly what was planned, once.

The model has the records of each log, with the leader epoch in which they were written. `make soak` tries thousands.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import pytest

from protocol.cluster.client import Client
from protocol.config import parse_client, parse_consumer
from protocol.consumer.bounded_reader import BoundedReader
from protocol.consumer.log_offsets import Range
from protocol.testing.fake_kafka.log import LogBatch
from protocol.testing.fake_kafka.record_batches import Batch, Record, write_batch
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.plan.ranges import split
from tests.support.soak import scaled, try_seeds

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]

SEEDS = scaled("TRUNCATIONS", 60, 5_000)


@dataclass
class Written:
    """A record batch of the model."""

    first: int
    end: int
    epoch: int
    data: bytes
    offsets: list[int]


class GrowingLog:
    """The record batches of one partition, through elections, truncations and compaction."""

    def __init__(self, rng: random.Random) -> None:
        self.batches: list[Written] = []
        self.epoch = self.end = self.start = 0
        self.gaps = rng.random() < 0.6
        self._rng = rng

    def grow(self, end: int) -> None:
        while self.end < end:
            if self._rng.random() < 0.25:
                self.epoch += self._rng.choice([1, 1, 2])
            self.append(self._rng.randint(1, 5))

    def append(self, size: int) -> None:
        deltas = [each for each in range(size) if not self.gaps or self._rng.random() < 0.6]
        first = self.end
        records = [Record(b"%d %d" % (first + each, self.epoch), offset_delta=each) for each in deltas]
        batch = LogBatch.of(write_batch(Batch(records, first, last_offset_delta=size - 1))).placed(first, self.epoch)
        self.end += size
        self.batches.append(Written(first, self.end, self.epoch, batch.data, [first + each for each in deltas]))

    def truncate(self) -> int:
        """Elect a leader whose log ends at some batch, which appends; return its end before."""
        end = self._rng.choice([each.first for each in self.batches])
        self.batches = [each for each in self.batches if each.end <= end]
        self.end = end
        self.epoch += self._rng.choice([1, 2])
        self.append(self._rng.randint(1, 4))
        return end

    def compact(self) -> None:
        if self.gaps:
            *older, last = self.batches
            self.batches = [*(each for each in older if self._rng.random() < 0.8), last]

    def place(self, kafka: FakeKafka, topic: str) -> None:
        """Make it the log of a topic. A broker knows an epoch's start even if its batches are compacted."""
        starts: dict[int, int] = {}
        for each in self.batches:
            starts.setdefault(each.epoch, max(each.first, self.start))
        kept = [each for each in self.batches if each.end > self.start]
        kafka.set_leader_epoch(topic, 0, self.epoch)
        kafka.rewrite(topic, 0, b"".join(each.data for each in kept), start=self.start)
        log = kafka.log(topic)
        log.epochs = sorted(starts.items())
        log.begin_epoch(self.epoch)
        kafka.advance()
        self.batches = kept


def test_range_ends_where_its_log_was_truncated() -> None:
    properties = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "5"}
    with FakeKafka(record_requests=False) as kafka:
        given = parse_client({"bootstrap.servers": kafka.bootstrap_servers, **properties})
        with Client(given) as client:
            try_seeds(partial(read_range, kafka, client), SEEDS)


def read_range(kafka: FakeKafka, client: Client, rng: random.Random) -> None:
    topic = f"topic-{rng.random()}"
    kafka.create_topic(topic)
    log = GrowingLog(rng)
    log.grow(rng.randint(5, 40))
    log.epoch += rng.random() < 0.3  # that of the leader when the range is planned
    until = rng.randint(max(1, log.end // 2), log.end)
    begin = rng.randint(0, until - 1)
    before = [each.epoch for each in log.batches if each.first < begin]
    planned = Range(
        topic,
        0,
        begin,
        until,
        kafka.controller.topic(topic).topic_id,
        max(before) if before and rng.random() < 0.7 else -1,
        log.epoch,
    )
    end = until
    if rng.random() < 0.75:
        for _ in range(rng.choice([1, 1, 2])):
            end = min(end, log.truncate())
            log.grow(log.end + rng.choice([0, 3, 30]))
    else:
        log.grow(log.end + 10)
    log.grow(until + 2)
    log.compact()
    if rng.random() < 0.2:
        log.start = rng.choice([0, *(each.first for each in log.batches if each.first <= begin)])
    log.place(kafka, topic)
    losses: list[str] = []
    config = {"max.partition.fetch.bytes": str(rng.choice([1, 150, 400, 10**6])), "fetch.max.wait.ms": "5"}
    reader = BoundedReader(
        client,
        parse_consumer(config),
        split([planned], rng.choice([None, None, 1, 3])),
        on_loss=lambda loss, _: losses.append(str(loss)),
        poll_timeout_ms=1_500,
    )
    read = sorted(offset for _, batch in reader for offset in batch["offset"].to_pylist())
    assert read == [each for batch in log.batches for each in batch.offsets if max(begin, log.start) <= each < end]
    newer = any(
        batch.epoch > planned.until_epoch and begin < batch.end and batch.first < until for batch in log.batches
    )
    if end < until and newer:
        assert losses, "records were lost silently"
    elif end == until and not log.start:
        assert losses == []
    kafka.delete_topic(topic)
