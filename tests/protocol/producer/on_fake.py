"""Builders for tests of producers on a fake broker, whose topic `t` has the partitions 0 and 1."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.base.clock import Clock
from protocol.producer.producer import Producer
from protocol.producer.results import SentColumns
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from tests.protocol.producer.producing import numbered
from tests.support.internals import sender_of

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
