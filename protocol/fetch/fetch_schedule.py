"""Decide the next Fetch request to a broker: open partitions, bytes, and the broker's longest wait. Sans-IO.

`partition_fetcher` calls it under its lock, and owns threads and sockets. A decision wakes no thread: it names the
partitions that it has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_position import CompletedFetch, FetchPosition
from protocol.kafka_terms import NO_REPLICA

# Keep a broker's thread for this time after its last partition has moved away: leaders often return.
_LINGER_S = 5.0

# Buffers by the position in the request; a `seek` replaces the position of a buffer.
RequestedBuffers = Mapping[FetchPosition, FetchBuffer]


@dataclass(frozen=True)
class Fetch:
    """A request to a broker."""

    buffers: RequestedBuffers
    max_bytes: int
    max_wait_ms: int


@dataclass(frozen=True)
class Decision:
    """The next step of a broker's thread: send `fetch`, or wait for `wait_s` unless something changes, or end.

    If both are None, the thread ends: no partition has been read from its broker for `_LINGER_S`.

    `changed` (sequence of FetchBuffer): buffers that this decision has expired, emptied, or left without a broker:
    other threads may have work.
    """

    fetch: Fetch | None = None
    wait_s: float | None = None
    changed: Sequence[FetchBuffer] = ()


@dataclass
class BrokerState:
    """State of one broker, from its first request until no partition is read from it.

    `full_buffers`: number of full buffers. While it is positive, the broker gets no Fetch.
    `lacks_memory`: the next Fetch waits only for buffer memory.
    `names_topics`: the last Fetch had the names of topics, not their ids (before Kafka 3.1): only metadata show that a
    topic was recreated.
    """

    broker: Broker
    full_buffers: int = 0
    lacks_memory: bool = False
    names_topics: bool = False
    has_answered: bool = False
    throttled_until_s: float = 0.0
    idle_since_s: float = float("inf")

    def record_read(self, buffer: FetchBuffer) -> bool:
        """Handle that `buffer` is about to give a queued reply; return True if the thread may have work now."""
        waited_for = buffer.full and buffer.source.broker == self.broker
        self.full_buffers -= waited_for
        return self.lacks_memory or (waited_for and self.full_buffers <= 0)

    def has_work_after(self, buffer: FetchBuffer) -> bool:
        """Return True if the thread may have work after a change of `buffer`, for example because of freed memory."""
        return self.lacks_memory or buffer.source.broker == self.broker

    def record_reply(self, throttle_ms: int, now_s: float, *, by_id: bool) -> None:
        """Record a reply, its throttle time, and if the request had the ids of topics."""
        self.has_answered = True
        self.names_topics = not by_id
        self.throttled_until_s = now_s + throttle_ms / 1000


@dataclass
class FetchSchedule:
    """Schedule of the partitions that have a broker.

    The cost of a decision grows with the broker's own buffers and with the buffers that have unread replies.

    `poll_waits`: True if `Consumer.poll` has returned nothing since the last reply or error; set by
    `partition_fetcher`.
    `with_replies` (dict of FetchBuffer to None): buffers with replies, and expired ones, which a reader of all
    partitions revives. Others are removed by the next decision.
    """

    config: ConsumerConfig
    buffer_memory_bytes: int
    metadata_max_age_ms: int
    poll_waits: bool = False
    with_replies: dict[FetchBuffer, None] = field(default_factory=dict)
    _by_broker: dict[Broker, dict[FetchBuffer, None]] = field(default_factory=dict)

    def add_resolved(self, buffer: FetchBuffer) -> None:
        """Add a partition to its resolved broker. The next decision for its former broker removes it there."""
        if (broker := buffer.source.broker) is not None:
            self._by_broker.setdefault(broker, {})[buffer] = None

    def put(self, buffer: FetchBuffer, fetched: CompletedFetch, now_s: float) -> None:
        """Add a reply to its buffer, and move the partition behind the others of its broker.

        A broker without a session fills its reply in the order of the request: others must come first next time.
        """
        buffer.put(fetched, now_s)
        self.with_replies[buffer] = None
        broker = buffer.source.broker
        if broker is not None and buffer in (buffers := self._by_broker.get(broker, {})):
            buffers[buffer] = buffers.pop(buffer)

    def buffers_of(self, broker: Broker) -> list[FetchBuffer]:
        """Return the buffers of partitions read from a broker."""
        buffers = self._by_broker.get(broker, {})
        for buffer in [buffer for buffer in buffers if buffer.closed or buffer.source.broker != broker]:
            del buffers[buffer]
        if not buffers:
            self._by_broker.pop(broker, None)
        return list(buffers)

    def next(self, state: BrokerState, now_s: float) -> Decision:
        """Decide about the next request of a broker.

        Its thread ends if no partition has been read from the broker for `_LINGER_S`.
        """
        changed: list[FetchBuffer] = []
        for buffer in [buffer for buffer in self.with_replies if not (buffer.has_replies or buffer.expired)]:
            del self.with_replies[buffer]
        buffers = [
            buffer
            for buffer in self.buffers_of(state.broker)
            if not self._leave_if_outdated(state, buffer, now_s, changed)
        ]
        wait_s = min(self._expire_unread(now_s, changed), _LINGER_S)
        state.idle_since_s = float("inf") if buffers else min(state.idle_since_s, now_s)
        if now_s - state.idle_since_s >= _LINGER_S:
            return Decision(changed=changed)
        active = [buffer for buffer in buffers if not (buffer.paused or buffer.expired)]
        state.full_buffers, state.lacks_memory = sum(buffer.full for buffer in active), False
        if state.full_buffers:
            return Decision(wait_s=wait_s, changed=changed)
        if state.throttled_until_s > now_s:
            return Decision(wait_s=min(wait_s, state.throttled_until_s - now_s), changed=changed)
        ready = [buffer for buffer in active if not buffer.error]
        free_bytes = self._free_memory(ready, changed) if ready else 0
        if free_bytes <= 0:
            state.lacks_memory = bool(ready)
            return Decision(wait_s=wait_s, changed=changed)
        longest_ms = self.config.fetch_max_wait_ms
        if any(buffer.expired for buffer in buffers):
            # The reader may return soon, and its partition must not wait long for the next Fetch.
            longest_ms = min(longest_ms, self.config.max_processing_time_ms)
        # The first request does not wait, so that the session exists and can be closed.
        max_wait_ms = longest_ms if state.has_answered else 0
        requested = {buffer.source: buffer for buffer in ready}
        return Decision(Fetch(requested, min(free_bytes, self.config.fetch_max_bytes), max_wait_ms), changed=changed)

    def _leave_if_outdated(
        self, state: BrokerState, buffer: FetchBuffer, now_s: float, changed: list[FetchBuffer]
    ) -> bool:
        partition = buffer.source
        is_checked = state.names_topics or partition.preferred_replica != NO_REPLICA
        age_ms = (now_s - partition.routed_at_s) * 1000
        if not is_checked or age_ms <= self.metadata_max_age_ms:
            return False
        # The topic may have been recreated, or the leader may name a better replica now.
        partition.leave_broker()
        changed.append(buffer)
        return True

    def _expire_unread(self, now_s: float, changed: list[FetchBuffer]) -> float:
        """Stop fetching for readers that have not read within `max.processing.time.ms`.

        A buffer whose only reply is being read does not expire. The reader's next call revives an expired buffer.
        Returns the seconds until the next buffer expires; inf if there is none.
        """
        timeout_s = self.config.max_processing_time_ms / 1000
        next_s = float("inf")
        for buffer in self.with_replies:
            if buffer.has_replies and not (buffer.paused or buffer.expired):
                left_s = buffer.unread_since_s + timeout_s - now_s
                if left_s > 0:
                    next_s = min(next_s, left_s)
                elif buffer.expire():
                    changed.append(buffer)
        return next_s

    def _free_memory(self, ready: Collection[FetchBuffer], changed: list[FetchBuffer]) -> int:
        """Return the free memory. If readers wait, first drop replies of paused and expired buffers until later."""
        free_bytes = self.free_bytes
        if free_bytes <= 0 and (self.poll_waits or any(buffer.reader_waits for buffer in ready)):
            for buffer in self.with_replies:
                if (buffer.expired or buffer.paused) and buffer.drop_ahead():
                    changed.append(buffer)
            free_bytes = self.free_bytes
        return free_bytes

    @property
    def free_bytes(self) -> int:
        """Free memory for replies."""
        ahead_bytes = sum(fetch.records.buffer.nbytes for buffer in self.with_replies for fetch in buffer.ahead)
        return self.buffer_memory_bytes - ahead_bytes
