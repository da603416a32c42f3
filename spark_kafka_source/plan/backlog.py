"""What a trigger sees of a query's logs, and the batch that follows from it. Pure: `stream_reader` asks the brokers.

`losses` says what is gone between what was read and what is there, `limits` how much of the backlog a batch takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from protocol.consumer.listed_offset import ListedOffset
from spark_kafka_source.options.partitions import TopicPartition
from spark_kafka_source.plan.claims import Claims
from spark_kafka_source.plan.offsets import Offsets, topic_ids


@dataclass(frozen=True)
class SeenLogs:
    """What brokers say of the logs now, next to what the query has read of them.

    Attributes
    ----------
    begin : where the last batch ended; before a query's first batch without `ends`, since no checkpoint has any.
    claims : what the query may read now.
    listed : (topic, partition) -> where its log ends, and the epoch in which its leader leads; of all that is owned.
    high_watermarks : (topic, partition) -> where its log ends, of those of `held_back`.
    """

    begin: Offsets
    claims: Claims
    listed: Mapping[TopicPartition, ListedOffset]
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    @cached_property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset to read, where something was read or claimed at an offset; of what is not owned, too."""
        return self.claims.positions(self.begin.ends)

    @cached_property
    def recreated(self) -> dict[str, bytes]:
        """The topics that were made anew since they were read, and their new ids."""
        known = self.begin.ids
        return {topic: now for topic, now in topic_ids(self.claims.owned).items() if known.get(topic, now) != now}

    @cached_property
    def stale(self) -> set[TopicPartition]:
        """Where a leader answers that was replaced, and does not know it: neither news nor a loss."""
        return {key for key, end in self.listed.items() if end.is_stale(self._known_epoch(key))}

    @cached_property
    def news(self) -> dict[TopicPartition, ListedOffset]:
        return {key: end for key, end in self.listed.items() if key not in self.stale}

    def held_back(self) -> dict[TopicPartition, int]:
        """Where less can be read than was read, and the epoch that leads there at least (-1: unknown).

        With `read_committed` that need not be a loss. An open transaction may have begun before it: when the query has
        read so far with `read_uncommitted`, or begins at an offset of its group.
        """
        return {
            key: self._known_epoch(key)
            for key, end in self.news.items()
            if end.offset < self.positions.get(key, 0) and key[0] not in self.recreated
        }

    @cached_property
    def _news_ends(self) -> dict[TopicPartition, int]:
        last = self.high_watermarks
        return {
            key: max(end.offset, min(self.positions[key], last[key])) if key in last else end.offset
            for key, end in self.news.items()
        }

    def log_ends(self) -> Offsets:
        return Offsets(self._news_ends, ids=self.ids_of(self.news))

    def late_targets(self, target: Mapping[TopicPartition, ListedOffset]) -> dict[TopicPartition, ListedOffset]:
        """What was missing, had an old leader, or was another topic when `availableNow` noted where it ends."""
        late = {}
        for key, now in self.news.items():
            noted = target.get(key)
            read = self.positions.get(key)
            old = noted is not None and noted.is_stale(self._known_epoch(key))
            if key[0] in self.recreated or (read is not None and (noted is None or (old and noted.offset < read))):
                late[key] = now
        return late

    def ends(self, target: Mapping[TopicPartition, ListedOffset] | None) -> dict[TopicPartition, int]:
        """How far there is something to read; with a `target` not beyond that."""
        if target is None:
            ends = dict(self._news_ends)
        else:
            # A log may have been cut since the target was noted, and a query that begins at the end of a busy one
            # begins after the target.
            ends = {
                key: min(end, max(target[key].offset, self.positions.get(key, 0)))
                for key, end in self._news_ends.items()
                if key in target
            }
        return ends | {key: self.positions[key] for key in self.stale}

    def new(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that are to be read from where their logs begin."""
        return [key for key in partitions if key not in self.positions or key[0] in self.recreated]

    def backlog(
        self,
        ends: Mapping[TopicPartition, int],
        log_starts: Mapping[TopicPartition, int],
        skipped: Mapping[TopicPartition, int],
    ) -> Backlog:
        """What there is to read up to `ends`. `log_starts`: where the logs of those that are `new` begin."""
        moved = {key: at for key, at in self.positions.items() if key in ends and at != self.begin.ends.get(key)}
        return Backlog(self, ends, moved | {key: min(at, ends[key]) for key, at in log_starts.items()}, skipped=skipped)

    def epoch_before(self, key: TopicPartition) -> int | None:
        """Leader epoch of the last record before the position; None if unknown, as where another has read up to it."""
        return self.begin.epochs.get(key) if self.positions.get(key) == self.begin.ends.get(key) else None

    def ids_of(self, partitions: Collection[TopicPartition]) -> dict[str, bytes]:
        return topic_ids({key: self.claims.owned[key] for key in partitions})

    def _known_epoch(self, key: TopicPartition) -> int:
        """-1 also for one of another topic, or perhaps of another one: it tells nothing."""
        same = self.claims.owned[key] == self.begin.ids.get(key[0])
        return self.begin.epochs.get(key, -1) if same else -1


@dataclass(frozen=True)
class Backlog:
    """What there is to read: of each partition the offsets [start, end).

    Attributes
    ----------
    joined : where partitions begin that are new (in a query's first batch all), or have lost what was read of them.
    gone : where logs begin that have lost what was to be read next.
    skipped : how many offsets are left out besides those that are `gone`.
    """

    logs: SeenLogs
    ends: Mapping[TopicPartition, int]
    joined: Mapping[TopicPartition, int]
    gone: Mapping[TopicPartition, int] = field(default_factory=dict)
    skipped: Mapping[TopicPartition, int] = field(default_factory=dict)

    @cached_property
    def starts(self) -> dict[TopicPartition, int]:
        starts = {**self.logs.positions, **self.joined, **self.gone}
        return {key: starts[key] for key in self.ends}

    @property
    def size(self) -> int:
        return sum(end - self.starts[key] for key, end in self.ends.items())

    def shorter(self) -> list[TopicPartition]:
        """Where the log ends before what was read."""
        return sorted(key for key, end in self.ends.items() if end < self.starts[key])

    def continued(self) -> list[TopicPartition]:
        """Where there is something to read right after what was read."""
        read = self.logs.positions
        return [key for key in read if key in self.ends and read[key] == self.starts[key] < self.ends[key]]

    def batch(self, until: Mapping[TopicPartition, int]) -> Offsets | None:
        """The end of a batch that reads up to `until`, which has the partitions of `ends`; None when nothing is new."""
        begin, revoked = self.logs.begin, self._revoked
        ends = {**until, **revoked}
        if ends == self.logs.positions and not (self.joined or self.gone or self.skipped):
            return None
        skipped = Counter(begin.skipped)
        skipped.update(self.skipped)
        skipped.update({key: offset - self.logs.positions[key] for key, offset in self.gone.items()})
        epochs = {key: self._epoch(key, offset) for key, offset in until.items()}
        epochs.update({key: begin.epochs[key] for key in revoked if key in begin.epochs})
        return Offsets(
            ends,
            ids={topic: begin.ids[topic] for topic, _ in revoked if topic in begin.ids} | self.logs.ids_of(until),
            epochs={key: epoch for key, epoch in epochs.items() if epoch >= 0},
            joined={**self.joined, **self.gone},
            skipped={key: count for key, count in skipped.items() if count},
        )

    @property
    def _revoked(self) -> dict[TopicPartition, int]:
        """How far others were read before they were revoked: kept, for when they come back."""
        read, revoked = self.logs.begin.ends, self.logs.claims.revoked
        return {key: read[key] for key in revoked if key in read and key[0] not in self.logs.recreated}

    def _epoch(self, key: TopicPartition, until: int) -> int:
        now = self.logs.listed[key].leader_epoch
        if until > self.starts[key] or key in self.gone or key[0] in self.logs.recreated:
            return now
        # Where nothing is read nothing is compared with the log either: the next batch there still has to.
        before = self.logs.epoch_before(key)
        return now if before is None else before
