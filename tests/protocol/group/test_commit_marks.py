"""The meaning of a reply to a commit for a staged offset, and when an older request may have replaced it."""

import math

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.group.commit_marks import CommitReplies, OffsetMark
from protocol.group.committed_offsets import CommittedOffset
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import NO_TOPIC_ID

OLDER, NEWER = CommittedOffset(100, 3), CommittedOffset(200, 3)


def newer_than_an_unanswered_one(until_s: float = 10.0) -> OffsetMark:
    older = OffsetMark(OLDER)
    older.doubt(OLDER, until_s)
    return OffsetMark.after(older, NEWER, NO_TOPIC_ID)


@pytest.mark.parametrize(
    ("sent_at_s", "check_at_s"),
    [(1.0, 10.0), (9.0, 10.0), (10.0, math.inf)],
    ids=["answered before", "sent before", "sent after"],
)
def test_only_a_commit_sent_after_the_doubt_ends_it(sent_at_s: float, check_at_s: float) -> None:
    """The coordinator may receive the older request between a newer one and its reply."""
    mark = newer_than_an_unanswered_one()
    assert mark.check_at_s == math.inf  # not before it is committed itself
    mark.complete(None, sent_at_s + 2.0, sent_at_s)
    assert mark.check_at_s == check_at_s


def test_offset_replaced_by_the_older_one_is_due_again() -> None:
    mark = newer_than_an_unanswered_one()
    mark.complete(None, 2.0, 1.0)
    assert mark.due_at_s(NO_MEMBER, 600.0) == 602.0
    assert mark.was_set_back(OLDER)
    assert mark.due_at_s(NO_MEMBER, 600.0) == -math.inf


@pytest.mark.parametrize(
    "found",
    [NEWER, None, CommittedOffset(150), CommittedOffset(100), CommittedOffset(100, 3, "by another program")],
    ids=str,
)
def test_offset_of_another_program_is_kept(found: CommittedOffset | None) -> None:
    """Also the number of the older one: a program that resets the group sends another epoch, or other metadata."""
    mark = newer_than_an_unanswered_one()
    mark.complete(None, 2.0, 1.0)
    assert not mark.was_set_back(found)
    assert mark.check_at_s == mark.due_at_s(NO_MEMBER, math.inf) == math.inf


def test_check_is_postponed_while_the_groups_offset_is_unknown() -> None:
    mark = newer_than_an_unanswered_one()
    mark.complete(None, 2.0, 1.0)
    mark.check_later(10.0)
    assert mark.check_at_s == 15.0
    assert mark.was_set_back(OLDER)


def test_refused_offset_is_not_checked() -> None:
    mark = newer_than_an_unanswered_one()
    mark.complete(broker_error(ErrorCode.OFFSET_METADATA_TOO_LARGE, "t-0"), 2.0, 1.0)
    assert mark.check_at_s == mark.due_at_s(NO_MEMBER, 600.0) == math.inf


@pytest.mark.parametrize("too_large", [1, 2])
def test_only_a_request_of_several_partitions_is_split(too_large: int) -> None:
    member = GroupMember("m", 1)
    replies = CommitReplies(member, True, 0.0)
    error = broker_error(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "t")
    for partition in range(too_large):
        assert replies.add(("t", partition), error) is None
    replies.end()
    assert len(replies.to_split) == (too_large if too_large > 1 else 0)
    assert replies.final == ({} if too_large > 1 else {("t", 0): error})
