"""What a leader says of one offset of a log. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ListedOffset:
    """`offset` is -1 where no record is at or after the time asked for.

    `leader_epoch` is that of the record found; for `LATEST` that in which the broker leads. -1 where unknown.
    """

    offset: int
    leader_epoch: int
    timestamp_ms: int

    def is_stale(self, known_epoch: int) -> bool:
        """Of `LATEST`: whether whoever said it was replaced by the leader of `known_epoch`, and does not know that yet.

        Its log may end before what was read since. Epochs count only for one and the same topic.
        """
        return 0 <= self.leader_epoch < known_epoch
