"""Decide the next Fetch request to a broker: streams, bytes, and the broker's longest wait. Sans-IO.

`consumer` calls it under its lock, and owns threads and sockets. Streams report changes by `on_change`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.consumer.fetch_position import CompletedFetch, FetchPosition
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.kafka_terms import NO_REPLICA

# Keep a broker's thread for this time after its last partition has moved away: leaders often return.
_LINGER_S = 5.0

# Streams by the partition state in the request; a `seek` replaces the state of a stream.
Asked = Mapping[FetchPosition, PartitionConsumer]


@dataclass(frozen=True)
class Fetch:
    """A request to a broker."""

    asked: Asked
    max_bytes: int
    max_wait_ms: int


@dataclass
class BrokerState:
    """State of one broker, from its first request until no partition is read from it.

    Attributes
    ----------
    unread : int
        Number of full streams whose readers the next Fetch waits for.
    lacks_memory : bool
        The next Fetch waits only for buffer memory.
    """

    broker: Broker
    unread: int = 0
    lacks_memory: bool = False
    has_answered: bool = False
    muted_until_s: float = 0.0
    idle_since_s: float = float("inf")

    def was_read(self, stream: PartitionConsumer) -> bool:
        """Handle that a reply of `stream` is being read; return True if the thread may have work now."""
        waited_for = stream.full and stream.source.broker == self.broker
        self.unread -= waited_for
        return self.lacks_memory or (waited_for and self.unread <= 0)

    def was_changed(self, stream: PartitionConsumer) -> bool:
        """Return True if the thread may have work after a change of `stream`, for example because of freed memory."""
        return self.lacks_memory or stream.source.broker == self.broker

    def answered(self, throttle_ms: int, now_s: float) -> None:
        """Record a reply and its throttle time."""
        self.has_answered = True
        self.muted_until_s = now_s + throttle_ms / 1000


@dataclass
class FetchSchedule:
    """Schedule of the streams that have a broker.

    A decision costs what the broker's own streams cost, and those with unread replies; not the number of all streams.

    Attributes
    ----------
    wanted : bool
        True if `Consumer.poll` has returned nothing since the last reply.
    unread : dict of PartitionConsumer to None
        Streams with unread replies. Streams without any are removed by the next decision.
    """

    config: ConsumerConfig
    buffer_memory_bytes: int
    metadata_max_age_ms: int
    wanted: bool = False
    unread: dict[PartitionConsumer, None] = field(default_factory=dict)
    _by_broker: dict[Broker, dict[PartitionConsumer, None]] = field(default_factory=dict)

    def route(self, stream: PartitionConsumer) -> None:
        """Handle that the broker of `stream` was resolved. A stream that leaves it is removed by the next decision."""
        if (broker := stream.source.broker) is not None:
            self._by_broker.setdefault(broker, {})[stream] = None

    def put(self, stream: PartitionConsumer, fetched: CompletedFetch, now_s: float) -> None:
        """Add a reply to its stream."""
        stream.put(fetched, now_s)
        self.unread[stream] = None

    def routed(self, broker: Broker) -> list[PartitionConsumer]:
        """Return the streams read from a broker."""
        streams = self._by_broker.get(broker, {})
        for stream in [each for each in streams if each.closed or each.source.broker != broker]:
            del streams[stream]
        if not streams:
            self._by_broker.pop(broker, None)
        return list(streams)

    def next(self, of: BrokerState, now_s: float) -> Fetch | float | None:
        """Return the next request of a broker, or the seconds to wait unless something changes.

        None if no partition has been read from the broker for `_LINGER_S`: its thread ends.
        """
        for stream in [each for each in self.unread if not each.unread]:
            del self.unread[stream]
        mine = [each for each in self.routed(of.broker) if self._reads(each, now_s)]
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
            # The reader may return soon, and its partition must not wait long for the next Fetch.
            longest_ms = min(longest_ms, self.config.max_processing_time_ms)
        # The first request does not wait, so that the session exists and can be closed.
        max_wait_ms = longest_ms if of.has_answered else 0
        return Fetch({each.source: each for each in ready}, min(room_bytes, self.config.fetch_max_bytes), max_wait_ms)

    def _reads(self, stream: PartitionConsumer, now_s: float) -> bool:
        partition = stream.source
        age_ms = (now_s - partition.routed_at_s) * 1000
        if partition.preferred_replica == NO_REPLICA or age_ms <= self.metadata_max_age_ms:
            return True
        # The leader may name a better replica now.
        stream.leave_broker()
        return False

    def _expire_unread(self, now_s: float) -> float:
        """Stop fetching for streams not read within `max.processing.time.ms`.

        Returns the seconds until the next stream expires; inf if there is none.
        """
        patience_s = self.config.max_processing_time_ms / 1000
        next_s = float("inf")
        for stream in self.unread:
            if stream.unread and not (stream.paused or stream.expired):
                left_s = stream.unread_since_s + patience_s - now_s
                if left_s > 0:
                    next_s = min(next_s, left_s)
                else:
                    stream.expire()
        return next_s

    def room_bytes(self, ready: Collection[PartitionConsumer] = ()) -> int:
        """Return the free buffer memory. If readers wait, free the memory of paused and expired streams first."""
        room_bytes = self.buffer_memory_bytes - self._held_bytes()
        if room_bytes <= 0 and (self.wanted or any(stream.wanted for stream in ready)):
            for stream in self.unread:
                if stream.expired or stream.paused:
                    stream.drop_ahead()
            room_bytes = self.buffer_memory_bytes - self._held_bytes()
        return room_bytes

    def _held_bytes(self) -> int:
        return sum(each.records.buffer.nbytes for stream in self.unread for each in stream.ahead)
