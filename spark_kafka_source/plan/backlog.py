"""The state of the logs in one trigger, and the micro-batch that follows. Sans-IO.

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
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.offsets import Offsets


@dataclass(frozen=True)
class LogSnapshot:
    """The logs as brokers describe them now, and the query's position in them.

    `completed`: the end of the last batch; without `ends` before a query's first batch.
    `assignment`: the partitions that the query may read now.
    `listed`: log end offset and leader epoch of every readable partition.
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
        """Return `QueryAssignment.recreated` since the last batch."""
        return self.assignment.recreated(self.completed)

    @cached_property
    def outdated(self) -> Mapping[TopicPartition, Position]:
        """Return `QueryAssignment.outdated` since the last batch."""
        return self.assignment.outdated(self.completed)

    def deleted(self) -> list[TopicPartition]:
        """Return partitions that were read and no longer exist, without those of recreated topics."""
        return sorted(self.positions.keys() - self.assignment.readable.keys() - set(self.assignment.kept))

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
            topic_id, is_read = self.assignment.readable[key], position.offset == self.completed.ends.get(key)
            if is_read and (topic_id == NO_TOPIC_ID or now.offset != position.offset):
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
            if key in self.positions and end.offset < self.positions[key].offset
        }

    def shrunk_topics(self) -> set[str]:
        """Return the topics with an id of which a log ends before the position.

        ListOffsets names topics: the end may be that of a recreated topic.
        """
        positions, ids = self.positions, self.assignment.readable
        return {
            key[0]
            for key, end in self._current_ends.items()
            if key in positions and end < positions[key].offset and ids[key] != NO_TOPIC_ID
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
        readable = self.assignment.readable
        return Offsets.at({key: Position(end, topic_id=readable[key]) for key, end in self._current_ends.items()})

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
        return [key for key in partitions if key not in self.positions]

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
        read, start = self.completed.positions.get(key), self.assignment.starts.get(key)
        # Of most partitions, no newer epoch than that of the leader is known.
        if (read is None or read.leader_epoch <= end.leader_epoch) and start is None:
            return False
        return end.is_stale(self._known_epoch(key))

    def _known_epoch(self, key: TopicPartition) -> int:
        """Return the newest leader epoch seen; of an end that was read none, if its topic may have been recreated."""
        read, start = self.completed.positions.get(key), self.assignment.starts.get(key)
        epochs = [] if start is None or key in self.outdated else [start.leader_epoch]
        if read is not None and read.topic_id == self.assignment.readable[key] != NO_TOPIC_ID:
            epochs.append(read.leader_epoch)
        return max(epochs, default=NO_LEADER_EPOCH)


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
        logs, completed, readable = self.logs, self.logs.completed, self.logs.assignment.readable
        # They may be assigned again.
        kept = {key: logs.positions[key] for key in logs.assignment.kept if key in logs.positions}
        offsets = {**until, **{key: position.offset for key, position in kept.items()}}
        before = {key: position.offset for key, position in {**logs.positions, **logs.outdated}.items()}
        if offsets == before and not (self.joined or self.advanced or self.skipped):
            return None
        ends = {key: Position(end, self._epoch(key, end), topic_id=readable[key]) for key, end in until.items()}
        ends |= kept
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
        compared = until > self.starts[key] or key in self.advanced
        position = self.logs.positions.get(key)
        if compared or position is None or position.leader_epoch == NO_LEADER_EPOCH:
            return now
        return position.leader_epoch
