"""One assigned partition: its states from the assignment to the revocation, as data. Java's `TopicPartitionState`.

`assigned_partitions` runs the lookups and decides when they start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from protocol.base.clock import Backoff
from protocol.consumer.start_offsets import StartLookup
from protocol.errors import DataLoss, KafkaError, TopicRecreated, UsageError
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.position import Position


class PartitionState(Enum):
    """The state of an assigned partition."""

    UNSTARTED = "has no position yet"
    LOOKING_UP = "a lookup of its position is running"
    READING = "is read"
    LOST = "its position is not in the log"
    FAILED = "reading it fails until a seek"
    DROPPED = "is not assigned any more"


_S = PartitionState

TRANSITIONS: Mapping[PartitionState, frozenset[PartitionState]] = {
    _S.UNSTARTED: frozenset({_S.LOOKING_UP, _S.READING, _S.DROPPED}),
    _S.LOOKING_UP: frozenset({_S.UNSTARTED, _S.READING, _S.LOST, _S.DROPPED}),
    _S.READING: frozenset({_S.LOST, _S.FAILED, _S.DROPPED}),
    _S.LOST: frozenset({_S.LOOKING_UP, _S.READING, _S.DROPPED}),
    _S.FAILED: frozenset({_S.READING, _S.DROPPED}),
    _S.DROPPED: frozenset(),
}
"""Transitions of an assigned partition."""

DUE_FOR_LOOKUP = frozenset({_S.UNSTARTED, _S.LOST})
"""States in which a position is looked up next, or taken from `sought`."""


class AssignedPartition:
    """A partition that is assigned to a consumer.

    `AssignedPartitions` decides by `state` and these attributes. In `DUE_FOR_LOOKUP`, from `retry_at_s` on, it starts a
    partition at the first of these that exists:

    1. `sought`, the position set by `seek` before the start;
    2. the group's offset, unless `loss` (why the position was lost) or `without_commit` (the group has none) is set;
    3. the offset of `auto.offset.reset`.

    Thread rule: `pause` and `resume` are thread-safe. `resume_at` runs in the thread that reads the partition, other
    methods in the one that adds and drops it.

    `assigned_topic_id`: id with which the coordinator has assigned the topic; zeros if it assigns by name. No other
    topic of the name is read, since its partitions may have another owner (KIP-848).
    `consumer`: reads the partition; None before the first position is known.
    `group_offset`: fetched at the start, or staged for a commit since; None if unknown. Set by the owner.
    `lookup`: the running lookup; results of earlier ones are ignored.
    `backoff`: wait before the next lookup; `new_backoff` returns that of a search.
    `failing_since_s`: start time of the first failed lookup since the last error was raised.
    `recreations`: how often reading has moved from a deleted topic to a new one of its name.
    `is_new_topic`: moved to a new topic, of which the user has got no records. The owner resets it when the user gets
    some.
    """

    def __init__(
        self, key: TopicPartition, new_backoff: Callable[[], Backoff], assigned_topic_id: bytes = NO_TOPIC_ID
    ) -> None:
        self.key = key
        self.assigned_topic_id = assigned_topic_id
        self.state = PartitionState.UNSTARTED
        self.consumer: PartitionConsumer | None = None
        self.sought: Position | None = None
        self.group_offset: int | None = None
        self.paused = False
        self.lookup: StartLookup | None = None
        self.loss: DataLoss | None = None
        self.recreations = 0
        self.is_new_topic = False
        self._new_backoff = new_backoff
        self._begin_search()

    def _begin_search(self) -> None:
        self.backoff, self.without_commit = self._new_backoff(), False
        self.retry_at_s = 0.0
        self.failing_since_s: float | None = None

    @property
    def position(self) -> Position | None:
        """The position to commit; None before the start without a seek, and in a deleted topic."""
        if self.consumer is None:
            return self.sought
        return None if self.is_recreated else self.consumer.committable

    @property
    def has_lost_topic(self) -> bool:
        """True from the report that the topic was recreated until reading continues."""
        return isinstance(self.loss, TopicRecreated)

    @property
    def is_recreated(self) -> bool:
        """True if the position is known to be in a deleted topic, while a new topic has its name."""
        return self.consumer is not None and (self.consumer.recreated or self.has_lost_topic)

    @property
    def awaits_assignment(self) -> bool:
        """True if the position is in a deleted topic, and the group has not assigned the new one yet."""
        return self.is_recreated and self.assigned_topic_id != NO_TOPIC_ID

    @property
    def lasting_error(self) -> KafkaError | None:
        """The error that reading raises until `seek`, once it has raised it."""
        return None if self.consumer is None else self.consumer.buffer.raised_error

    def begin_lookup(self, lookup: StartLookup) -> None:
        """Handle the start of a lookup of the position."""
        self._transition(PartitionState.LOOKING_UP)
        self.lookup = lookup

    def end_lookup(self, *, without_commit: bool = False) -> None:
        """Handle the end of a lookup without a position. `without_commit`: since the group has no offset."""
        self._transition(PartitionState.UNSTARTED if self.consumer is None else PartitionState.LOST)
        self.without_commit |= without_commit

    def postpone_lookup(self, retry_at_s: float, started_at_s: float) -> None:
        """Set the time of the next lookup after one that has failed, which was started at `started_at_s`."""
        self.retry_at_s = retry_at_s
        if self.failing_since_s is None:
            self.failing_since_s = started_at_s

    def take_overdue(self, now_s: float, timeout_s: float) -> bool:
        """Return True if lookups have failed for `timeout_s`, once in each such period."""
        overdue = self.failing_since_s is not None and now_s - self.failing_since_s >= timeout_s
        if overdue:
            self.failing_since_s = now_s
        return overdue

    def start(self, consumer: PartitionConsumer) -> None:
        """Handle that the partition is read."""
        self.consumer, self.sought = consumer, None
        # Checked after the assignment, since another thread may call `pause`.
        if self.paused:
            self._pause_or_resume(consumer)
        self._transition(PartitionState.READING)

    def seek(self, position: Position) -> None:
        """Continue at a position, or start there."""
        if self.consumer is None:
            self.sought = position
            self._begin_search()
            self._transition(PartitionState.UNSTARTED)
        else:
            self.consumer.seek(position)
            self._transition(PartitionState.READING)

    def lose(self, loss: DataLoss) -> None:
        """Handle that the log does not have the position any more, so that it is looked up again."""
        self._begin_search()
        self._transition(PartitionState.LOST)
        self.loss = loss

    def resume_at(self, position: Position, loss: DataLoss) -> None:
        """Continue at a position after a loss; no effect if the partition was dropped meanwhile."""
        # Brokers delete the committed offsets of a deleted topic.
        self.group_offset = None
        if self.state is not PartitionState.DROPPED:
            self.seek(position)
            if isinstance(loss, TopicRecreated):
                self.recreations += 1
                self.is_new_topic = True

    def fail(self) -> None:
        """Handle that reading has raised an error."""
        if self.lasting_error is not None and self.state is PartitionState.READING:
            self._transition(PartitionState.FAILED)

    def drop(self) -> None:
        """Stop reading the partition; iterations over it end."""
        self._transition(PartitionState.DROPPED)
        if self.consumer is not None:
            self.consumer.close()

    def pause(self) -> None:
        """Stop reading until `resume`, also before the start."""
        self.paused = True
        if self.consumer is not None:
            self._pause_or_resume(self.consumer)

    def resume(self) -> None:
        """Continue after `pause`."""
        self.paused = False
        if self.consumer is not None:
            self._pause_or_resume(self.consumer)

    def _pause_or_resume(self, consumer: PartitionConsumer) -> None:
        """Apply `paused` to the consumer; repeat if another thread changes it meanwhile."""
        paused: bool | None = None
        while paused is not self.paused:
            paused = self.paused
            if paused:
                consumer.pause()
            else:
                consumer.resume()

    def _transition(self, state: PartitionState) -> None:
        """Change the state; raise `UsageError` for a transition that is not allowed, which is a bug of this client.

        Every change ends the lookup: `begin_lookup` sets it afterwards. A dropped partition stays dropped: the thread
        of a claim may still be in a call.
        """
        if self.state is PartitionState.DROPPED:
            return
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise UsageError(f"{self.key[0]}-{self.key[1]}: {state.name} may not follow {self.state.name}")
        self.state, self.lookup = state, None
        if state is PartitionState.READING:
            self.loss = self.failing_since_s = None
