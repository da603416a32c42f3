"""What a trigger sees of a query's logs, and the batch that follows from it. Pure: `driver/trigger.py` asks brokers.

`data_loss` says what is lost between what was read and what is there, `limits` how much of the backlog a batch takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from protocol.consumer.log_offsets import ListedOffset
from protocol.kafka_terms import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_source.plan.claims import Claims
from spark_kafka_source.plan.offsets import Offsets, topic_ids


@dataclass(frozen=True)
class LogSnapshot:
    """What brokers say of the logs now, next to what the query has read of them.

    Attributes
    ----------
    read : where the last batch ended; before a query's first batch without `ends`, since no checkpoint has any.
    claims : what the query may read now.
    listed : (topic, partition) -> where its log ends, and the epoch in which its leader leads; of all that is owned.
    high_watermarks : (topic, partition) -> where its log ends, of those of `held_back`.
    """

    read: Offsets
    claims: Claims
    listed: Mapping[TopicPartition, ListedOffset]
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    @cached_property
    def positions(self) -> dict[TopicPartition, int]:
        """See `Claims.positions`."""
        return self.claims.positions(self.read)

    @cached_property
    def epochs(self) -> dict[TopicPartition, int]:
        """See `Claims.epochs`."""
        return self.claims.epochs(self.read)

    @cached_property
    def recreated(self) -> dict[str, bytes]:
        """The topics that were deleted and recreated since they were read, and their new ids."""
        known = self.read.ids
        return {topic: now for topic, now in topic_ids(self.claims.owned).items() if known.get(topic, now) != now}

    def deleted(self) -> list[TopicPartition]:
        """Partitions that were read and are gone; without those of recreated topics, which `recreated` has."""
        missing = self.positions.keys() - self.claims.owned.keys() - set(self.claims.revoked)
        return sorted(key for key in missing if key[0] not in self.recreated)

    @cached_property
    def stale(self) -> set[TopicPartition]:
        """Where a leader answers that was replaced, and does not know it: neither news nor a loss."""
        return {key for key, end in self.listed.items() if end.is_stale(self._known_epoch(key))}

    @cached_property
    def current(self) -> dict[TopicPartition, ListedOffset]:
        return {key: end for key, end in self.listed.items() if key not in self.stale}

    def held_back(self) -> dict[TopicPartition, int]:
        """Partitions that can only be read up to an offset before our position, and their newest known leader epoch.

        With `read_committed` that need not be a loss: a transaction that is still open may have begun before the
        position, if the query got there with `read_uncommitted` or begins at its group's offset.
        """
        return {
            key: self._known_epoch(key)
            for key, end in self.current.items()
            if end.offset < self.positions.get(key, 0) and key[0] not in self.recreated
        }

    @cached_property
    def _current_ends(self) -> dict[TopicPartition, int]:
        last = self.high_watermarks
        return {
            key: max(end.offset, min(self.positions[key], last[key])) if key in last else end.offset
            for key, end in self.current.items()
        }

    def log_ends(self) -> Offsets:
        return Offsets(self._current_ends, ids=self.ids_of(self.current))

    def late_targets(self, target: Mapping[TopicPartition, ListedOffset]) -> dict[TopicPartition, ListedOffset]:
        """What was missing, had a stale leader, or was another topic when `availableNow` noted where it ends."""
        late = {}
        for key, now in self.current.items():
            noted, position = target.get(key), self.positions.get(key)
            stale = noted is not None and noted.is_stale(self._known_epoch(key))
            unknown = position is not None and (noted is None or (stale and noted.offset < position))
            if unknown or key[0] in self.recreated:
                late[key] = now
        return late

    def ends(self, target: Mapping[TopicPartition, ListedOffset] | None) -> dict[TopicPartition, int]:
        """How far there is something to read; with a `target` not beyond that."""
        ends = dict(self._current_ends)
        if target is not None:
            # A log may have been cut since the target was noted, and a query that begins at the end of a busy one
            # begins after the target.
            ends = {
                key: min(end, max(target[key].offset, self.positions.get(key, 0)))
                for key, end in ends.items()
                if key in target
            }
        return ends | {key: self.positions[key] for key in self.stale}

    def new(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that are to be read from where their logs begin."""
        return [key for key in partitions if key not in self.positions or key[0] in self.recreated]

    def joined(
        self, ends: Mapping[TopicPartition, int], log_starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition that does not begin where the last batch ended: the next `@joined`.

        `log_starts`: where the logs of the `new` partitions begin.
        """
        moved = {key: at for key, at in self.positions.items() if key in ends and at != self.read.ends.get(key)}
        return moved | {key: min(log_starts[key], ends[key]) for key in log_starts}

    def ids_of(self, partitions: Collection[TopicPartition]) -> dict[str, bytes]:
        return topic_ids({key: self.claims.owned[key] for key in partitions})

    def _known_epoch(self, key: TopicPartition) -> int:
        """The newest leader epoch seen; `NO_LEADER_EPOCH` if none was, or if the topic may be another one by now."""
        same_topic = self.claims.owned[key] == self.read.ids.get(key[0])
        return self.read.epochs.get(key, NO_LEADER_EPOCH) if same_topic else NO_LEADER_EPOCH


@dataclass(frozen=True)
class Backlog:
    """What there is to read: of each partition the offsets [start, end).

    Attributes
    ----------
    joined : the first offset of each partition that does not begin where the last batch ended: it is new, was claimed
        at an offset (in a query's first batch all were), or was truncated. The checkpoint's `@joined`.
    advanced : the same of partitions whose position was deleted by retention or DeleteRecords.
    skipped : how many offsets are left out, without those that `advanced` leaves out.
    """

    logs: LogSnapshot
    ends: Mapping[TopicPartition, int]
    joined: Mapping[TopicPartition, int]
    advanced: Mapping[TopicPartition, int] = field(default_factory=dict)
    skipped: Mapping[TopicPartition, int] = field(default_factory=dict)

    @cached_property
    def starts(self) -> dict[TopicPartition, int]:
        starts = {**self.logs.positions, **self.joined, **self.advanced}
        return {key: starts[key] for key in self.ends}

    @property
    def size(self) -> int:
        return sum(end - self.starts[key] for key, end in self.ends.items())

    def truncated(self) -> list[TopicPartition]:
        """Where the log ends before what was read."""
        return sorted(key for key, end in self.ends.items() if end < self.starts[key])

    def continued(self) -> list[TopicPartition]:
        """Where there is something to read right after what was read."""
        read = self.logs.positions
        return [key for key in read if key in self.ends and read[key] == self.starts[key] < self.ends[key]]

    def batch(self, until: Mapping[TopicPartition, int]) -> Offsets | None:
        """The end of a batch that reads up to `until`, which has the partitions of `ends`; None when nothing is new."""
        logs, read = self.logs, self.logs.read
        # How far revoked partitions were read is kept, for when they come back.
        revoked = {key for key in logs.claims.revoked if key in read.ends and key[0] not in logs.recreated}
        ends = {**until, **{key: read.ends[key] for key in revoked}}
        if ends == logs.positions and not (self.joined or self.advanced or self.skipped):
            return None
        skipped = Counter(read.skipped)
        skipped.update(self.skipped)
        skipped.update({key: offset - logs.positions[key] for key, offset in self.advanced.items()})
        epochs = {
            key: read.epochs.get(key, NO_LEADER_EPOCH) if key in revoked else self._epoch(key, ends[key])
            for key in ends
        }
        return Offsets(
            ends,
            ids={topic: read.ids[topic] for topic, _ in revoked if topic in read.ids} | logs.ids_of(until),
            epochs={key: epoch for key, epoch in epochs.items() if epoch >= 0},
            joined={**self.joined, **self.advanced},
            skipped={key: count for key, count in skipped.items() if count},
        )

    def _epoch(self, key: TopicPartition, until: int) -> int:
        """The leader epoch to keep beside an end: the log is compared with it when the next batch is read."""
        now = self.logs.listed[key].leader_epoch
        # Where nothing is read, nothing was compared yet: the epoch known before has to stay.
        compared = until > self.starts[key] or key in self.advanced or key[0] in self.logs.recreated
        return now if compared else self.logs.epochs.get(key, now)
