"""The committable offset next to a model that keeps a list of all records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import CommittedOffset
from protocol.position import Position, RecordPositions
from protocol.processing.offset_tracker import OffsetTracker, TrackedRecords

pytestmark = pytest.mark.soak


@given(st.data())
def test_committable_offset_is_that_of_the_first_unfinished_record_still_in_the_log(data: st.DataObject) -> None:
    tracker = OffsetTracker()
    model: list[tuple[TrackedRecords, int, int]] = []  # all records: batch, row, offset
    finished: set[int] = set()
    replaced: set[int] = set()
    next_offset = data.draw(st.integers(0, 2**40))
    for _ in range(data.draw(st.integers(1, 6))):
        gaps = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
        truncated = data.draw(st.sampled_from([0, 0, 3, 9]))
        offsets = max(0, next_offset - truncated) + np.cumsum([gap + 1 for gap in gaps])
        replaced |= {number for number, (_, _, offset) in enumerate(model) if offset >= offsets[0]}
        next_offset = int(offsets[-1]) + 1
        batch = tracker.append(offsets, size_bytes=len(gaps))
        model += [(batch, row, offset) for row, offset in enumerate(offsets.tolist())]
        unfinished = [number for number in range(len(model)) if number not in finished]
        for number in data.draw(st.permutations(unfinished))[: data.draw(st.integers(0, len(unfinished)))]:
            model[number][0].finish(model[number][1])
            finished.add(number)
        next_offset += data.draw(st.sampled_from([0, 0, 1, 5]))  # such as markers of transactions
        tracker.set_position(Position(next_offset))
        tracker.advance()
        first = next((number for number in range(len(model)) if number not in finished), None)
        numbers = [number for number in range(len(model)) if number not in finished | replaced]
        assert tracker.committable == CommittedOffset(model[numbers[0]][2] if numbers else next_offset)
        assert tracker.uncommitted_rows == (0 if first is None else len(model) - first)
        pending = {} if first is None else {id(records): len(records) for records, _, _ in model[first:]}
        assert tracker.size_bytes == sum(pending.values())


def test_records_above_the_position_of_the_reader_do_not_decide_the_offset() -> None:
    tracker = OffsetTracker()
    batch = tracker.append(np.array([5, 6, 10, 11]))
    tracker.set_position(Position(20, 4))
    batch.finish(0)
    assert tracker.committable == CommittedOffset(6)
    tracker.set_position(Position(10, 2))
    assert tracker.committable == CommittedOffset(6)
    batch.finish(1)
    assert (tracker.committable, tracker.uncommitted_rows) == (CommittedOffset(10, 2), 2)


@pytest.mark.parametrize("polls_first", [True, False], ids=["position", "records"])
def test_records_of_a_deleted_topic_do_not_decide_the_offset(polls_first: bool) -> None:
    """The first sign of the new topic is the position of the reader, or records."""
    tracker, start = OffsetTracker(), Position(8, topic_id=b"second topic id.")
    deleted = RecordPositions(Position(5, topic_id=b"first topic id.."))
    before = tracker.append(np.array([5, 6]), size_bytes=2, positions=deleted)
    if polls_first:
        tracker.set_position(start)
        assert (tracker.committable, tracker.uncommitted_rows, tracker.size_bytes) == (CommittedOffset(8), 2, 2)
    after = tracker.append(np.array([8, 9]), size_bytes=2, positions=RecordPositions(start))
    after.finish(0)
    assert (tracker.committable, tracker.uncommitted_rows) == (CommittedOffset(9), 4)
    before.finish_rows([0, 1])
    tracker.advance()
    assert (tracker.committable, tracker.uncommitted_rows, tracker.size_bytes) == (CommittedOffset(9), 1, 2)


def test_unfinished_records_below_the_last_finished_one_are_found_by_batch() -> None:
    tracker = OffsetTracker()
    batches = [tracker.append(np.arange(first, first + 4)) for first in (0, 10, 20, 30)]

    def unfinished() -> dict[int, list[int]]:
        return {batches.index(batch): rows.tolist() for batch, rows in tracker.unfinished_below_finished().items()}

    assert unfinished() == {}
    batches[0].finish_rows(range(4))
    batches[1].finish(3)
    batches[2].finish_rows([1, 2])
    assert unfinished() == {1: [0, 1, 2], 2: [0]}
    tracker.set_position(Position(22))
    assert unfinished() == {1: [0, 1, 2], 2: [0]}
    tracker.set_position(Position(12))
    assert unfinished() == {}
