"""Commits of one consumer: synchronous, with a callback, or every `auto.commit.interval.ms`.

All commits use one `OffsetManager`, so an earlier commit never overwrites a later one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from protocol.base.clock import Deadline
from protocol.base.interrupts import interruptible
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.consumer.group_consumer_config import GroupConsumerConfig
from protocol.errors import BrokerError, CommitFailed, DeadlineExceeded, KafkaError, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.group.commits.offset_manager import DELETED_TOPIC_S, OffsetManager
from protocol.group.member import GroupMember
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, CommittedOffset]
OnCommit = Callable[[Offsets, "CommitFailed | None"], None]


@dataclass(frozen=True)
class _PendingCommit:
    offsets: Offsets
    on_commit: OnCommit
    deadline: Deadline
    failure: CommitFailed | None


class Commits:
    """Commits of one consumer. `set_member`, `commit_async` and `wait` are thread-safe, the other methods are not.

    `user_code` calls callbacks of the user, see `CallGate.user_code`.
    """

    def __init__(
        self, client: Client, config: GroupConsumerConfig, user_code: Callable[..., object] = interruptible
    ) -> None:
        self._client = client
        self._user_code = user_code
        self._group = config.consumer.group_id
        # Each offset is committed once, as in Java: a repeated commit could rewind one of another program.
        self.manager = (
            OffsetManager(client, self._group, refresh_ms=math.inf, retry_refused=False) if self._group else None
        )
        self._interval_s = config.auto_commit_interval_ms / 1000
        self.auto = config.enable_auto_commit and self.manager is not None
        self._auto_commit_due_s = client.clock.now_s() + self._interval_s
        self.pending: list[_PendingCommit] = []
        """Commits whose callbacks were not called yet, oldest first."""
        self.uncommitted_at_revocation: dict[TopicPartition, CommittedOffset] = {}
        """Offsets that were not committed when their partitions were revoked. Sessions read and remove them."""
        # `changes` of the manager at the last `run_callbacks`.
        self._changes_at_last_callbacks = -1

    def report_to(self, membership: Membership) -> None:
        """Report commits to the membership whose member the coordinator does not know any more."""
        if self.manager is not None:
            self.manager.on_member_refused = membership.on_member_refused

    def set_member(self, member: GroupMember) -> None:
        """Set the member of all later commits."""
        if self.manager is not None:
            self.manager.set_member(member)

    def retain(self, owned: Collection[TopicPartition]) -> None:
        """Drop uncommitted offsets of all partitions except `owned`, after the callbacks of completed commits."""
        try:
            self.run_callbacks()
        finally:
            if self.manager is not None:
                uncommitted = self.manager.uncommitted()
                self.uncommitted_at_revocation |= {
                    key: offset for key, offset in uncommitted.items() if key not in owned
                }
                self.manager.retain(owned)

    def commit_async(self, offsets: Offsets, member: GroupMember) -> None:
        """Commit in the background; raise `CommitFailed` if the assignment of `member` has ended."""
        manager = self._required_manager()
        if offsets and not manager.stage(offsets, member, again=True):
            raise self._commit_failed(UsageError("the assignment under which they were read has ended"))

    def refused_of(self, offsets: Offsets) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets to commit again: refused by the coordinator, except those of deleted topics."""
        manager = self._required_manager()
        failures = {key: manager.failure({key: offset}) for key, offset in offsets.items()}
        return {
            key: offsets[key]
            for key, failure in failures.items()
            if isinstance(failure, BrokerError) and failure.code != ErrorCode.UNKNOWN_TOPIC_ID
        }

    def uncommitted(self, at_s: float) -> Offsets:
        """Return the last offsets passed to `commit_async` that were not committed at this time."""
        return self._required_manager().uncommitted(at_s)

    def wait(self, offsets: Offsets, deadline: Deadline, *, partition_timeout_s: float = math.inf) -> None:
        """Wait until offsets that were passed to `commit_async` are committed.

        Raises `CommitFailed` if one was refused, or is not committed in time. `partition_timeout_s`: maximum wait for a
        partition that fails alone, see `OffsetManager.flush`.
        """
        if offsets:
            self._required_manager().flush(deadline, offsets, partition_timeout_s=partition_timeout_s)
            if (failure := self._required_manager().failure(offsets)) is not None:
                raise self._commit_failed(failure)

    def add_callback(self, offsets: Offsets, on_commit: OnCommit, failure: CommitFailed | None = None) -> None:
        """Register a callback, which `run_callbacks` calls after the commit or after `request.timeout.ms`.

        With `failure` the commit was refused already.
        """
        deadline = self._client.deadline(self._client.config.request_timeout_ms)
        self.pending.append(_PendingCommit(offsets, on_commit, deadline, failure))
        if failure is not None or not offsets:  # no response will come
            self._changes_at_last_callbacks = -1

    def await_pending(self, deadline: Deadline) -> None:
        """Wait for all commits in flight, only `DELETED_TOPIC_S` for those of deleted topics, and run the callbacks."""
        if self.manager is not None:
            self.manager.flush(deadline, partition_timeout_s=DELETED_TOPIC_S)
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """Call the callbacks of commits that are complete, or older than `request.timeout.ms`, in their order.

        Raises the first exception of a callback, after all others were called; further exceptions are logged.
        """
        if not self._oldest_may_be_complete():
            return
        waiting, self.pending = self.pending, []
        called, raised = 0, list[Exception]()

        def call(commit: _PendingCommit, failed: CommitFailed | None) -> None:
            nonlocal called
            called += 1
            commit.on_commit(commit.offsets, commit.failure or failed)

        try:
            while called < len(waiting):
                commit = waiting[called]
                failure = self._failure_of(commit)
                if isinstance(failure, DeadlineExceeded) and not commit.deadline.passed:
                    break
                try:
                    self._user_code(call, commit, None if failure is None else self._commit_failed(failure))
                except Exception as error:
                    raised.append(error)
        except BaseException:  # Ctrl-C in a callback: the next call continues
            self._changes_at_last_callbacks = -1
            raise
        finally:  # callbacks may have added commits
            self.pending = [*waiting[called:], *self.pending]
        for exception in raised[1:]:
            log.error("group %s: another callback of a commit raised: %r", self._group, exception, exc_info=exception)
        if raised:
            raise raised[0]

    def _failure_of(self, commit: _PendingCommit) -> KafkaError | None:
        """Return the reason why a commit is not complete, `DeadlineExceeded` if it is in flight."""
        return commit.failure or self._required_manager().failure(commit.offsets)

    def _oldest_may_be_complete(self) -> bool:
        """Return True if the oldest commit may be complete or is out of time."""
        if not self.pending:
            return False
        before, self._changes_at_last_callbacks = self._changes_at_last_callbacks, self._required_manager().changes
        return before != self._changes_at_last_callbacks or self.pending[0].deadline.passed

    def take_auto_commit_due(self) -> bool:
        """Return True if an automatic commit is due, and start the next interval."""
        now_s = self._client.clock.now_s()
        if not self.auto or now_s < self._auto_commit_due_s:
            return False
        self._auto_commit_due_s = now_s + self._interval_s
        return True

    def close(self) -> None:
        """End the thread without another commit."""
        if self.manager is not None:
            self.manager.close()

    def _required_manager(self) -> OffsetManager:
        if self.manager is None:
            raise UsageError("a commit needs a group: set group.id", settings=("group.id",))
        return self.manager

    def _commit_failed(self, why: KafkaError) -> CommitFailed:
        failed = CommitFailed(f"group {self._group}: offsets were not committed: {why}")
        failed.__cause__ = why
        return failed
