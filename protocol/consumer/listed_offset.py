"""The leader's reply about one offset of a log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ListedOffset:
    """An offset with its leader epoch and timestamp.

    Attributes
    ----------
    offset : int
        -1 if there is no record at or after the timestamp.
    leader_epoch : int
        Epoch of the record; for `LATEST`, the epoch of the replying leader. -1 if unknown.
    timestamp_ms : int
    """

    offset: int
    leader_epoch: int
    timestamp_ms: int

    def is_stale(self, known_epoch: int) -> bool:
        """Return True if the leader that listed `LATEST` has been replaced by one of `known_epoch` unnoticed.

        Its log may end before records that were read meanwhile. Both epochs must be of the same topic id.
        """
        return 0 <= self.leader_epoch < known_epoch
