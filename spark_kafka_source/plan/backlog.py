"""The partitions of one trigger, the state of their logs, and the micro-batch that follows. Sans-IO.

`driver/trigger.py` sends the requests. `data_loss` finds losses between two triggers; `limits` bounds the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition
from protocol.position import Position
from spark_kafka_source.plan.offsets import Offsets, topic_ids


@dataclass(frozen=True)
class QueryAssignment:
    """The partitions that a query may read in one trigger: all of its topics, or those that its group has assigned.

    `owned`: topic id (16 bytes, zeros before Kafka 2.8) of each partition that a batch may read.
    `added`: position at which a partition was assigned, until it is revoked or its topic is recreated. A partition that
    was never read and is not in here is read from its log start offset. So is a partition of a topic that was recreated
    since the last batch, unless it was assigned at a position in the new topic.
    `revoked`: existing partitions that another member of the group reads, or that the group has assigned to this one by
    another topic id than brokers report now. Any other partition that was read before and is not owned is a loss: it
    was deleted, or the group has assigned it in the topic that was read, while a new topic has its name.
    `existing_ids`: ids of the topics that exist, also of those without an owned partition.
    """

    owned: Mapping[TopicPartition, bytes]
    added: Mapping[TopicPartition, Position] = field(default_factory=dict)
    revoked: Collection[TopicPartition] = frozenset()
    existing_ids: Mapping[str, bytes] = field(default_factory=dict)

    def without_starts(self, partitions: Collection[TopicPartition]) -> QueryAssignment:
        """Return a copy in which the positions of these partitions in `added` no longer apply."""
        return replace(self, added={key: start for key, start in self.added.items() if key not in partitions})

    def without(self, partitions: Collection[TopicPartition]) -> QueryAssignment:
        """Return a copy that does not own these partitions."""
        return replace(self, owned={key: topic_id for key, topic_id in self.owned.items() if key not in partitions})

    def positions(self, completed: Offsets) -> Mapping[TopicPartition, Position]:
        """Return the position in each partition that was read or assigned at a position, owned or not.

        The later of both: this query has delivered up to `completed`, the previous owner up to the assigned position.
        An assigned position in another topic than `completed` counts alone. `completed` is the batch before this
        assignment; see `after` for a later one.
        """
        ends = completed.positions
        starts = {
            key: ends[key].later(start) if key in ends and ends[key].is_in(start.topic_id) else start
            for key, start in self.added.items()
        }
        return {**ends, **starts} if starts else ends

    def after(self, planned: Offsets) -> QueryAssignment:
        """Return the assignment after a batch that was planned with it: its ends replace the assigned positions.

        An end is lower than the assigned position if the log was truncated before it.
        """
        return self.without_starts(planned.ends.keys())


@dataclass(frozen=True)
class LogSnapshot:
    """The logs as brokers describe them now, and the query's position in them.

    `completed`: the end of the last batch; without `ends` before a query's first batch.
    `assignment`: the partitions that the query may read now.
    `listed`: log end offset and leader epoch of every owned partition.
    `high_watermarks`: high watermarks of the partitions in `ends_before_position`.
    """

    completed: Offsets
    assignment: QueryAssignment
    listed: Mapping[TopicPartition, ListedOffset]
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    @cached_property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """Return `QueryAssignment.positions` after the last batch."""
        return self.assignment.positions(self.completed)

    @cached_property
    def recreated(self) -> dict[str, bytes]:
        """Return the new ids of topics that were deleted and recreated since they were read.

        Topics whose partitions are all read by other members are left out.
        """
        assignment, completed = self.assignment, self.completed
        ids = {**topic_ids(assignment.owned), **assignment.existing_ids}
        lost = completed.ends.keys() - assignment.owned.keys() - set(assignment.revoked)
        topics = {topic for topic, _ in (*assignment.owned, *lost)} & ids.keys() & completed.ids.keys()
        return {topic: ids[topic] for topic in sorted(topics) if completed.ids[topic] != ids[topic]}

    @cached_property
    def outdated(self) -> set[TopicPartition]:
        """Return partitions of recreated topics whose position is in the deleted topic, as one without an id is."""
        recreated, owned = self.recreated, self.assignment.owned
        return {key for key, at in self.positions.items() if key[0] in recreated and at.topic_id != owned.get(key)}

    def deleted(self) -> list[TopicPartition]:
        """Return partitions that were read and no longer exist, without those of recreated topics."""
        missing = self.positions.keys() - self.assignment.owned.keys() - set(self.assignment.revoked)
        return sorted(key for key in missing if key[0] not in self.recreated)

    @cached_property
    def stale(self) -> set[TopicPartition]:
        """Return partitions whose reply came from a stale leader. It proves neither new records nor a loss."""
        return {key for key, end in self.listed.items() if self._is_stale(key, end)}

    @cached_property
    def current(self) -> dict[TopicPartition, ListedOffset]:
        """Return the log end offsets of partitions that are not `stale`."""
        stale = self.stale
        return {key: end for key, end in self.listed.items() if key not in stale}

    def unconfirmed(self, confirmed: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """Return the positions whose records only the leader can confirm, since it was elected later.

        These are positions at which a partition was assigned, and those at the log's end: the log may have been
        truncated and have grown again to the same end. Tasks compare the epochs of all others.

        `confirmed`: positions that were confirmed before; they are left out.
        Returns the positions with the leader epochs that confirm them.
        """
        positions = {}
        for key, position in self.positions.items():
            now = self.current.get(key)
            if position.leader_epoch == NO_LEADER_EPOCH or now is None or now.leader_epoch <= position.leader_epoch:
                continue
            topic_id, is_read = self.assignment.owned[key], position.offset == self.completed.ends.get(key)
            if key in self.outdated or (is_read and (topic_id == NO_TOPIC_ID or now.offset != position.offset)):
                continue
            positions[key] = Position(position.offset, now.leader_epoch, topic_id=topic_id)
        return {key: position for key, position in positions.items() if confirmed.get(key) != position}

    def ends_before_position(self) -> dict[TopicPartition, Position]:
        """Return the log end offsets before the position, with the newest leader epoch known of the topic.

        With `read_committed` this need not be a loss: an open transaction may have begun before the position, if the
        query reached it with `read_uncommitted` or starts at the group's offset.
        """
        return {
            key: Position(end.offset, self._known_epoch(key))
            for key, end in self.current.items()
            if key in self.positions and end.offset < self.positions[key].offset and key not in self.outdated
        }

    @cached_property
    def _current_ends(self) -> dict[TopicPartition, int]:
        last = self.high_watermarks
        return {
            key: max(end.offset, min(self.positions[key].offset, last[key])) if key in last else end.offset
            for key, end in self.current.items()
        }

    def log_end_offsets(self) -> Offsets:
        """Return the log end offsets and topic ids."""
        owned = self.assignment.owned
        return Offsets.at({key: Position(end, topic_id=owned[key]) for key, end in self._current_ends.items()})

    def late_targets(self, target: Mapping[TopicPartition, ListedOffset]) -> dict[TopicPartition, ListedOffset]:
        """Return ends of partitions that were missing, stale or of another topic when `availableNow` set its target."""
        late = {}
        for key, now in self.current.items():
            recorded, position = target.get(key), self.positions.get(key)
            stale = recorded is not None and self._is_stale(key, recorded)
            unknown = position is not None and (recorded is None or (stale and recorded.offset < position.offset))
            if unknown or key[0] in self.recreated:
                late[key] = now
        return late

    def ends(self, target: Mapping[TopicPartition, ListedOffset] | None) -> dict[TopicPartition, int]:
        """Return the readable end of each partition, at most `target` if given."""
        ends = dict(self._current_ends)
        if target is not None:
            # The log may have been truncated since the target was set, and a query that starts at the end of a busy log
            # starts after the target.
            ends = {
                key: min(end, max(target[key].offset, self.positions[key].offset if key in self.positions else 0))
                for key, end in ends.items()
                if key in target
            }
        return ends | {key: self.positions[key].offset for key in self.stale}

    def new(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions to read from their log start offsets."""
        return [key for key in partitions if key not in self.positions or key in self.outdated]

    def joined(
        self, ends: Mapping[TopicPartition, int], log_start_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of partitions that do not start at the end of the last batch: the next `@joined`.

        `log_start_offsets`: log start offsets of the `new` partitions.
        """
        completed_ends = self.completed.ends
        moved = {
            key: position.offset
            for key, position in self.positions.items()
            if key in ends and (position.offset != completed_ends.get(key) or key[0] in self.recreated)
        }
        return moved | {key: min(log_start_offsets[key], ends[key]) for key in log_start_offsets}

    def _is_stale(self, key: TopicPartition, end: ListedOffset) -> bool:
        read, added = self.completed.positions.get(key), self.assignment.added.get(key)
        # Of most partitions, no newer epoch than that of the leader is known.
        if (read is None or read.leader_epoch <= end.leader_epoch) and added is None:
            return False
        return end.is_stale(self._known_epoch(key))

    def _known_epoch(self, key: TopicPartition) -> int:
        """Return the newest leader epoch seen; `NO_LEADER_EPOCH` if none, or if the topic may have been recreated."""
        read, positions = self.completed.positions.get(key), [self.assignment.added.get(key)]
        if read is not None and read.topic_id == self.assignment.owned[key] != NO_TOPIC_ID:
            positions.append(read)
        return max((position.leader_epoch for position in positions if position is not None), default=NO_LEADER_EPOCH)


@dataclass(frozen=True)
class Backlog:
    """The unread offsets [start, end) of each partition.

    In `batch`, no offset in `joined` or `advanced` may be after the partition's end: a restarted query would refuse the
    checkpoint.

    `joined`: first offset of each partition that does not start at the end of the last batch: it is new, was assigned
    at an offset (all are in a query's first batch), or was truncated. The checkpoint's `@joined`.
    `advanced`: the same for partitions whose position was deleted by retention or DeleteRecords.
    `skipped`: number of skipped offsets, without those that `advanced` skips.
    """

    logs: LogSnapshot
    ends: Mapping[TopicPartition, int]
    joined: Mapping[TopicPartition, int]
    advanced: Mapping[TopicPartition, int] = field(default_factory=dict)
    skipped: Mapping[TopicPartition, int] = field(default_factory=dict)

    @cached_property
    def starts(self) -> dict[TopicPartition, int]:
        """Return the first unread offset of each partition."""
        moved, positions = {**self.joined, **self.advanced}, self.logs.positions
        return {key: moved[key] if key in moved else positions[key].offset for key in self.ends}

    @property
    def size(self) -> int:
        """Return the number of unread offsets."""
        return sum(self.ends.values()) - sum(self.starts.values())

    def truncated(self) -> list[TopicPartition]:
        """Return partitions whose log ends before their position."""
        starts = self.starts
        return sorted(key for key, end in self.ends.items() if end < starts[key])

    def continued(self) -> list[TopicPartition]:
        """Return partitions with unread records that start at their position."""
        positions = self.logs.positions
        return [
            key
            for key, position in positions.items()
            if key in self.ends and position.offset == self.starts[key] < self.ends[key]
        ]

    def batch(self, until: Mapping[TopicPartition, int]) -> Offsets | None:
        """Return the end of a batch that reads up to `until`; None if nothing is new.

        `until`: has the partitions of `ends`.
        """
        logs, completed, owned = self.logs, self.logs.completed, self.logs.assignment.owned
        # Keep positions of revoked partitions: they may be assigned again.
        revoked = {key for key in logs.assignment.revoked if key in completed.ends and key[0] not in logs.recreated}
        offsets = {**until, **{key: completed.ends[key] for key in revoked}}
        before = {key: position.offset for key, position in logs.positions.items()}
        if offsets == before and not (self.joined or self.advanced or self.skipped):
            return None
        ends = {key: Position(end, self._epoch(key, end), topic_id=owned[key]) for key, end in until.items()}
        ends |= {key: completed.positions[key] for key in revoked}
        skipped = Counter(completed.skipped)
        skipped.update(self.skipped)
        skipped.update({key: offset - logs.positions[key].offset for key, offset in self.advanced.items()})
        return replace(
            Offsets.at(ends),
            joined={**self.joined, **self.advanced},
            skipped={key: count for key, count in skipped.items() if count},
        )

    def _epoch(self, key: TopicPartition, until: int) -> int:
        """Return the leader epoch to store with an end; the next batch validates the log with it."""
        now = self.logs.listed[key].leader_epoch
        # Without a read, the log was not validated: keep the previous epoch.
        compared = until > self.starts[key] or key in self.advanced or key[0] in self.logs.recreated
        position = self.logs.positions.get(key)
        if compared or position is None or position.leader_epoch == NO_LEADER_EPOCH:
            return now
        return position.leader_epoch
