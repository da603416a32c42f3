"""Marks behave as in sarama: `MarkOffset` only increases, `ResetOffset` only decreases, and unchanged offsets are
not dirty."""

from __future__ import annotations

from protocol import CommittedOffset
from protocol.consumer.claim_marks import ClaimMarks
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.position import Position, RecordPositions

KEY = ("orders", 0)


def stage(marks: ClaimMarks) -> CommittedOffset | None:
    """Return the offset to commit, as a session does."""
    if not marks.dirty:
        return None
    marks.stage()
    assert marks.staged
    return marks.offset


def test_mark_increases_and_reset_decreases_the_offset() -> None:
    marks = ClaimMarks(KEY)
    marks.start(CommittedOffset(10))
    marks.mark(9)
    marks.mark(10)
    marks.reset(11)
    assert stage(marks) is None
    assert not marks.staged
    marks.mark(12, "so far")
    assert stage(marks) == CommittedOffset(12, metadata="so far")
    marks.reset(5)
    assert not marks.staged
    assert stage(marks) == CommittedOffset(5)


def test_offset_marked_again_after_take_is_not_dirty() -> None:
    marks = ClaimMarks(KEY)
    marks.start(CommittedOffset(0))
    marks.mark(1)
    assert stage(marks) == CommittedOffset(1)
    marks.mark(1)
    assert stage(marks) is None
    assert marks.staged


def test_offset_set_before_the_start_is_kept() -> None:
    marks = ClaimMarks(KEY)
    marks.reset(7)
    marks.start(CommittedOffset(3), commit=True)
    assert stage(marks) == CommittedOffset(7)


def test_marks_have_the_leader_epoch_of_the_record_before() -> None:
    marks = ClaimMarks(KEY)
    marks.start(CommittedOffset(0))
    marks.records_returned(5, RecordPositions(Position(0, 1, topic_id=b"a" * 16), ((3, 2),)))
    marks.mark(3)
    assert stage(marks) == CommittedOffset(3, 1)
    marks.records_returned(9, RecordPositions(Position(5, 2, topic_id=b"a" * 16), ((7, 4),)))
    marks.mark(8)
    assert stage(marks) == CommittedOffset(8, 4)
    marks.reset(4)
    assert stage(marks) == CommittedOffset(4, 2)
    assert marks.offset is not None
    assert marks.offset.topic_id == b"a" * 16
    marks.position_lost(CommittedOffset(0), replaced=True)
    assert stage(marks) == CommittedOffset(0)
    marks.mark(0)
    assert marks.offset.topic_id == NO_TOPIC_ID


def read(marks: ClaimMarks, end: int) -> None:
    marks.records_returned(end, RecordPositions(Position(0)))


def marked_up_to(offset: int, end: int) -> ClaimMarks:
    """Return marks of a claim that starts at 0 and has returned the records before `end`."""
    marks = ClaimMarks(KEY)
    marks.start(CommittedOffset(0))
    read(marks, end)
    marks.mark(offset)
    return marks


def offset_after(marks: ClaimMarks, *offsets: int) -> int:
    for offset in offsets:
        marks.mark(offset)
    assert marks.offset is not None
    return marks.offset.offset


def test_marks_of_lost_records_are_ignored_until_the_last_one() -> None:
    marks = marked_up_to(7, 20)
    marks.position_lost(CommittedOffset(10), replaced=True)
    assert offset_after(marks, 9, 10, 11) == 10
    read(marks, 30)
    assert offset_after(marks, 12, 20) == 10
    assert offset_after(marks, 11, 20, 30) == 30


def test_mark_above_the_lost_records_is_accepted() -> None:
    marks = marked_up_to(7, 20)
    marks.position_lost(CommittedOffset(10), replaced=True)
    read(marks, 30)
    assert offset_after(marks, 15) == 7
    assert offset_after(marks, 21) == 21


def test_marks_after_a_truncation_are_accepted_if_all_records_before_were_marked() -> None:
    marks = marked_up_to(20, 20)
    marks.position_lost(CommittedOffset(10), replaced=True)
    assert offset_after(marks, 20) == 10
    read(marks, 15)
    assert offset_after(marks, 12, 16) == 12
    assert offset_after(marks, 15) == 15


def test_marks_are_ambiguous_from_the_first_of_two_truncations_on() -> None:
    marks = marked_up_to(0, 20)
    marks.position_lost(CommittedOffset(10), replaced=True)
    read(marks, 15)
    marks.position_lost(CommittedOffset(12), replaced=True)
    read(marks, 25)
    assert offset_after(marks, 10, 11, 19) == 10
    assert offset_after(marks, 21) == 21


def test_marks_in_a_recreated_topic_are_accepted_up_to_the_records_read() -> None:
    marks = marked_up_to(20, 20)
    marks.position_lost(CommittedOffset(0), replaced=True)
    assert offset_after(marks, 20) == 0
    read(marks, 5)
    assert offset_after(marks, 20) == 0
    assert offset_after(marks, 5) == 5
