"""The offset that a handler has marked in one claim: sarama's rules, and those after lost data. Without I/O."""

from __future__ import annotations

import logging

from protocol.group.commits.committed_offsets import CommittedOffset, to_commit
from protocol.kafka_terms import TopicPartition
from protocol.position import Position, RecordPositions

log = logging.getLogger(__name__)


class ClaimMarks:
    """The marked offset of one claim. A claim that is revoked and comes back has another object.

    sarama's rules: `mark` only raises the offset, `reset` only lowers it. The caller is the session, which holds its
    lock.

    `starting`: set by the session with each claim that it adds, after `setup`. Until `start`, the session refuses
    marks: they would be older than commits of another member.
    `offset`: the start offset at first, then the marked one.
    `dirty`: the offset was marked after the last `stage`.
    `staged`: the offset is staged for a commit, was committed, or was refused: the next commit then sends it again.
    `recreated`: the topic was deleted, and a new one has its name: the offset is not committed. Set by the session.
    """

    def __init__(self, key: TopicPartition) -> None:
        self.starting = False
        self.offset: CommittedOffset | None = None
        self.dirty = self.staged = self.recreated = False
        self._key = key
        # Positions of the records that the claim has returned.
        self._records: RecordPositions | None = None
        # End of the records that the claim has returned; after lost data, of those in the present log.
        self._returned: int | None = None
        self._after_loss = False
        # (floor, until): marks above `floor` may be of lost records, and are ignored until one reaches `until`.
        self._ambiguous: tuple[int, int] | None = None

    def start(self, offset: CommittedOffset, *, commit: bool = False) -> None:
        """Set the start offset; lower offsets are accepted by `reset` only. With `commit`, it is dirty."""
        self.starting = False
        if self.offset is None:
            self.offset, self.dirty = offset, commit

    def mark(self, offset: int, metadata: str = "") -> None:
        """Set a higher offset. The claim has a start offset."""
        assert self.offset is not None
        if self._is_in_present_log(offset) and offset > self.offset.offset:
            self._set(self._at(offset, metadata))

    def reset(self, offset: int, metadata: str = "") -> None:
        """Set a lower or the same offset."""
        self._lower(self._at(offset, metadata))

    def _at(self, offset: int, metadata: str) -> CommittedOffset:
        return to_commit(Position(offset) if self._records is None else self._records.at(offset), metadata)

    def _lower(self, offset: CommittedOffset) -> None:
        if self.offset is None or offset.offset <= self.offset.offset:
            self._set(offset)

    def _set(self, offset: CommittedOffset) -> None:
        if self.offset != offset:
            self.offset, self.dirty, self.staged = offset, True, False

    def stage(self) -> None:
        """Record that a dirty offset is staged for a commit. Called just before it is."""
        self.dirty, self.staged = False, True

    def records_returned(self, end: int, records: RecordPositions) -> None:
        """Record the end of the records that the claim returns, and their positions."""
        self._returned = end if self._returned is None else max(end, self._returned)
        self._records = records if self._records is None else self._records.followed_by(records)

    def position_lost(self, position: CommittedOffset, *, replaced: bool) -> None:
        """Lower the mark to the position after lost data, and ignore later marks of lost records.

        1. Lower the mark: `mark` only raises it, and offsets of a recreated topic are lower.
        2. Ignore marks above the records returned since the loss.
        3. If `replaced` (other records may have the offsets of lost ones), and a lost record was not marked: ignore all
           marks up to the former end until one reaches it, since they may be of lost records. After a restart, the
           records of ignored marks are handled again.
        """
        floor, until = self._ambiguous or (position.offset, -1)
        self._ambiguous = None
        if replaced:
            if self._returned is not None and (self.offset is None or self.offset.offset < self._returned):
                until = max(until, self._returned)
            if until > position.offset:
                self._ambiguous = min(floor, position.offset), until
                log.warning(
                    "%s-%d: records were lost before all of them were marked: marks of offsets up to %d are ignored "
                    "until one reaches it, since they may be of lost records",
                    *self._key,
                    until,
                )
        self._records = None
        self._returned, self._after_loss = position.offset, True
        self._lower(position)

    def _is_in_present_log(self, offset: int) -> bool:
        """Return False for a mark that may be of records lost since."""
        if self._ambiguous is not None and self._ambiguous[0] < offset:
            until = self._ambiguous[1]
            if offset >= until:
                self._ambiguous = None
            if offset <= until:
                return False
        return not self._after_loss or self._returned is None or offset <= self._returned
