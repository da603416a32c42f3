"""A member of a group, as used by its owner: a `ConsumerGroup`, a `KafkaConsumer`, or the driver of a Spark query.

Owns the state machine of the protocol (`classic_member`, `consumer_member`) and one thread, which executes the steps of
the state machine. The thread has a separate connection, so fetches, commits and other members' requests do not delay
heartbeats. The owner calls the methods from one other thread, between batches or polls.

The lock `Membership.changed` guards the state machine. A step waits for brokers and calls code of the user without it;
then the state machine gets the result, and drops it if the session has ended meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from protocol.base.clock import Deadline
from protocol.base.condition import Condition
from protocol.base.interrupts import join, start
from protocol.base.listing import listed
from protocol.base.once import log_once
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import COORDINATOR, Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Broker, Metadata
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason, Revocation, TopicSubscription
from protocol.group.membership.classic_member import ClassicMember
from protocol.group.membership.consumer_member import ConsumerMember
from protocol.group.membership.machine import NO_PARTITIONS, MemberMachine
from protocol.group.membership.member_state import (
    AWAITING_ASSIGNMENT,
    CLOSED,
    RECONCILED,
    CallAssignor,
    MemberState,
    RefreshMetadata,
    SendRequest,
    Wait,
)
from protocol.kafka_terms import TopicIds
from protocol.metrics import definitions
from protocol.net.connection import Reply
from protocol.net.readiness import ready

T = TypeVar("T")

log = logging.getLogger(__name__)

# Interval of timeouts, and of checks for a delayed response.
TICK_S = 1.0
_HANG_UP_AGAIN_S = 0.1
# A longer time without a check of the clock means that this process was suspended: the member's thread never blocks.
_PAUSE_DETECTED_S = 3.0
# Log a warning if requests fail for this time.
WARN_AFTER_S = 10.0
LEAVE_MS = 5_000

_MACHINES: dict[str, type[MemberMachine]] = {"classic": ClassicMember, "consumer": ConsumerMember}
_numbers = itertools.count(1)


class Membership:
    """A member of the group `config.group_id`, in the protocol `config.group_protocol`.

    It joins with the first `poll_rebalance`. All methods are thread-safe; `poll_rebalance` and `close` are for one
    owner. Raises `UsageError` if `group.id` or `group.protocol` is missing, and `ConfigurationError` for an invalid
    assignment strategy.

    `on_member`: called with each new generation or epoch, and when the member has none any more, in the thread that
    detects it; `OffsetManager.set_member`. It must not call this object.
    `join_retries`: maximum number of retries of a join before `poll_rebalance` raises its error; None: no limit.
    """

    def __init__(
        self,
        client: Client,
        config: ConsumerConfig,
        subscription: TopicSubscription,
        on_member: Callable[[GroupMember], None] = lambda member: None,
        join_retries: int | None = None,
    ) -> None:
        if config.group_protocol not in _MACHINES or config.group_id is None:
            needed = ("group.id", "group.protocol")
            raise UsageError(f"a member needs {needed[0]}, and {needed[1]}=classic or consumer", settings=needed)
        self._client = client
        self._clock = client.clock
        self._coordinator = group_coordinator(config.group_id)
        self.machine = _MACHINES[config.group_protocol](client.config, config, subscription, self._clock.now_s())
        """The state machine. Guarded by `changed`."""
        self._name = f"member {next(_numbers)}"
        self._purpose = f"{COORDINATOR}, {self._name}"
        self._on_member = on_member
        self._notified = self.machine.state, self.machine.member
        client.sensors.use([definitions.COORDINATOR])
        self._rebalancing_since_s: float | None = None
        self.changed = Condition()
        # None also while the coordinator of a request is being looked up.
        self._in_flight: SendRequest | None = None
        self._checked_s = self._clock.now_s()
        self._failing_since_s: float | None = None
        self._has_warned = False
        # Topics that the user may not describe, and the error until the owner has taken it.
        self._unauthorized_topics: frozenset[str] = frozenset()
        self._authorization_error: BrokerError | None = None
        self._join_retries = join_retries
        # Failures since the last complete join; the last one, and if the owner has taken it.
        self._failed_joins = 0
        self._join_error: KafkaError | None = None
        self._join_error_taken = True
        self._thread: threading.Thread | None = None

    # -- for the owner ------------------------------------------------------------------------

    @property
    def rebalance_pending(self) -> EndReason | None:
        """Return the reason to call `poll_rebalance`; None if there is no change. Sends no request.

        Check it before records are committed or returned, also after a long pause: after its session timeout a member
        owns nothing.
        """
        with self.changed:
            try:
                pending = self.machine.pending(self._now_s())
                return self.machine.reason if pending is None and self._join_has_failed else pending
            finally:
                self._notify()

    @property
    def assignment_lost(self) -> EndReason | None:
        """Return the reason to return no records now: the assignment is lost, or suspected to be. Sends no request.

        None if the assignment is valid. A member keeps its partitions while others join: then only `rebalance_pending`
        has a reason.
        """
        with self.changed:
            try:
                return self.machine.assignment_lost(self._now_s())
            finally:
                self._notify()

    @property
    def member(self) -> GroupMember:
        """Return the member that commits, as the coordinator knows it."""
        with self.changed:
            return self.machine.member

    @property
    def owned(self) -> frozenset[tuple[str, int]]:
        """Return the owned partitions."""
        with self.changed:
            return self.machine.owned

    @property
    def topic_ids(self) -> TopicIds:
        """Return the ids with which the coordinator has assigned the owned partitions; empty if it assigns by name.

        A recreated topic has another id until the group assigns it; until then another member may read and commit it
        (KIP-848).
        """
        with self.changed:
            return self.machine.owned_topic_ids

    def take_authorization_error(self) -> BrokerError | None:
        """Return, once, an error that names subscribed topics without a Describe ACL.

        The leader cannot assign their partitions.
        """
        with self.changed:
            refusal, self._authorization_error = self._authorization_error, None
            return refusal

    def take_join_error(self) -> KafkaError | None:
        """Return, once, the last error of a join that is being retried."""
        with self.changed:
            was_taken, self._join_error_taken = self._join_error_taken, True
            return None if was_taken else self._join_error

    def await_change(self, timeout_ms: float) -> None:
        """Wait until the state of the member changes. Thread-safe."""
        with self.changed:
            self.changed.wait(timeout_ms / 1000)

    def progress(self) -> None:
        """Restart `max.poll.interval.ms`, as `poll_rebalance` does."""
        with self.changed:
            self.machine.progress(self._now_s())
            self._notify()

    def on_member_refused(self, member: GroupMember, error: BrokerError) -> None:
        """Process a commit of `member` that was refused, see `OffsetManager.on_member_refused`. Thread-safe."""
        with self.changed:
            self.machine.on_member_refused(member, error, self._now_s())
            self._notify()

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Change the subscription; the result is a rebalance."""
        with self.changed:
            self.machine.subscribe(subscription, self._clock.now_s())
            self.changed.notify_all()

    def poll_rebalance(
        self, deadline: Deadline, before_revoke: Callable[[Revocation], None] = lambda revocation: None
    ) -> Assignment:
        """Join, revoke and accept partitions until nothing is pending, or until `deadline`.

        `deadline` limits the wait for other members. The member's thread continues after it, and `rebalance_pending`
        reports the result. `pending_reason` of the returned assignment is set if the rebalance is not complete.

        `before_revoke` is called in this thread with the partitions to release. If it raises an exception, that is
        raised here, and the partitions are not released. It may close this object, as a signal handler may; then no
        partitions are returned.

        Raises `KafkaError` if the coordinator has refused the member: missing ACLs, no common strategy, or brokers
        without support of the protocol. Or this member leads, and another member's subscription is invalid; or the
        user's assignor has failed; or `join_retries` retries have. The next call joins again, except if another member
        has taken over the instance id, which is raised by each call.
        """
        with self.changed:
            self._raise_if_ended()
        self._start()
        added = NO_PARTITIONS
        while True:
            with self.changed:
                if self._is_closed and self.machine.error is None:  # closed by `before_revoke` or a signal handler
                    return Assignment(self.machine.member, NO_PARTITIONS, NO_PARTITIONS)
                now_s = self._now_s()
                self.machine.progress(now_s)
                self._raise_if_ended()
                self._raise_failed_join()
                revocation = self.machine.revocation(now_s)
                if revocation is None:
                    added |= self.machine.accept_assignment(now_s)
                    self._notify()
                    if self.machine.is_reconciled or deadline.passed:
                        pending_reason = None if self.machine.is_reconciled else self.machine.reason
                        return Assignment(self.machine.member, self.machine.owned, added, pending_reason)
                    self.changed.wait(min(deadline.remaining_s(), TICK_S))
                    continue
            if revocation.lost and revocation.partitions:
                text = self._client.format_error(revocation.reason.error)
                log.warning("group %s: all partitions are lost: %s", self.machine.group, text)
            before_revoke(revocation)
            added -= revocation.partitions
            with self.changed:
                self.machine.complete_revocation(revocation, self._clock.now_s())
                self._notify()

    def detach(self) -> None:
        """Report no further changes to `on_member`: its owner has another member."""
        with self.changed:
            self._on_member = lambda member: None

    def close(self, leave: bool | None = None, timeout_ms: float = LEAVE_MS) -> None:
        """Leave the group, waiting at most `timeout_ms` for the coordinator, and end the thread. Commit before.

        `leave`: True leaves. False stays until the session timeout (KIP-1092). None leaves, but a static member may
        return to its partitions (KIP-345), unless it is giving some up (KIP-429).
        """
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        with self.changed:
            while self._in_flight is not None and self.machine.is_becoming_known and not deadline.passed:
                self.changed.wait(min(deadline.remaining_s(), TICK_S))
            self.machine.leave(for_good=leave)
            self._notify()
            request = self._in_flight
            while request is not None and self._in_flight is request and not deadline.passed:
                self._client.hang_up(self._purpose)  # repeated, since a request may be sent after it
                self.changed.wait(min(deadline.remaining_s(), _HANG_UP_AGAIN_S))
        if self._thread is not None and self._thread.ident is not None:
            join(self._thread, deadline.remaining_s())
        with self.changed:
            self.machine.leave(for_good=False)  # without waiting for a response
            self._notify()
        self._client.hang_up(self._purpose)

    def __enter__(self) -> Membership:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _raise_if_ended(self) -> None:
        if (error := self.machine.take_error()) is not None:
            raise error
        if self._is_closed:
            raise UsageError(f"this member of group {self.machine.group} was closed")

    @property
    def _is_closed(self) -> bool:
        return self.machine.state in CLOSED

    @property
    def _join_has_failed(self) -> bool:
        """Return True if all retries of the join have failed, and the owner does not know yet."""
        return self._join_retries is not None and self._failed_joins > self._join_retries

    def _raise_failed_join(self) -> None:
        error, attempts = self._join_error, self._failed_joins
        if error is None or not self._join_has_failed:
            return
        self._failed_joins, self._join_error_taken = 0, True
        name = "group.join.retries"
        raised = type(error)(
            f"group {self.machine.group}: {attempts} attempts to join have failed ({name}={self._join_retries}); "
            f"the last one: {error}",
            **{**error.context, "settings": (name,)},
        )
        raise raised from error

    def _notify(self) -> None:
        """Report changes of the member. Called under the lock after each change."""
        before, self._notified = self._notified, (self.machine.state, self.machine.member)
        if self._notified != before:
            self._note_rebalance(before[0], self._notified[0])
            self.changed.notify_all()
        if self._notified[1] != before[1]:
            self._on_member(self._notified[1])

    def _note_rebalance(self, before: MemberState, state: MemberState) -> None:
        """Record the time of a rebalance: from the first state that is not reconciled to the next that is."""
        if state in RECONCILED:
            if self._rebalancing_since_s is not None:
                now_s = self._clock.now_s()
                self._client.sensors.rebalances.record((now_s, (now_s - self._rebalancing_since_s) * 1000))
            self._rebalancing_since_s = None
        elif state in CLOSED or state is MemberState.FAILED:
            self._rebalancing_since_s = None
        elif self._rebalancing_since_s is None and state is not before:
            self._rebalancing_since_s = self._clock.now_s()

    # -- the thread ---------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            name = f"{self._name} of {self.machine.group}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        if self._thread.ident is None:  # also if this process had too many threads before
            start(self._thread)

    def _run(self) -> None:
        for _ in range(2):  # after a bug, the thread can still send the request to leave
            try:
                return self._perform_steps()
            except Exception as fault:  # the owner must get bugs, too
                log.exception("group %s: an unexpected error ends this member", self.machine.group)
                with self.changed:
                    error = UsageError(f"a bug in this client: {fault!r}")
                    error.__cause__ = fault
                    self._in_flight = None
                    self.machine.fail(error)
                    self._notify()

    def _perform_steps(self) -> None:
        while (step := self._next_step()) is not None:
            if isinstance(step, SendRequest):
                self._send_request(step)
            elif isinstance(step, RefreshMetadata):
                self._refresh_metadata(step)
            elif (call := self._in_thread("assignor", step.call)) is not None:
                self._deliver(partial(self.machine.on_assignor_result, step, call.result))

    def _next_step(self) -> SendRequest | RefreshMetadata | CallAssignor | None:
        """Wait for a step; None if the member has left."""
        with self.changed:
            while self.machine.state is not MemberState.LEFT:
                now_s = self._now_s()
                step = self.machine.next_step(now_s)
                self._notify()
                if not isinstance(step, Wait):
                    return step
                self.changed.wait(min(max(0.0, step.until_s - now_s), TICK_S))
            return None

    def _send_request(self, request: SendRequest) -> None:
        """Send a request once, after resolving the coordinator if unknown; the state machine decides about retries."""
        deadline = Deadline.after_ms(request.timeout_ms, self._clock)
        operation, key = f"{request.api.name} for {self._coordinator}", self._coordinator
        exchange = partial(self._exchange, request, operation, deadline)
        try:
            response = self._client.retrying(operation, exchange, deadline, coordinator_of=key, max_attempts=1)
        except KafkaError as error:
            self._log_failing(error)
            failure = _attempt_error(error)
            self._deliver(partial(self.machine.on_failure, request, failure), failure)
        else:
            if response is not None:
                self._log_failing(None)
                self._deliver(partial(self.machine.on_response, request, *response))

    def _exchange(
        self, request: SendRequest, operation: str, deadline: Deadline
    ) -> tuple[dict[str, Any], float] | None:
        """Return the response, and the last time at which the coordinator is known to have seen this member.

        None if the request was not sent, since its session has ended.
        """

        def is_awaited() -> bool:
            return self.machine.awaits(request)

        def is_wanted() -> bool:
            return self._in_flight is request or is_awaited()

        sending = self._in_thread("request", partial(self._send, request, deadline), is_wanted)
        sent = None if sending is None else sending.result()
        if sent is None:
            return None
        broker, reply, since_s = sent
        while not ready([reply], TICK_S) and not deadline.passed:
            since_s = self._extend_session(request, since_s)
            self._in_thread("silence", partial(reply.check_silence, deadline), is_awaited)
            with self.changed:
                is_of_session = is_awaited()
            if not is_of_session:  # the response may never come
                self._client.hang_up(self._purpose)
        body = request.response_in(reply.result(deadline))
        if body["error_code"] not in request.accept:
            own = f": {body['error_message']}" if body.get("error_message") else ""
            context = {"api": request.api.name, "topic": listed(sorted(self.machine.subscription.names))}
            where = f"{operation} at {broker}{own}"
            raise broker_error(body["error_code"], where, **context, **self._coordinator.context)
        return body, since_s

    def _send(self, request: SendRequest, deadline: Deadline) -> tuple[Broker, Reply, float] | None:
        """Send a request to the coordinator, if its session still exists.

        Returns the coordinator, the pending reply, and the time before the request was sent.
        """
        broker = self._client.coordinator(self._coordinator, deadline)
        with self.changed:
            if not self.machine.awaits(request):  # a late JoinGroup would add it again
                return None
            self._in_flight = request
        since_s = self._clock.now_s()
        options: dict[str, Any] = {"purpose": self._purpose, "at_least": request.at_least}
        return broker, self._client.send(broker, request.api, request.body, deadline, **options), since_s

    def _refresh_metadata(self, step: RefreshMetadata) -> None:
        deadline = Deadline.after_ms(step.timeout_ms, self._clock)
        lookup = self._in_thread("metadata", partial(self._client.metadata, step.topics, deadline))
        if lookup is None:
            return
        try:
            cluster = lookup.result()
        except KafkaError as error:
            self._log_failing(error)
            self._deliver(partial(self.machine.on_metadata_failure, error), _attempt_error(error))
        else:
            self._log_failing(None)
            self._note_unavailable(step.topics or frozenset(), cluster)
            self._deliver(partial(self.machine.on_metadata, cluster))

    def _in_thread(
        self, name: str, call: Callable[[], T], is_wanted: Callable[[], bool] | None = None
    ) -> Future[T] | None:
        """Make a call that may block in another thread; return None once the result is not wanted any more.

        Meanwhile the member's thread checks the clock. By default the result is wanted until the owner closes.
        """
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # raised in the member's thread
                future.set_exception(error)
            with self.changed:
                self.changed.notify_all()

        try:
            threading.Thread(target=run, name=f"{self._name} of {self.machine.group}, {name}", daemon=True).start()
        except RuntimeError:  # this process has too many threads
            run()
            with self.changed:
                self._checked_s = self._clock.now_s()  # the call was no suspension
        with self.changed:
            while not future.done() and (not self._is_closed if is_wanted is None else is_wanted()):
                self._now_s()  # records that the process runs, for the owner's next call
                self.changed.wait(TICK_S)
            return future if future.done() else None

    def _log_failing(self, failure: KafkaError | None) -> None:
        """Log a warning once if requests fail for a time, and their recovery."""
        now_s, group = self._clock.now_s(), self.machine.group
        if failure is None:
            if self._has_warned:
                log.warning("group %s: requests of this member succeed again", group)
            self._failing_since_s, self._has_warned = None, False
            return
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s >= WARN_AFTER_S and not self._has_warned:
            self._has_warned = True
            text = self._client.format_error(_attempt_error(failure))
            log.warning("group %s: requests of this member fail and are retried: %s", group, text)

    def _note_unavailable(self, watched: frozenset[str], cluster: Metadata) -> None:
        codes = {name: cluster.topics[name].error_code for name in watched & cluster.topics.keys()}
        if unknown := sorted(name for name, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            log_once(f"group {self.machine.group}: the cluster does not have the subscribed topic(s) {listed(unknown)}")
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        hidden = frozenset(name for name in codes if codes[name] == code)
        with self.changed:
            if hidden - self._unauthorized_topics:
                names, group = listed(sorted(hidden)), self.machine.group
                text = f"group {group}: no member is assigned the partitions of {names}"
                self._authorization_error = broker_error(code, text, api="Metadata", topic=names)
            self._unauthorized_topics = hidden

    def _deliver(self, process: Callable[[float], None], failure: KafkaError | None = None) -> None:
        """Pass a response, or a failure, to the state machine.

        After a `KafkaError` of `process`, which is invalid data, the next poll joins again; another exception, which is
        a bug, ends the member for good.
        """
        with self.changed:
            self._in_flight = None
            if failure is not None and self.machine.state in AWAITING_ASSIGNMENT:
                self._failed_joins, self._join_error, self._join_error_taken = self._failed_joins + 1, failure, False
            try:
                process(self._clock.now_s())
            except KafkaError as error:
                self.machine.on_invalid_data(error, self._clock.now_s())
            if self.machine.state not in AWAITING_ASSIGNMENT:
                self._failed_joins = 0
            self._notify()
            self.changed.notify_all()

    def _extend_session(self, request: SendRequest, since_s: float) -> float:
        """Return the last time at which the coordinator is known to have seen this member.

        Extends the session of a member whose request the coordinator holds.
        """
        with self.changed:
            now_s = self._now_s()
            if request.held:
                self.machine.extend_session(request, since_s, now_s)
            self._notify()
            return now_s if request.held else since_s

    def _now_s(self) -> float:
        """Return the time, and detect a suspended process. Called under the lock.

        In the consumer protocol only brokers know when a session ends, so the member asks them after a pause.
        """
        now_s = self._clock.now_s()
        if self._thread is not None and now_s - self._checked_s >= _PAUSE_DETECTED_S:
            text = f"this process was suspended for {now_s - self._checked_s:.0f} s, and may have lost its partitions"
            self.machine.suspect_lost(EndReason(text), now_s)
        self._checked_s = now_s
        return now_s


def _attempt_error(error: KafkaError) -> KafkaError:
    """Return the error of the only attempt, instead of the error of the retry loop."""
    return error.__cause__ if isinstance(error, DeadlineExceeded) and isinstance(error.__cause__, KafkaError) else error
