"""Positions in logs: an offset, a leader epoch and a topic id, which belong together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from protocol.checked_values import checked_leader_epoch, checked_offset, checked_topic_id
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID

P = TypeVar("P", bound="Position")


def is_another_topic(topic_id: bytes, before: bytes) -> bool:
    """Return True if the ids show that the topic was recreated; False if one of them is unknown."""
    return topic_id != before and NO_TOPIC_ID not in (topic_id, before)


@dataclass(frozen=True)
class Position:
    """A position in the log of a partition; raises `UsageError` for a value that Kafka cannot store.

    `offset`: offset of the next record.
    `leader_epoch`: no record before `offset` has a newer leader epoch; -1 if unknown. The epoch of the last record read
    is such a bound, and so is the epoch of a leader when it listed the offset. Brokers compare it with their log, which
    detects truncations below `offset` (KIP-320).
    `topic_id`: 16 bytes, zeros if unknown. In a topic with another id, the offset and the epoch have no meaning.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    topic_id: bytes = field(default=NO_TOPIC_ID, kw_only=True)

    # Takes two thirds of the time of a generated one: a trigger of a query makes thousands of positions.
    def __init__(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH, *, topic_id: bytes = NO_TOPIC_ID) -> None:
        if type(offset) is not int or not 0 <= offset < 2**63:
            offset = checked_offset(offset)
        if type(leader_epoch) is not int or not -1 <= leader_epoch < 2**31:
            leader_epoch = checked_leader_epoch(leader_epoch)
        if type(topic_id) is not bytes or len(topic_id) != 16:
            topic_id = checked_topic_id(topic_id)
        fields = self.__dict__
        fields["offset"], fields["leader_epoch"], fields["topic_id"] = offset, leader_epoch, topic_id

    def is_in(self, topic_id: bytes) -> bool:
        """Return False if the position is surely in another topic; unknown ids do not differ."""
        return topic_id == self.topic_id or NO_TOPIC_ID in (topic_id, self.topic_id)

    def in_topic(self: P, topic_id: bytes) -> P:
        """Return this offset in the topic with an id, without the leader epoch if that is of another topic."""
        leader_epoch = self.leader_epoch if self.is_in(topic_id) else NO_LEADER_EPOCH
        return replace(self, leader_epoch=leader_epoch, topic_id=topic_id)

    def later(self, position: Position) -> Position:
        """Return the one with the larger offset; of two at one offset this one, unless only `position` has an epoch.

        Both epochs are bounds at the same offset, so that either is correct.
        """
        if self.offset == position.offset:
            return position if self.leader_epoch == NO_LEADER_EPOCH else self
        return self if self.offset > position.offset else position

    def assumed_in(self: P, topic_id: bytes) -> P:
        """Return this position; one whose topic is unknown is taken for one in the topic with this id."""
        return self.in_topic(topic_id) if self.topic_id == NO_TOPIC_ID else self


@dataclass(frozen=True)
class RecordPositions:
    """The positions of consecutive records, for commits at any offset among them.

    `start`: the position before the first record.
    `epoch_changes`: offset from which on record batches have another leader epoch, and this epoch; ascending.
    """

    start: Position
    epoch_changes: tuple[tuple[int, int], ...] = ()

    def at(self, offset: int) -> Position:
        """Return the position at `offset`, which is one of these records or the next one."""
        leader_epoch = self.start.leader_epoch
        for first_offset, epoch in self.epoch_changes:
            if first_offset >= offset:
                break
            leader_epoch = epoch
        return Position(offset, leader_epoch, topic_id=self.start.topic_id)

    def followed_by(self, later: RecordPositions) -> RecordPositions:
        """Return the positions of these records and of `later` ones, which were read next."""
        if not later.epoch_changes:
            return self
        first_offset, epoch = later.epoch_changes[0]
        changes = tuple(change for change in self.epoch_changes if change[0] < first_offset)
        same = epoch == (changes[-1][1] if changes else self.start.leader_epoch)
        return RecordPositions(self.start.in_topic(later.start.topic_id), changes + later.epoch_changes[same:])
