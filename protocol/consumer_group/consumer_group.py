"""A member of a group that calls a handler for each partition it is given: sarama's `ConsumerGroup`.

`consume` runs one session in the caller's thread: it goes along with the group's rebalances and commits what handlers
have marked. Each claim has a thread of its own, in which the handler reads it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from protocol.clock import Deadline
from protocol.cluster.client import Client, open_client
from protocol.consumer_group.commits import Commits, Offsets
from protocol.consumer_group.group_consumer_config import GroupConsumerConfig, parse_group_consumer
from protocol.consumer_group.group_streams import GroupStreams
from protocol.consumer_group.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, DeadlineExceeded, KafkaError, UsageError
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason, Revocation, TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.group.offset_manager import DELETED_TOPIC_S
from protocol.kafka_terms import TopicPartition
from protocol.records.decode import ALL_COLUMNS

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.05
_CHECK_INTERVAL_MS = _CHECK_INTERVAL_S * 1000

Handles = Callable[[KafkaError], None]


class ConsumerGroupHandler(Protocol):
    """What the user gives. Whatever it raises ends the session, and is raised by `consume`."""

    def setup(self, session: ConsumerGroupSession) -> None:
        """Before any claim is read. `session.reset_offset` says where to begin instead."""

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        """Reads one claim until that ends, in a thread of its own. To return earlier ends the session."""

    def cleanup(self, session: ConsumerGroupSession) -> None:
        """After all claims have ended, and before what is marked is committed for the last time."""


def _log(error: KafkaError) -> None:
    log.warning("%s", error)


class ConsumerGroup:
    """One member of `config.consumer.group_id`.

    `columns`: as of `Consumer`. `on_error` hears what goes wrong and ends nothing, such as a commit that is refused, or
    topics that nobody can be assigned since this member leads and may not know of them (sarama's `Errors`), in any of
    the threads; by default it is logged. `close`, `pause` and `resume` may be called from any thread, `close`
    also in a signal handler.
    """

    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: GroupConsumerConfig | Mapping[str, object] | None = None,
        *,
        columns: Collection[str] = ALL_COLUMNS,
        on_error: Handles = _log,
        **properties: object,
    ) -> None:
        self._client, self._owns_client, settings = open_client(client, config, properties, parse_group_consumer)
        if settings.consumer.group_id is None:
            raise UsageError("a consumer group needs group.id", settings=("group.id",))
        self._config = settings
        self._on_error = on_error
        self._streams = GroupStreams(self._client, settings, columns)
        self._commits = Commits(self._client, settings)
        self._subscription: TopicSubscription | None = None
        self._membership: Membership | None = None
        self._closed = False
        # Reentrant, for a signal handler that calls `close` in the thread of `consume` or of another `close`.
        self._in_use = threading.RLock()
        self._acquired = self._releasing = False
        self._thread_local = threading.local()

    def __enter__(self) -> ConsumerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def consume(self, topics: Collection[str] | re.Pattern[str], handler: ConsumerGroupHandler) -> EndReason:
        """Joins, waits for claims, and runs one session; why that has ended. The caller calls it again until `closed`.

        A pattern is matched with whole names of topics. Raises what the handler raises, and `KafkaError` when this
        cannot be a member of the group for good.
        """
        if self.closed:
            raise UsageError("this ConsumerGroup is closed")
        with self._acquire(wait=False) as free:
            if not free:
                raise UsageError("this ConsumerGroup is consuming already")
            try:
                membership = self._subscribed(topics)
                while not self.closed:
                    self._streams.drop(self._streams.partitions)
                    assignment = membership.poll_rebalance(
                        self._client.deadline(_CHECK_INTERVAL_MS), self._on_revocation_between_sessions
                    )
                    self._report_authorization_error(membership)
                    if assignment.pending_reason is None:
                        return _SessionRun(self, membership, handler, assignment).run()
                return EndReason("this ConsumerGroup was closed")
            finally:
                self._streams.drop(self._streams.partitions)

    def _subscribed(self, topics: Collection[str] | re.Pattern[str]) -> Membership:
        if isinstance(topics, re.Pattern):
            subscription = TopicSubscription(pattern=topics)
        else:
            subscription = TopicSubscription(frozenset(topics))
        if self._membership is None:
            self._membership = Membership(self._client, self._config.consumer, subscription, self._commits.set_member)
        elif subscription != self._subscription:
            self._membership.subscribe(subscription)
        self._subscription = subscription
        return self._membership

    def _report_authorization_error(self, membership: Membership) -> None:
        if (authorization_error := membership.take_authorization_error()) is not None:
            self._on_error(authorization_error)

    def _on_revocation_between_sessions(self, revocation: Revocation) -> None:
        """Between two sessions nothing is read; what could not be committed by now is for others to read again."""
        assert self._membership is not None
        self._commits.retain(self._membership.owned - revocation.partitions)

    # -- steering -----------------------------------------------------------------------------

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing of these claims is read or fetched until `resume`, or until they are claimed anew."""
        self._streams.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._streams.resume(partitions)

    def pause_all(self) -> None:
        for key in self._streams.partitions:
            with suppress(UsageError):  # a rebalance may drop some meanwhile
                self._streams.pause([key])

    def resume_all(self) -> None:
        for key in self._streams.partitions:
            with suppress(UsageError):
                self._streams.resume([key])

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """End the session, wait for its handlers, commit, and leave the group. May be called again.

        Notes
        -----
        In a handler's thread, or in a signal handler that interrupts `consume`, this call cannot wait: `consume` does
        all of it before it returns.
        """
        self._closed = True
        if not getattr(self._thread_local, "is_handler", False):
            with self._acquire():
                pass

    @contextmanager
    def _acquire(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold this group for one call; whether it was free. The call that ends after `close` releases everything."""
        if not self._in_use.acquire(blocking=wait):
            yield False
            return
        try:
            if self._acquired:  # by this thread: a signal handler runs within another call
                yield False
                return
            self._acquired = True
            try:
                yield True
            finally:
                self._acquired = False  # before the look at `closed`: a later `close` does not rely on this call
                if self.closed and not self._releasing:
                    self._release()
        finally:
            self._in_use.release()

    def _release(self) -> None:
        self._releasing = True
        try:
            if self._membership is not None:
                self._membership.close()
            self._streams.close()
            self._commits.close()
            if self._owns_client:
                self._client.close()
        finally:
            self._releasing = False


class _SessionRun:
    """One session, from `setup` to `cleanup`, in the thread of `consume`; each claim has one of its own."""

    def __init__(
        self, owner: ConsumerGroup, membership: Membership, handler: ConsumerGroupHandler, assignment: Assignment
    ) -> None:
        self._owner = owner
        self._membership = membership
        self._handler = handler
        self._streams = owner._streams
        self._commits = owner._commits
        self._client = owner._client
        self._session = ConsumerGroupSession(owner._client, membership, owner._commits, assignment)
        self._assigned = assignment.owned
        self._threads: dict[TopicPartition, threading.Thread] = {}
        self._raised: list[BaseException] = []
        self._cleaned = False

    def run(self) -> EndReason:
        session = self._session
        try:
            self._handler.setup(session)
            self._add_assigned(self._assigned, self._session.member)
            while not session.ended.wait(_CHECK_INTERVAL_S):
                self._check()
        finally:
            self._end(EndReason("it was interrupted"))
        if self._raised:
            raise self._raised[0]
        assert session.end_reason is not None
        return session.end_reason

    def _check(self) -> None:
        """What there is to do from time to time."""
        self._commits.run_callbacks()
        self._owner._report_authorization_error(self._membership)
        if self._owner.closed:
            return self._session.end(EndReason("this ConsumerGroup was closed"))
        if not self._threads:
            self._membership.progress()  # there is nobody else to say so
        if self._membership.rebalance_pending is not None:
            assignment = self._membership.poll_rebalance(self._client.deadline(0), self._on_revocation)
            if not self._session.ended.is_set():
                self._add_assigned(assignment.owned - self._streams.partitions, assignment.member)
        elif self._commits.auto_commit_due:
            self._commit_in_background()
        if not self._session.ended.is_set():
            self._begin()

    def _add_assigned(self, partitions: Collection[TopicPartition], member: GroupMember) -> None:
        """Add claims. Each gets a thread when it begins."""
        if not partitions:
            return
        self._session.add_claims(partitions, member)
        self._streams.add(partitions)
        for key, to in self._session.marked.items():
            if key in partitions:
                self._streams.seek(key, to.offset)
        self._begin()

    def _begin(self) -> None:
        """Begin to read the claims that have a leader, each in a thread; the others do so later."""
        try:
            self._streams.start_added(self._client.deadline())
        except DeadlineExceeded as error:
            self._owner._on_error(error)
        finally:
            self._start_threads()

    def _start_threads(self) -> None:
        if len(self._threads) == len(self._streams.streams):
            return
        for key in sorted(self._streams.streams.keys() - self._threads.keys()):
            stream = self._streams[key]
            self._session.set_start_offset(key, stream.position)
            claim = ConsumerGroupClaim(self._session, stream, self._streams.recover, self._owner._on_error)
            thread = threading.Thread(target=self._consume, args=(claim,), name=f"claim {stream.name}", daemon=True)
            self._threads[key] = thread
            thread.start()

    def _consume(self, claim: ConsumerGroupClaim) -> None:
        name = f"{claim.topic}-{claim.partition}"
        self._owner._thread_local.is_handler = True
        try:
            self._handler.consume_claim(self._session, claim)
        except BaseException as error:  # raised by `consume`
            self._raised.append(error)
            self._session.end(EndReason(f"consume_claim of {name} has failed: {error!r}"))
        else:
            if not claim.revoked and self._session.keeps_claims():
                self._session.end(EndReason(f"consume_claim of {name} has returned"))

    # -- the end of claims --------------------------------------------------------------------

    def _on_revocation(self, revocation: Revocation) -> None:
        """Claims end, and what is marked of them is committed while they are this member's."""
        if revocation.lost or revocation.partitions >= self._streams.partitions:
            self._end(revocation.reason, lost=revocation.lost)
        else:
            self._stop(revocation.partitions, revocation.reason)
            self._commit_marked()
            self._session.remove_claims(revocation.partitions)
        self._commits.retain(self._membership.owned - revocation.partitions)

    def _end(self, reason: EndReason, *, lost: bool = False) -> None:
        """Of the whole session: handlers return, `cleanup`, the last commit."""
        if self._cleaned:
            return
        self._cleaned = True
        self._session.end(reason)
        self._stop(self._streams.partitions, reason)
        try:
            self._handler.cleanup(self._session)
        finally:
            if not lost:
                self._commit_marked()

    def _stop(self, partitions: Collection[TopicPartition], reason: EndReason) -> None:
        self._streams.drop(partitions)
        threads = [self._threads.pop(key) for key in partitions if key in self._threads]
        limit_ms = self._owner._config.consumer.max_poll_interval_ms
        deadline = Deadline.after_ms(limit_ms, self._client.clock)
        for thread in threads:
            thread.join(deadline.remaining_s())
            if thread.is_alive():
                log.warning(
                    "the handler of %s goes on %g s after its claim has ended (%s): the group goes on without this "
                    "member, and what is marked from now on is not committed; return sooner, or raise "
                    "max.poll.interval.ms",
                    thread.name,
                    limit_ms / 1000,
                    reason,
                )
                thread.join()

    def _commit_marked(self) -> None:
        """Unless that is for the handler to do."""
        if not self._commits.auto:
            return
        try:
            deadline = self._client.deadline(self._client.config.request_timeout_ms)
            self._session.commit_marked(deadline, partition_timeout_s=DELETED_TOPIC_S)
        except CommitFailed as error:
            self._owner._on_error(error)

    def _commit_in_background(self) -> None:
        try:
            marked = self._session.commit_async()
        except CommitFailed as error:
            return self._owner._on_error(error)
        if marked:
            self._commits.add_callback(marked, self._answered)

    def _answered(self, offsets: Offsets, error: CommitFailed | None) -> None:
        if error is not None:
            self._owner._on_error(error)
