"""Marks behave as in sarama: `MarkOffset` only increases, `ResetOffset` only decreases, and unchanged offsets are
not dirty."""

from __future__ import annotations

from protocol.consumer_group.session import MarkedOffsets
from protocol.group.committed_offsets import CommittedOffset

KEY = ("orders", 0)


def test_mark_increases_and_reset_decreases_the_offset() -> None:
    marked = MarkedOffsets()
    marked.set_start_offset(KEY, 10)
    marked.mark(KEY, CommittedOffset(9))
    marked.mark(KEY, CommittedOffset(10))
    marked.reset(KEY, CommittedOffset(11))
    assert marked.take() == {}
    marked.mark(KEY, CommittedOffset(12, metadata="so far"))
    assert marked.take() == {KEY: CommittedOffset(12, metadata="so far")}
    marked.reset(KEY, CommittedOffset(5))
    assert marked.take() == {KEY: CommittedOffset(5)}


def test_offset_marked_again_after_take_is_not_dirty() -> None:
    marked = MarkedOffsets()
    marked.mark(KEY, CommittedOffset(1))
    assert marked.dirty == marked.take()
    marked.mark(KEY, CommittedOffset(1))
    assert marked.take() == {}
    assert marked.taken == {KEY: CommittedOffset(1)}


def test_dropped_partition_starts_again_at_its_new_start_offset() -> None:
    marked = MarkedOffsets()
    marked.mark(KEY, CommittedOffset(7))
    marked.drop([KEY])
    marked.set_start_offset(KEY, 3)
    marked.mark(KEY, CommittedOffset(4))
    assert marked.take() == {KEY: CommittedOffset(4)}
