"""Leader epochs before offsets among records that were read."""

from __future__ import annotations

import pytest

from protocol.consumer.fetch_position import CompletedFetch
from protocol.consumer.log_offsets import LeaderEpochs
from protocol.records.memory_records import read_batch_headers
from tests.protocol.consumer.consuming import records


def reply(*batches: tuple[int, int, int], epoch_before: int) -> CompletedFetch:
    """Return a reply with record batches of (offset, count, leader epoch)."""
    data = b"".join(records(first, count, epoch=epoch) for first, count, epoch in batches)
    return CompletedFetch(read_batch_headers(data), batches[0][0], sum(batches[-1][:2]), epoch_before, None)


def test_epoch_before_each_offset_of_a_reply() -> None:
    epochs = reply((5, 2, 0), (7, 2, 0), (9, 3, 2), epoch_before=-1).leader_epochs()
    assert epochs == LeaderEpochs(-1, ((5, 0), (9, 2)))
    assert [epochs.before_offset(offset) for offset in (5, 6, 9, 10, 12)] == [-1, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("later", "changes"),
    [
        (((12, 2),), ((5, 0), (9, 2))),
        (((12, 3), (14, 4)), ((5, 0), (9, 2), (12, 3), (14, 4))),
        (((7, 3),), ((5, 0), (7, 3))),
        ((), ((5, 0), (9, 2))),
    ],
    ids=["same epoch", "newer epochs", "after a truncation", "no records"],
)
def test_epochs_of_records_read_next_are_added(
    later: tuple[tuple[int, int], ...], changes: tuple[tuple[int, int], ...]
) -> None:
    epochs = LeaderEpochs(-1, ((5, 0), (9, 2)))
    assert epochs.followed_by(LeaderEpochs(2, later)) == LeaderEpochs(-1, changes)
