"""The committable offset next to a model that keeps a list of all records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.group.committed_offsets import CommittedOffset
from protocol.processing.offset_tracker import OffsetTracker, TrackedRecords

pytestmark = pytest.mark.soak


@given(st.data())
def test_committable_offset_is_that_of_the_lowest_unfinished_record(data: st.DataObject) -> None:
    tracker = OffsetTracker()
    model: list[tuple[TrackedRecords, int, int]] = []  # all records: batch, row, offset
    finished: set[int] = set()
    next_offset = data.draw(st.integers(0, 2**40))
    for _ in range(data.draw(st.integers(1, 6))):
        gaps = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
        offsets = next_offset + np.cumsum([gap + 1 for gap in gaps])
        next_offset = int(offsets[-1]) + 1
        batch = tracker.append(offsets, size_bytes=len(gaps))
        model += [(batch, row, offset) for row, offset in enumerate(offsets.tolist())]
        unfinished = [number for number in range(len(model)) if number not in finished]
        for number in data.draw(st.permutations(unfinished))[: data.draw(st.integers(0, len(unfinished)))]:
            model[number][0].finish(model[number][1])
            finished.add(number)
        tracker.advance()
        first = next((number for number in range(len(model)) if number not in finished), None)
        assert tracker.committable == CommittedOffset(next_offset if first is None else model[first][2])
        assert tracker.uncommitted_rows == (0 if first is None else len(model) - first)
        held = {} if first is None else {id(each): len(each) for each, _, _ in model[first:]}
        assert tracker.size_bytes == sum(held.values())


def test_nothing_is_committable_before_the_first_batch() -> None:
    tracker = OffsetTracker()
    tracker.advance()
    assert (tracker.committable, tracker.uncommitted_rows, tracker.size_bytes) == (None, 0, 0)


def test_committable_end_of_a_batch_has_the_leader_epoch_of_the_batch() -> None:
    tracker = OffsetTracker()
    batch = tracker.append(np.array([5, 6]), end=CommittedOffset(9, leader_epoch=4))
    batch.finish_rows([1])
    assert tracker.committable == CommittedOffset(5)
    batch.finish_rows([0])
    tracker.advance()
    assert tracker.committable == CommittedOffset(9, leader_epoch=4)


def test_lower_offsets_after_a_truncation_are_committed_in_the_order_of_reading() -> None:
    tracker = OffsetTracker()
    before, after = tracker.append(np.array([10, 11])), tracker.append(np.array([7, 8]))
    after.finish_rows([0, 1])
    assert tracker.committable == CommittedOffset(10)
    before.finish_rows([0, 1])
    tracker.advance()
    assert tracker.committable == CommittedOffset(9)
