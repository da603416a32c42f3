"""Builders for tests of producers: on a real Kafka, and on a fake broker whose topic `t` has the partitions 0 and 1."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.base.clock import SYSTEM_CLOCK, Clock
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_producer
from protocol.producer.producer import Producer
from protocol.producer.results import SentColumns
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.internals import sender_of
from tests.support.read_back import read_back

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def producer_of(
    bootstrap_servers: str, properties: Mapping[str, object] | None = None, clock: Clock = SYSTEM_CLOCK, **options: Any
) -> Producer:
    """Return a producer with small record batches by default, so that a few thousand rows are many requests."""
    remembered = {"bootstrap.servers": bootstrap_servers, "batch.size": 4_096, **(properties or {})}
    return Producer(Client(parse_client(remembered), clock), parse_producer(remembered), **options)


def numbered(first: int, count: int, size: int = 100) -> pa.RecordBatch:
    """Return rows whose value starts with their number."""
    values = [b"%09d" % number + b"." * (size - 9) for number in range(first, first + count)]
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def send_numbered(producer: Producer, topic: str, first: int, count: int, partitions: int) -> None:
    """Send the rows first..first+count-1, each to partition (number modulo partitions)."""
    chosen = (np.arange(first, first + count) % partitions).astype(np.int32)
    producer.send_columns(topic, numbered(first, count), chosen)


def assert_all_once_in_order(kafka: LocalKafka, topic: str, count: int, partitions: int) -> None:
    """Assert that every number below `count` is in its partition, once, and in order."""
    values_by_key: dict[int, list[int]] = {number: [] for number in range(partitions)}
    # A million of them take minutes on a busy machine.
    records, deadline_s = read_back(kafka, topic, 60 + count / 2_000), time.monotonic() + 20
    while len(records) < count and time.monotonic() < deadline_s:
        # A broker that was paused may briefly assume that it still leads, and report its old log end.
        records = read_back(kafka, topic)
    for record in records:
        assert record.value is not None
        values_by_key[record.partition].append(int(record.value[:9]))
    for partition, numbers in values_by_key.items():
        expected = list(range(partition, count, partitions))
        assert sorted(numbers) == expected, (
            f"partition {partition}: {len(set(expected) - set(numbers))} missing, "
            f"{len(numbers) - len(set(numbers))} more than once"
        )
        assert numbers == expected, f"partition {partition} is out of order"


TOPIC = "t"
WAIT_S = 20.0


class SkippingClock(Clock):
    """Real time plus the skipped time."""

    skipped_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.skipped_s

    def skip(self, seconds: float) -> None:
        self.skipped_s += seconds


def skip_a_minute(producer: Producer, clock: SkippingClock) -> None:
    """Let a minute pass for a producer with this clock: as long as `linger.ms` of these tests."""
    clock.skip(60)
    sender_of(producer).wake()


def send_rows(producer: Producer, first: int, count: int, partition: int = 0) -> SentColumns:
    """Send the rows first..first+count-1 to one partition."""
    return producer.send_columns(TOPIC, numbered(first, count), np.full(count, partition, np.int32))


def fail_first_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, calls: int = 1) -> None:
    """Let a function or method raise MemoryError at its first calls."""
    call, remaining = getattr(owner, name), calls

    def fail(*arguments: Any, **named: Any) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            monkeypatch.setattr(owner, name, call)
        if remaining >= 0:
            raise MemoryError("as if")
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, fail)


def columns_of(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def values_of(broker: FakeKafka) -> list[bytes]:
    return [record.value or b"" for record in broker.records(TOPIC, isolation_level="read_uncommitted")]


def trouble(producer: Producer, topic: str, partition: int) -> str:
    """Return the last error of the unwritten rows."""
    busy = sender_of(producer).busy.get((topic, partition))
    return busy.failure_suffix if busy else ""


@contextmanager
def nothing_written(broker: FakeKafka) -> Iterator[None]:
    """Let Produce requests wait at the broker until the end of the block."""
    go_on = threading.Event()
    broker.before[PRODUCE] = lambda body: go_on.wait(WAIT_S)
    try:
        yield
    finally:
        go_on.set()
