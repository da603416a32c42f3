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


def marked_up_to(offset: int, end: int) -> MarkedOffsets:
    """Return marks of a claim that starts at 0 and has returned the records before `end`."""
    marked = MarkedOffsets()
    marked.set_start_offset(KEY, 0)
    marked.returned(KEY, end)
    marked.mark(KEY, CommittedOffset(offset))
    return marked


def offset_after(marked: MarkedOffsets, *offsets: int) -> int:
    for offset in offsets:
        marked.mark(KEY, CommittedOffset(offset))
    return {**marked.taken, **marked.dirty}[KEY].offset


def test_marks_of_lost_records_are_ignored_until_the_last_one() -> None:
    marked = marked_up_to(7, 20)
    marked.position_lost(KEY, CommittedOffset(10), replaced=True)
    assert offset_after(marked, 9, 10, 11) == 10
    marked.returned(KEY, 30)
    assert offset_after(marked, 12, 20) == 10
    assert offset_after(marked, 11, 20, 30) == 30


def test_mark_above_the_lost_records_is_accepted() -> None:
    marked = marked_up_to(7, 20)
    marked.position_lost(KEY, CommittedOffset(10), replaced=True)
    marked.returned(KEY, 30)
    assert offset_after(marked, 15) == 7
    assert offset_after(marked, 21) == 21


def test_marks_after_a_truncation_are_accepted_if_all_records_before_were_marked() -> None:
    marked = marked_up_to(20, 20)
    marked.position_lost(KEY, CommittedOffset(10), replaced=True)
    assert offset_after(marked, 20) == 10
    marked.returned(KEY, 15)
    assert offset_after(marked, 12, 16) == 12
    assert offset_after(marked, 15) == 15


def test_marks_are_ambiguous_from_the_first_of_two_truncations_on() -> None:
    marked = marked_up_to(0, 20)
    marked.position_lost(KEY, CommittedOffset(10), replaced=True)
    marked.returned(KEY, 15)
    marked.position_lost(KEY, CommittedOffset(12), replaced=True)
    marked.returned(KEY, 25)
    assert offset_after(marked, 10, 11, 19) == 10
    assert offset_after(marked, 21) == 21


def test_marks_in_a_recreated_topic_are_accepted_up_to_the_records_read() -> None:
    marked = marked_up_to(20, 20)
    marked.position_lost(KEY, CommittedOffset(0), replaced=True)
    assert offset_after(marked, 20) == 0
    marked.returned(KEY, 5)
    assert offset_after(marked, 20) == 0
    assert offset_after(marked, 5) == 5
