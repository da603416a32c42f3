"""A member of a group that calls a handler for each assigned partition: sarama's `ConsumerGroup`.

`consume` runs one session in the caller's thread: it handles rebalances, and commits marked offsets.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from protocol.base.calls import CallGate
from protocol.base.interrupts import interruptible
from protocol.cluster.client import Client, open_client
from protocol.consumer.assigned_partitions import AssignedPartitions
from protocol.consumer.commits import Commits
from protocol.consumer.group_consumer_config import GroupConsumerConfig, parse_group_consumer
from protocol.consumer.session import (
    CHECK_INTERVAL_S,
    INTERRUPTED,
    ConsumerGroupHandler,
    ConsumerGroupSession,
    OnError,
)
from protocol.errors import KafkaError, UsageError
from protocol.group.membership.assignment import EndReason, Revocation, TopicSubscription
from protocol.group.membership.membership import LEAVE_MS, Membership
from protocol.kafka_terms import TopicPartition
from protocol.metrics.client_sensors import Metric
from protocol.metrics.definitions import CLIENT_GROUPS, CONSUMER_GROUPS
from protocol.records.decode import ALL_COLUMNS
from protocol.settings.secret import hide_variables

log = logging.getLogger(__name__)

_CHECK_INTERVAL_MS = CHECK_INTERVAL_S * 1000

_CLOSED = EndReason("this ConsumerGroup was closed")
_STOPPED = EndReason("the stop event of consume was set")


class StopEvent(Protocol):
    """An event such as `threading.Event`."""

    def is_set(self) -> bool:
        """Return True if the event is set."""


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
        self._session: ConsumerGroupSession | None = None
        self._gate = CallGate("ConsumerGroup", "another call of consume is running")

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
            This object is closed, another call of `consume` is running, or `topics` is a single name.
        KafkaError
            The consumer cannot be a member of the group, or `group.join.retries` retries of a join have failed; the
            next call continues to join.
        Exception
            The first exception of the handler.

        Notes
        -----
        Ctrl-C is raised after the end of the session, whose last commit takes `request.timeout.ms` at most. Repeated,
        it ends the wait for the session's handlers; the next call of `consume` or `close` waits for them, and commits.
        """
        with self._gate.call():
            return self._consume(topics, handler, stop)

    def _consume(
        self, topics: Collection[str] | re.Pattern[str], handler: ConsumerGroupHandler, stop: StopEvent | None
    ) -> EndReason:
        try:
            self._complete_session()
            if stop is not None and stop.is_set():
                return _STOPPED
            membership = self._subscribe(topics)
            while (reason := self._check(membership, stop)) is None:
                # An interrupted session may have left some. The member keeps them: the next session adds all it owns.
                self._partitions.drop(self._partitions.assigned)
                assignment = membership.poll_rebalance(
                    self._client.deadline(_CHECK_INTERVAL_MS), self._on_revocation_between_sessions
                )
                if assignment.pending_reason is not None:
                    continue
                if not assignment.owned:
                    self._client.clock.sleep_s(CHECK_INTERVAL_S)
                    continue
                self._session = ConsumerGroupSession(
                    self._client,
                    self._config,
                    membership,
                    self._partitions,
                    self._commits,
                    handler,
                    self._on_error,
                    assignment,
                )
                return self._session.run(lambda: self._check(membership, stop))
            return reason
        finally:
            self._partitions.drop(self._partitions.assigned)

    def _check(self, membership: Membership, stop: StopEvent | None) -> EndReason | None:
        """Report errors of the membership; return the reason why the user has ended the session, or None."""
        if (authorization_error := membership.take_authorization_error()) is not None:
            interruptible(self._on_error, authorization_error)
        join_error = membership.take_join_error()
        if join_error is not None and self._on_error is not _log:  # the membership logs lasting failures itself
            interruptible(self._on_error, join_error)
        if self.closed:
            return _CLOSED
        return _STOPPED if stop is not None and stop.is_set() else None

    def _complete_session(self) -> None:
        """Complete the end of the last session, if Ctrl-C has interrupted it. No effect on one that has ended."""
        if (session := self._session) is not None:
            try:
                session.complete(INTERRUPTED)
                self._session = None
            finally:
                while session.raised:
                    error = session.raised.pop(0)
                    log.error("a handler of an interrupted session has failed: %r", error, exc_info=error)

    def _subscribe(self, topics: Collection[str] | re.Pattern[str]) -> Membership:
        subscription = TopicSubscription.of(topics)
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
        return self._gate.closes

    def close(self, *, leave_group: bool | None = None) -> None:
        """End the session, wait for its handlers, commit, and leave the group. Further calls have no effect.

        Parameters
        ----------
        leave_group : bool, optional
            See `KafkaConsumer.close`.

        Notes
        -----
        In a thread of a handler, or in a signal handler that interrupts `consume`, this call does not wait: `consume`
        completes the work before it returns. Ctrl-C in this call ends the wait for handlers and for the coordinator. A
        background thread then leaves the group; a further call waits for it.

        Raises
        ------
        UsageError
            `consume` was called before a fork of this process.
        """
        is_handler = (session := self._session) is not None and session.runs_handler_here
        self._gate.close_in_any_thread(partial(self._close, leave_group), waits=not is_handler)

    def _close(self, leave_group: bool | None) -> None:
        def release() -> None:
            try:
                if self._membership is not None:
                    self._membership.close(leave_group)
            finally:
                self._partitions.close(self._client.deadline(LEAVE_MS))
                self._commits.close()
                if self._owns_client:
                    self._client.close()

        try:
            self._complete_session()
        finally:
            self._gate.closed = True
            ending = self._gate.end_in_background(release, "end of a consumer group")
        ending.wait()
