"""Streams of two brokers and the schedule of their fetches, on a manual clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_position import CompletedFetch, FetchPosition
from protocol.fetch.fetch_schedule import BrokerState, Fetch, FetchSchedule
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.position import Position
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka.clock import ManualClock
from tests.protocol.fetch.consuming import records

NEAR, FAR = Broker(1, "kafka1", 9092), Broker(2, "kafka2", 9092)
CONFIG = ConsumerConfig(fetch_max_bytes=1_000_000, fetch_max_wait_ms=500, max_processing_time_ms=100)
MEMORY_BYTES = 10_000
LONGEST_S = 5.0


def one_batch(part: CompletedFetch, where: str) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"offset": pa.array(range(part.start.offset, part.next_offset))})


class Reading:
    """Streams of "orders", the schedule of their fetches, and the streams whose changes were signalled."""

    def __init__(self, config: ConsumerConfig = CONFIG) -> None:
        # The consumer's threads call under the lock: here one thread always holds it.
        self.lock: Any = threading.RLock()
        self.lock.acquire()
        self.clock = ManualClock()
        self.config = config
        self.streams: dict[FetchBuffer, PartitionConsumer] = {}
        self.changed_streams: list[PartitionConsumer] = []
        self.schedule = FetchSchedule(config, MEMORY_BYTES, metadata_max_age_ms=300_000)
        self.states = {broker: BrokerState(broker) for broker in (NEAR, FAR)}
        for state in self.states.values():
            state.record_reply(0, 0, by_id=True)

    def add(self, count: int = 1, broker: Broker = NEAR) -> list[PartitionConsumer]:
        first = len(self.streams)
        return [self._add(number, broker) for number in range(first, first + count)]

    def _add(self, number: int, broker: Broker) -> PartitionConsumer:
        partition = FetchPosition("orders", number, Position(0), self.config)
        partition.broker = broker
        buffer = FetchBuffer(partition, self.clock, failure_timeout_s=60, decode=one_batch)
        stream = self.streams[buffer] = PartitionConsumer(
            buffer,
            self.lock,
            self.clock,
            read_committed=False,
            on_read=lambda _: None,
            on_change=lambda changed: self.changed_streams.append(self.streams[changed]),
        )
        self.schedule.add_resolved(buffer)
        return stream

    def put(self, stream: PartitionConsumer, replies: int = 1, size: int = 10) -> None:
        for _ in range(replies):
            first = stream.buffer.source.offset
            part = CompletedFetch(
                read_batch_headers(records(first, 10, size=size)), Position(first, 7), first + 10, None
            )
            stream.buffer.source.seek(Position(part.next_offset))
            self.schedule.put(stream.buffer, part, self.clock.now_s())

    def with_full_memory(self) -> tuple[PartitionConsumer, PartitionConsumer]:
        """Return a stream of the far broker whose unread replies fill the memory, and a near one without replies."""
        [unread], [hungry] = self.add(1, FAR), self.add()
        self.put(unread, size=MEMORY_BYTES // 10)
        return unread, hungry

    def next(self, broker: Broker = NEAR) -> Fetch | float | None:
        decision = self.schedule.next(self.states[broker], self.clock.now_s())
        self.changed_streams += [self.streams[buffer] for buffer in decision.changed]
        return decision.fetch or decision.wait_s

    def fetch(self, broker: Broker = NEAR) -> Fetch:
        fetch = self.next(broker)
        assert isinstance(fetch, Fetch)
        return fetch

    def asked(self, broker: Broker = NEAR) -> list[PartitionConsumer]:
        return self.streams_of(self.fetch(broker))

    def streams_of(self, fetch: Fetch) -> list[PartitionConsumer]:
        return [self.streams[buffer] for buffer in fetch.buffers.values()]
