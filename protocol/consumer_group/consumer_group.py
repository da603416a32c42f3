"""A member of a group that calls a handler for each assigned partition: sarama's `ConsumerGroup`.

`consume` runs one session in the caller's thread: it handles rebalances, and commits marked offsets. Each claim has a
thread, in which the handler reads it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from protocol.clock import Deadline
from protocol.cluster.client import Client, open_client
from protocol.cluster.metadata import is_another_topic
from protocol.condition import locked
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.consumer_group.assigned_partitions import AssignedPartitions
from protocol.consumer_group.commits import Commits, Offsets
from protocol.consumer_group.group_consumer_config import GroupConsumerConfig, parse_group_consumer
from protocol.consumer_group.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, DeadlineExceeded, KafkaError, UsageError
from protocol.group.commit_marks import OffsetMark
from protocol.group.committed_offsets import CommittedOffset
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason, Revocation, TopicSubscription
from protocol.group.membership.membership import LEAVE_MS, Membership
from protocol.group.offset_manager import DELETED_TOPIC_S
from protocol.interrupts import DeferredInterrupts, join
from protocol.kafka_terms import TopicPartition
from protocol.metrics.client_sensors import Metric
from protocol.metrics.definitions import CLIENT_GROUPS, CONSUMER_GROUPS
from protocol.records.decode import ALL_COLUMNS
from protocol.secret import hide_variables

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.05
_CHECK_INTERVAL_MS = _CHECK_INTERVAL_S * 1000

_CLOSED = EndReason("this ConsumerGroup was closed")
_STOPPED = EndReason("the stop event of consume was set")
_INTERRUPTED = EndReason("the session was interrupted")

OnError = Callable[[KafkaError], None]

T = TypeVar("T")


class StopEvent(Protocol):
    """An event such as `threading.Event`."""

    def is_set(self) -> bool:
        """Return True if the event is set."""


class ConsumerGroupHandler(Protocol):
    """The user's part of a session. An exception of any method ends the session, and is raised by `consume`."""

    def setup(self, session: ConsumerGroupSession) -> None:
        """Prepare a session, before any claim is read, in the thread of `consume`.

        `session.reset_offset` sets start offsets of the claims that the session begins with. Claims may be added later
        (cooperative assignors, `group.protocol=consumer`): `claim.seek` in `consume_claim` sets those of all claims.
        """

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        """Read one claim until it ends, in the thread of this claim. An earlier return ends the session."""

    def cleanup(self, session: ConsumerGroupSession) -> None:
        """Finish a session in the thread of `consume`, after the end of all claims and before the last commit."""


def _log(error: KafkaError) -> None:
    log.warning("%s", error)


class ConsumerGroup:
    """A member of the group `group.id` that reads partitions in threads.

    Also a context manager that calls `close`. `close`, `pause` and `resume` are thread-safe, and `close` may be called
    in a signal handler; the other methods are for one thread.

    Parameters
    ----------
    client : Client or mapping, optional
        A `Client`, which stays open after `close`; or its properties in Kafka's names, such as `bootstrap.servers`.
    config : GroupConsumerConfig or mapping, optional
        A `GroupConsumerConfig`, or consumer properties such as `group.id`.
    columns : collection of str
        Names of the columns to decode, see `KafkaConsumer`.
    on_error : callable
        Called with errors that do not end the session (sarama's `Errors`), in the thread in which they occur: refused
        commits, lasting failures of brokers, joins that are retried, and subscribed topics without a Describe ACL if
        this member leads the group. By default they are logged.
    **properties
        More properties, with `_` for `.`; see `open_client`.

    Raises
    ------
    UsageError
        `group.id` is not set.
    ConfigurationError
        A property is unknown or invalid.
    """

    @hide_variables
    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: GroupConsumerConfig | Mapping[str, object] | None = None,
        *,
        columns: Collection[str] = ALL_COLUMNS,
        on_error: OnError = _log,
        **properties: object,
    ) -> None:
        self._client, self._owns_client, settings = open_client(client, config, properties, parse_group_consumer)
        if settings.consumer.group_id is None:
            raise UsageError("a consumer group needs group.id", settings=("group.id",))
        self._config = settings
        self._on_error = on_error
        self._partitions = AssignedPartitions(self._client, settings, columns)
        self._commits = Commits(self._client, settings)
        self._subscription: TopicSubscription | None = None
        self._membership: Membership | None = None
        # The last session. If Ctrl-C has interrupted its end, the next call completes it.
        self._session_run: _SessionRun | None = None
        self._closed = False
        self._leave_group: bool | None = None
        # Reentrant, since a signal handler may call `close` in the thread of `consume` or of another `close`.
        self._lock = threading.RLock()
        self._releasing = False
        self._process_id: int | None = None
        self._thread_local = threading.local()

    def __enter__(self) -> ConsumerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def consume(
        self,
        topics: Collection[str] | re.Pattern[str],
        handler: ConsumerGroupHandler,
        stop: StopEvent | None = None,
    ) -> EndReason:
        """Join the group, wait for claims, and run one session. Call it repeatedly until `closed`.

        Parameters
        ----------
        topics : collection of str or re.Pattern
            Names of topics, or a pattern that matches whole names.
        handler : ConsumerGroupHandler
            Called for the session and its claims.
        stop : StopEvent, optional
            Ends the session, or the wait for claims, when it is set by any thread or a signal handler (the context of
            sarama's `Consume`). This object stays open, and the member keeps its partitions for the next call, at most
            for `max.poll.interval.ms`; `close` leaves the group.

        Returns
        -------
        EndReason
            The reason why the session has ended.

        Raises
        ------
        UsageError
            This object is closed, or another call of `consume` is running.
        KafkaError
            The consumer cannot be a member of the group, or `group.join.retries` retries of a join have failed; the
            next call continues to join.
        Exception
            The first exception of the handler.

        Notes
        -----
        Ctrl-C is raised after the end of the session. Repeated, it ends the wait for the session's handlers; the next
        call of `consume` or `close` waits for them, and commits.
        """
        if self.closed:
            raise UsageError("this ConsumerGroup is closed")

        def run(free: bool) -> EndReason:
            if not free:
                raise UsageError("another call of consume is running")
            self._process_id = os.getpid()
            return self._consume(topics, handler, stop)

        return self._exclusively(run, wait=False)

    def _consume(
        self, topics: Collection[str] | re.Pattern[str], handler: ConsumerGroupHandler, stop: StopEvent | None
    ) -> EndReason:
        try:
            self._complete_session()
            if stop is not None and stop.is_set():
                return _STOPPED
            membership = self._subscribe(topics)
            while not (self.closed or (stop is not None and stop.is_set())):
                self._partitions.drop(self._partitions.assigned)
                assignment = membership.poll_rebalance(
                    self._client.deadline(_CHECK_INTERVAL_MS), self._on_revocation_between_sessions
                )
                _report_errors(membership, self._on_error)
                if assignment.pending_reason is None and not assignment.owned:
                    self._client.clock.sleep_s(_CHECK_INTERVAL_S)
                elif assignment.pending_reason is None:
                    shared = _Shared(
                        self._client,
                        self._config.consumer.max_poll_interval_ms,
                        self._config.max_poll_records,
                        self._partitions,
                        self._commits,
                        membership,
                        self._on_error,
                        self._end_reason_of(stop),
                        self._thread_local,
                    )
                    self._session_run = _SessionRun(shared, handler, assignment)
                    return self._session_run.run()
            return _CLOSED if self.closed else _STOPPED
        finally:
            self._partitions.drop(self._partitions.assigned)

    def _complete_session(self) -> None:
        """Complete the end of the last session, if Ctrl-C has interrupted it."""
        if (run := self._session_run) is not None:
            try:
                run.end(_INTERRUPTED)
                self._session_run = None
            finally:
                while run.raised:
                    error = run.raised.pop(0)
                    log.error("a handler of an interrupted session has failed: %r", error, exc_info=error)

    def _end_reason_of(self, stop: StopEvent | None) -> Callable[[], EndReason | None]:
        """Return a function that returns the reason why the user has ended the session, or None."""

        def reason() -> EndReason | None:
            if self._closed:
                return _CLOSED
            return _STOPPED if stop is not None and stop.is_set() else None

        return reason

    def _subscribe(self, topics: Collection[str] | re.Pattern[str]) -> Membership:
        if isinstance(topics, re.Pattern):
            subscription = TopicSubscription(pattern=topics)
        else:
            subscription = TopicSubscription(frozenset(topics))
        if self._membership is None:
            self._membership = Membership(
                self._client,
                self._config.consumer,
                subscription,
                self._commits.set_member,
                self._config.group_join_retries,
            )
            self._commits.report_to(self._membership)
        elif subscription != self._subscription:
            self._membership.subscribe(subscription)
        self._subscription = subscription
        return self._membership

    def _on_revocation_between_sessions(self, revocation: Revocation) -> None:
        """Drop uncommitted offsets: the next owner reads these records again."""
        assert self._membership is not None
        self._commits.retain(self._membership.owned - revocation.partitions)

    # -- pause and resume ---------------------------------------------------------------------

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions until `resume` or the next assignment. Thread-safe."""
        self._partitions.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch paused partitions again. Thread-safe."""
        self._partitions.resume(partitions)

    def pause_all(self) -> None:
        """Pause all claims. Thread-safe."""
        for key in self._partitions.assigned:
            with suppress(UsageError):  # a rebalance may have dropped it
                self._partitions.pause([key])

    def resume_all(self) -> None:
        """Resume all claims. Thread-safe."""
        for key in self._partitions.assigned:
            with suppress(UsageError):
                self._partitions.resume([key])

    def metrics(self) -> list[Metric]:
        """Return the metrics of consumers and connections of this consumer's client. Thread-safe; sends no request."""
        return self._client.metrics((*CONSUMER_GROUPS, *CLIENT_GROUPS))

    @property
    def closed(self) -> bool:
        """Return True if `close` was called."""
        return self._closed

    def close(self, *, leave_group: bool | None = None) -> None:
        """End the session, wait for its handlers, commit, and leave the group. Further calls have no effect.

        Parameters
        ----------
        leave_group : bool, optional
            See `KafkaConsumer.close`.

        Notes
        -----
        In a thread of a handler, or in a signal handler that interrupts `consume`, this call does not wait: `consume`
        completes the work before it returns. Ctrl-C in this call ends the wait for handlers.

        Raises
        ------
        UsageError
            `consume` was called before a fork of this process.
        """
        if not self._closed:
            self._closed, self._leave_group = True, leave_group
        if not getattr(self._thread_local, "is_handler", False):
            self._exclusively(lambda free: None, wait=True)

    def _exclusively(self, call: Callable[[bool], T], *, wait: bool) -> T:
        """Return `call(free)`, `free` if no other call holds this object.

        The call that ends after `close` releases all resources.
        """
        if self._process_id not in (None, os.getpid()):  # its threads do not exist here, and one may hold the lock
            raise UsageError("this ConsumerGroup was used before a fork: make one in this process")
        wait_s = -1 if wait else 0
        try:
            return locked(self._lock, wait_s, call)
        except BaseException:
            wait_s = 0  # Ctrl-C has ended the wait; the call that holds this object releases the resources
            raise
        finally:
            # After releasing the lock: a signal handler may have called `close` while it was held.
            # `close` waits for another thread that releases them.
            if self._closed and (wait or not self._releasing):
                locked(self._lock, wait_s, self._release)

    def _release(self, free: bool) -> None:
        if not free or self._releasing:
            return
        with DeferredInterrupts() as interrupts:
            self._releasing = True
            try:
                with interrupts.allowed():
                    self._complete_session()
            finally:
                self._close_resources()

    def _close_resources(self) -> None:
        try:
            if self._membership is not None:
                self._membership.close(self._leave_group)
            self._partitions.close(self._client.deadline(LEAVE_MS))
            self._commits.close()
            if self._owns_client:
                self._client.close()
        finally:
            self._releasing = False


def _report_errors(membership: Membership, on_error: OnError) -> None:
    if (authorization_error := membership.take_authorization_error()) is not None:
        on_error(authorization_error)
    join_error = membership.take_join_error()
    if join_error is not None and on_error is not _log:  # the membership logs lasting failures itself
        on_error(join_error)


@dataclass(frozen=True)
class _Shared:
    """The parts of a `ConsumerGroup` that its sessions use. `thread_local` marks the threads of handlers."""

    client: Client
    max_poll_interval_ms: int
    max_poll_records: int | None
    partitions: AssignedPartitions
    commits: Commits
    membership: Membership
    on_error: OnError
    end_reason: Callable[[], EndReason | None]
    thread_local: threading.local


class _SessionRun:
    """One session from `setup` to `cleanup`, in the thread of `consume`; each claim has its own thread."""

    def __init__(self, shared: _Shared, handler: ConsumerGroupHandler, assignment: Assignment) -> None:
        self._shared = shared
        self._handler = handler
        self._client, self._membership = shared.client, shared.membership
        self._partitions, self._commits, self._on_error = shared.partitions, shared.commits, shared.on_error
        self._session = ConsumerGroupSession(
            self._client, self._membership, self._commits, assignment, self._partitions
        )
        self._assigned = assignment.owned
        self._threads: dict[TopicPartition, threading.Thread] = {}
        self._began_s = self._client.clock.now_s()
        self.raised: list[BaseException] = []
        """Exceptions of handlers that `run` has not raised."""
        self._lost = self._cleaned = False
        self._ended = True  # until `run`

    def run(self) -> EndReason:
        session, self._ended = self._session, False
        try:
            try:
                self._handler.setup(session)
                self._add_assigned(self._assigned, self._session.member)
                while not session.ended.wait(_CHECK_INTERVAL_S):
                    self._run_once()
            finally:
                self.end(_INTERRUPTED)
        finally:
            self.end(_INTERRUPTED)  # if Ctrl-C has interrupted the end: handlers still run
        if self.raised:
            raise self.raised.pop(0)
        assert session.end_reason is not None
        return session.end_reason

    def _run_once(self) -> None:
        """Run the periodic work: callbacks, rebalances, automatic commits, starts of partitions."""
        self._commits.run_callbacks()
        _report_errors(self._membership, self._on_error)
        if (reason := self._shared.end_reason()) is not None:
            return self._session.end(reason)
        if not self._threads:
            self._membership.progress()  # no handler does it
        if self._membership.rebalance_pending is not None:
            assignment = self._membership.poll_rebalance(self._client.deadline(0), self._on_revocation)
            if not self._session.ended.is_set():
                self._add_assigned(assignment.owned - self._partitions.assigned, assignment.member)
        elif self._commits.take_auto_commit_due():
            self._commit_in_background()
        if not self._session.ended.is_set():
            self._start_claims()

    def _add_assigned(self, partitions: Collection[TopicPartition], member: GroupMember) -> None:
        """Add claims. Each gets a thread when it starts."""
        if not partitions:
            return
        self._session.add_claims(partitions, member)
        self._partitions.add(partitions)
        for key in partitions:
            if (to := self._session.marked(key)) is not None:
                self._partitions.seek(key, to.offset, to.leader_epoch)
        self._start_claims()

    def _start_claims(self) -> None:
        """Start claims whose start offsets are known, each in a thread; others start later."""
        try:
            self._partitions.start_added(_CHECK_INTERVAL_MS)
        except DeadlineExceeded as error:
            self._on_error(error)
        finally:
            self._start_claim_threads()

    def _start_claim_threads(self) -> None:
        if len(self._threads) == len(self._partitions.consumers):
            return
        moved = self._partitions.positions(moved=True)
        left = self._commits.uncommitted(self._began_s)
        for key in sorted(self._partitions.consumers.keys() - self._threads.keys()):
            consumer = self._partitions[key]
            # If the group has no offset, `auto.offset.reset` could skip records also after a revocation.
            dropped = self._commits.dropped.pop(key, None)
            mark = left.get(key) or (dropped if key in moved else None)
            goes_back = mark is not None and self._session.marked(key) is None and self._go_back(consumer, mark)
            # A start by `auto.offset.reset` is committed: `latest` would be another offset in the next session.
            start = CommittedOffset(consumer.position, consumer.last_epoch)
            self._session.set_start_offset(key, start, commit=key in moved or goes_back)
            recover, most = self._partitions.recover, self._shared.max_poll_records
            claim = ConsumerGroupClaim(self._session, consumer, recover, self._on_error, most)
            thread = threading.Thread(target=self._consume, args=(claim,), name=f"claim {consumer.name}", daemon=True)
            with DeferredInterrupts():
                thread.start()
                self._threads[key] = thread

    def _go_back(self, consumer: PartitionConsumer, left: OffsetMark) -> bool:
        """Go back to the offset that the last session has left, whose commit may have failed; True if it is lower."""
        if left.offset.offset >= consumer.position or is_another_topic(consumer.topic_id, left.topic_id):
            return False
        self._partitions.seek((consumer.topic, consumer.partition), left.offset.offset, left.offset.leader_epoch)
        return True

    def _consume(self, claim: ConsumerGroupClaim) -> None:
        name = f"{claim.topic}-{claim.partition}"
        self._shared.thread_local.is_handler = True
        try:
            self._handler.consume_claim(self._session, claim)
        except BaseException as error:  # raised by `consume`
            self.raised.append(error)
            self._session.end(EndReason(f"consume_claim of {name} has failed: {error!r}"))
        else:
            if not claim.revoked and self._session.keeps_claims():
                self._session.end(EndReason(f"consume_claim of {name} has returned"))

    # -- the end of claims --------------------------------------------------------------------

    def _on_revocation(self, revocation: Revocation) -> None:
        """End claims, and commit their marked offsets before the partitions are released."""
        if revocation.lost or revocation.partitions >= self._partitions.assigned:
            self.end(revocation.reason, lost=revocation.lost)
        else:
            self._stop_claims(revocation.partitions, revocation.reason)
            refused = self._commit_marked()
            self._session.remove_claims(revocation.partitions)
            if refused is not None:
                self._on_error(refused)
        self._commits.retain(self._membership.owned - revocation.partitions)

    def end(self, reason: EndReason, *, lost: bool = False) -> None:
        """End the session: handlers return, `cleanup` is called, and marked offsets are committed.

        A call that Ctrl-C ends may be repeated, and completes the work; otherwise further calls have no effect.
        """
        if self._ended:
            return
        self._lost = self._lost or lost
        self._session.end(reason)
        self._stop_claims(self._partitions.assigned | self._threads.keys(), reason)
        try:
            if not self._cleaned:
                self._cleaned = True
                self._handler.cleanup(self._session)
        finally:
            refused = None if self._lost else self._commit_marked()
            self._ended = True
            if refused is not None:
                self._on_error(refused)

    def _stop_claims(self, partitions: Collection[TopicPartition], reason: EndReason) -> None:
        self._session.ignore_marks_in_recreated_topics()
        self._partitions.drop(partitions)
        threads = [self._threads[key] for key in partitions if key in self._threads]
        deadline = Deadline.after_ms(self._shared.max_poll_interval_ms, self._client.clock)
        with self._session.awaiting_handlers():
            self._join(threads, deadline, reason)
        for key in partitions:
            self._threads.pop(key, None)

    def _join(self, threads: Sequence[threading.Thread], deadline: Deadline, reason: EndReason) -> None:
        for thread in threads:
            while not (ended := join(thread, min(deadline.remaining_s(), _CHECK_INTERVAL_S))) and not deadline.passed:
                # Other claims may go on; all leave with the member if this handler does not return.
                if not self._lost and self._commits.take_auto_commit_due():
                    self._commit_in_background()
            if not ended:
                log.warning(
                    "the handler of %s has not returned %g s after the end of its claim (%s): the group continues "
                    "without this member, and offsets marked from now on are not committed; return sooner, or raise "
                    "max.poll.interval.ms",
                    thread.name,
                    self._shared.max_poll_interval_ms / 1000,
                    reason,
                )
                join(thread)

    def _commit_marked(self) -> CommitFailed | None:
        """Commit marked offsets if commits are automatic; return the failure."""
        if not self._commits.auto:
            return None
        try:
            deadline = self._client.deadline(self._client.config.request_timeout_ms)
            self._session.commit_marked(deadline, partition_timeout_s=DELETED_TOPIC_S)
        except CommitFailed as error:
            return error
        return None

    def _commit_in_background(self) -> None:
        try:
            marked = self._session.commit_async()
        except CommitFailed as error:
            return self._on_error(error)
        if marked:
            self._commits.add_callback(marked, self._on_auto_commit)

    def _on_auto_commit(self, offsets: Offsets, error: CommitFailed | None) -> None:
        if error is not None:
            self._on_error(error)
