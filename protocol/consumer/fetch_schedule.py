"""What a consumer asks each of its brokers for next: which streams, how many bytes, how long the broker may wait.

Pure: decisions take the time and return what to do; threads, sockets and locks are the business of `consumer`, which
calls this under its lock. What a decision changes for others is told by the streams (`on_change`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.consumer.partition_stream import PartitionStream
from protocol.kafka_terms import NO_REPLICA, TopicPartition

# A broker whose last partition has left keeps its thread for a while: leaders come back, and failures pass.
_LINGER_S = 5.0

# Streams, by what each was read with when a request was made: another one after a `seek`.
Asked = Mapping[PartitionConsumer, PartitionStream]


@dataclass(frozen=True)
class Fetch:
    """One request to a broker."""

    asked: Asked
    max_bytes: int
    max_wait_ms: int


@dataclass
class BrokerState:
    """What is remembered of one broker, from its first request until nothing is left to read from it.

    `unread`: so many of its streams are full, and their users waited for. `lacks_memory`: that is all it waits for.
    """

    broker: Broker
    unread: int = 0
    lacks_memory: bool = False
    has_answered: bool = False
    muted_until_s: float = 0.0
    idle_since_s: float = float("inf")

    def was_read(self, stream: PartitionStream) -> bool:
        """Whether there may be something to do, now that a reply for `stream` is about to be read."""
        waited_for = stream.full and stream.source.broker == self.broker
        self.unread -= waited_for
        return self.lacks_memory or (waited_for and self.unread <= 0)

    def was_changed(self, stream: PartitionStream) -> bool:
        """The same, now that it was paused, moved, closed, left out or is read again: that may give back memory."""
        return self.lacks_memory or stream.source.broker == self.broker

    def answered(self, throttle_ms: int, now_s: float) -> None:
        self.has_answered = True
        self.muted_until_s = now_s + throttle_ms / 1000


@dataclass
class FetchSchedule:
    """Of `streams`, which their owner keeps up to date.

    `wanted`: somebody has asked for any of them and got nothing, since the last reply.
    """

    streams: Mapping[TopicPartition, PartitionStream]
    config: ConsumerConfig
    buffer_memory_bytes: int
    metadata_max_age_ms: int
    wanted: bool = False

    def next(self, of: BrokerState, now_s: float) -> Fetch | float | None:
        """What to ask one broker for now, or for how many seconds to wait at most unless something changes.

        None when nothing is left to read from it, and has not been for a while.
        """
        mine = [each for each in self.streams.values() if self._reads(each, of.broker, now_s)]
        wait_s = min(self._expire_unread(now_s), _LINGER_S)
        of.idle_since_s = float("inf") if mine else min(of.idle_since_s, now_s)
        if now_s - of.idle_since_s >= _LINGER_S:
            return None
        present = [each for each in mine if not (each.paused or each.expired)]
        of.unread, of.lacks_memory = sum(each.full for each in present), False
        if of.unread:
            return wait_s
        if of.muted_until_s > now_s:
            return min(wait_s, of.muted_until_s - now_s)
        ready = [each for each in present if not each.error]
        room_bytes = self.room_bytes(ready) if ready else 0
        if room_bytes <= 0:
            of.lacks_memory = bool(ready)
            return wait_s
        longest_ms = self.config.fetch_max_wait_ms
        if any(each.expired for each in mine):
            # When its user is back, it must not wait for long.
            longest_ms = min(longest_ms, self.config.max_processing_time_ms)
        # A session must be there to be closed.
        max_wait_ms = longest_ms if of.has_answered else 0
        return Fetch({each.source: each for each in ready}, min(room_bytes, self.config.fetch_max_bytes), max_wait_ms)

    def _reads(self, stream: PartitionStream, broker: Broker, now_s: float) -> bool:
        partition = stream.source
        if partition.broker != broker:
            return False
        age_ms = (now_s - partition.routed_at_s) * 1000
        if partition.preferred_replica == NO_REPLICA or age_ms <= self.metadata_max_age_ms:
            return True
        # The leader may name a better replica by now.
        stream.leave_broker()
        return False

    def _expire_unread(self, now_s: float) -> float:
        """Leaves out from now on whose user has not read in time, so that the others need not wait for it again.

        Returns how long it is until the next one's time is over (inf: there is none).
        """
        patience_s = self.config.max_processing_time_ms / 1000
        next_s = float("inf")
        for stream in self.streams.values():
            if stream.unread and not (stream.paused or stream.expired):
                left_s = stream.unread_since_s + patience_s - now_s
                if left_s > 0:
                    next_s = min(next_s, left_s)
                else:
                    stream.expire()
        return next_s

    def room_bytes(self, ready: Collection[PartitionStream] = ()) -> int:
        """What may still be fetched ahead. What nobody reads makes room for what somebody waits for."""
        room_bytes = self.buffer_memory_bytes - self._held_bytes()
        if room_bytes <= 0 and (self.wanted or any(stream.wanted for stream in ready)):
            for stream in self.streams.values():
                if stream.expired or stream.paused:
                    stream.drop_ahead()
            room_bytes = self.buffer_memory_bytes - self._held_bytes()
        return room_bytes

    def _held_bytes(self) -> int:
        return sum(each.records.buffer.nbytes for stream in self.streams.values() for each in stream.ahead)
