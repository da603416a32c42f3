"""Commits of members: late replies change nothing, and refusals for a stale generation or epoch are retried."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from protocol import Client, OffsetManager
from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, DeadlineExceeded, UsageError
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.testing import FakeKafka
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from tests.contract.members import stable
from tests.protocol.group.commits.conftest import BOTH, GROUP, MARKS, committed, committed_partitions, flushed, stage_as
from tests.support.wait_until import wait_until


class DelayedCommit:
    """Holds the next OffsetCommit at the broker until `release`; `come` is set when the request arrives."""

    def __init__(self, fake: FakeKafka) -> None:
        self.come, self._released = threading.Event(), threading.Event()
        fake.before[OFFSET_COMMIT] = lambda body: fake.before.pop(OFFSET_COMMIT, None) and self._hold()

    def _hold(self) -> None:
        self.come.set()
        assert self._released.wait(20)

    def release(self) -> None:
        self._released.set()


def generations(client: Client, *, assigned_since: int | None = None) -> tuple[GroupMember, GroupMember]:
    """Return a member of the group, in the generation before and in the present one."""
    (joined,) = stable(client, GROUP)
    before, now = (
        GroupMember(joined.member_id, joined.generation - age, assigned_since=assigned_since) for age in (1, 0)
    )
    return before, now


@pytest.mark.parametrize("is_lost", [False, True])
def test_flush_returns_false_if_offsets_are_dropped_while_it_waits(
    fake: FakeKafka, manager: OffsetManager, is_lost: bool
) -> None:
    waits = threading.Event()

    class CheckedDeadline(Deadline):
        @property
        def passed(self) -> bool:
            waits.set()  # under the lock that the wait then releases
            return super().passed

    member, commit = GroupMember("m-1", 4), DelayedCommit(fake)
    stage_as(manager, member, BOTH)
    assert commit.come.wait(10)
    with ThreadPoolExecutor(1) as executor:
        flush = executor.submit(manager.flush, CheckedDeadline.after_ms(10_000))
        assert waits.wait(10)
        manager.set_member(NO_MEMBER) if is_lost else manager.retain([])
        assert not flush.result(10)
    commit.release()


@pytest.mark.parametrize(
    "answer", [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_late_reply_about_a_revoked_partition_changes_nothing(
    fake: FakeKafka, client: Client, manager: OffsetManager, answer: ErrorCode
) -> None:
    commit = DelayedCommit(fake)
    if answer != ErrorCode.NONE:
        fake.refuse(OFFSET_COMMIT, answer)
    manager.stage(MARKS)
    assert commit.come.wait(10)
    manager.retain([("orders", 1)])
    assert flushed(client, manager), "no offset is left to commit"
    # The partition is assigned again, and read to the same offset.
    manager.stage(BOTH)
    commit.release()
    assert flushed(client, manager)
    assert committed_partitions(fake) == [[0], [0, 1]]
    assert committed(client) == BOTH


def test_late_reply_to_an_older_generation_changes_nothing(
    fake: FakeKafka, client: Client, manager: OffsetManager
) -> None:
    """The commit is fenced after its partition is assigned again, in the next generation."""
    before, now = generations(client)
    commit = DelayedCommit(fake)
    stage_as(manager, before)
    assert commit.come.wait(10)
    stage_as(manager, now)
    commit.release()
    assert flushed(client, manager)
    assert [body["generation_id_or_member_epoch"] for body in fake.request_bodies(OFFSET_COMMIT)] == [0, 1]
    assert (manager.counts.succeeded, manager.counts.failed) == (1, 0)
    assert committed(client) == MARKS


@pytest.mark.parametrize("is_kept", [True, False], ids=["assignment kept", "assignment lost"])
def test_commit_refused_for_a_stale_generation_is_retried_in_the_next_if_the_assignment_is_kept(
    fake: FakeKafka, client: Client, manager: OffsetManager, is_kept: bool
) -> None:
    """Members of cooperative rebalances keep partitions in the next generation; until then the commit's result is
    open."""
    before, now = generations(client, assigned_since=0 if is_kept else None)
    stage_as(manager, before)
    assert not manager.flush(client.deadline(1_000))
    wait_until(lambda: manager.counts.failed)
    assert isinstance(manager.failure(MARKS), DeadlineExceeded)
    assert "ILLEGAL_GENERATION" in str(manager.failure(MARKS))
    assert committed_partitions(fake) == [[0]]
    manager.set_member(now)
    assert flushed(client, manager)
    if is_kept:
        assert (manager.failure(MARKS), committed(client)) == (None, MARKS)
    else:
        assert isinstance(manager.failure(MARKS), UsageError)
        assert committed(client) == {}


def test_commit_of_a_member_without_generation_is_refused_at_once(client: Client, manager: OffsetManager) -> None:
    """The member waits to join, perhaps for long, and owned no partitions before."""
    _, joined = generations(client)
    stage_as(manager, GroupMember(joined.member_id))
    assert not flushed(client, manager)
    assert isinstance(manager.failure(MARKS), BrokerError)
    assert "ILLEGAL_GENERATION" in str(manager.failure(MARKS))


class TestConsumerProtocol:
    """KIP-848: a member's epoch changes while it keeps its partitions."""

    OLD, NEW = (GroupMember("m-1", member_epoch=epoch) for epoch in (3, 4))

    def test_commit_with_a_stale_epoch_is_retried_with_the_newer_one(
        self, fake: FakeKafka, client: Client, manager: OffsetManager
    ) -> None:
        fake.handlers[OFFSET_COMMIT] = self.answer
        stage_as(manager, self.OLD)
        assert not manager.flush(client.deadline(300))
        wait_until(lambda: manager.counts.failed)
        assert "STALE_MEMBER_EPOCH" in str(manager.counts.last_failure)
        manager.set_member(self.NEW)
        assert flushed(client, manager)

    def test_offset_marked_in_the_old_epoch_is_committed(
        self, fake: FakeKafka, client: Client, manager: OffsetManager
    ) -> None:
        fake.handlers[OFFSET_COMMIT] = self.answer
        manager.set_member(self.OLD)
        manager.set_member(self.NEW)
        manager.stage(MARKS, self.OLD)
        assert flushed(client, manager)
        assert committed_partitions(fake) == [[0]]

    def test_fenced_epoch_drops_all_marks(self, fake: FakeKafka, client: Client, manager: OffsetManager) -> None:
        fake.refuse(OFFSET_COMMIT, ErrorCode.FENCED_MEMBER_EPOCH)
        for _ in range(2):
            stage_as(manager, self.OLD, BOTH)
            assert not flushed(client, manager)
        assert committed_partitions(fake) == [[0, 1]]

    def answer(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        assert (version, body["member_id"], body["group_instance_id"]) == (9, "m-1", None)
        stale = body["generation_id_or_member_epoch"] != self.NEW.member_epoch
        code = ErrorCode.STALE_MEMBER_EPOCH if stale else ErrorCode.NONE
        return {"topics": [{"name": "orders", "partitions": [{"partition_index": 0, "error_code": code}]}]}
