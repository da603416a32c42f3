"""A member of a group, as its owner has it: a `ConsumerGroup`, a consumer that polls, a Spark query's driver.

Owns the machine of the protocol (`classic`, `consumer`) and one thread, which does what the machine says on a
connection of its own: neither a Fetch nor a commit nor another member's JoinGroup stands before a heartbeat. The owner
calls the rest from a thread of its own, between two batches or polls. Whatever is decided, is decided in the machine.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Metadata
from protocol.condition import Condition
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason, Revocation, TopicSubscription
from protocol.group.membership.classic_member import ClassicMember
from protocol.group.membership.consumer_member import ConsumerMember
from protocol.group.membership.machine import NO_PARTITIONS, MemberMachine
from protocol.group.membership.member_state import TERMINAL, MemberState, RefreshMetadata, SendRequest
from protocol.net.readiness import ready

log = logging.getLogger(__name__)

# The machine is told this often that time has passed, or that a coordinator holds back an answer.
_TICK_S = 1.0
_HANG_UP_AGAIN_S = 0.1
# When nobody has looked at the clock for so long, this process has stood still.
_PAUSE_DETECTED_S = 3.0
# Whose requests have failed for so long says it: its owner just sees that nothing comes.
_WARN_AFTER_S = 10.0
LEAVE_MS = 5_000

_MACHINES: dict[str, type[MemberMachine]] = {"classic": ClassicMember, "consumer": ConsumerMember}
_numbers = itertools.count(1)


class Membership:
    """One member of the group `config.group_id`, by the protocol `config.group_protocol`.

    Joins with the first `poll_rebalance`. `on_member` is told of each new generation or epoch, and of none any more,
    from whichever thread finds it: `OffsetManager.set_member`. It must not call this member. Raises
    `ConfigurationError` for what cannot be a member.
    """

    def __init__(
        self,
        client: Client,
        config: ConsumerConfig,
        subscription: TopicSubscription,
        on_member: Callable[[GroupMember], None] = lambda member: None,
    ) -> None:
        if config.group_protocol not in _MACHINES or config.group_id is None:
            needed = ("group.id", "group.protocol")
            raise UsageError(f"a member needs {needed[0]}, and {needed[1]}=classic or consumer", settings=needed)
        self._client = client
        self._clock = client.clock
        self._coordinator = group_coordinator(config.group_id)
        self._machine = _MACHINES[config.group_protocol](client.config, config, subscription, self._clock.now_s())
        self._purpose = f"member {next(_numbers)}"
        self._on_member = on_member
        self._notified = self._machine.state, self._machine.member
        self._changed = Condition()
        self._in_flight: SendRequest | None = None
        self._checked_s = self._clock.now_s()
        self._failing_since_s: float | None = None
        self._has_warned = False
        # Topics that metadata do not tell this user of, and the error until the owner has taken it.
        self._unauthorized_topics: frozenset[str] = frozenset()
        self._authorization_error: BrokerError | None = None
        self._thread: threading.Thread | None = None

    # -- for the owner ------------------------------------------------------------------------

    @property
    def rebalance_pending(self) -> EndReason | None:
        """Why `poll_rebalance` is to be called; None: all is as it was. Costs nothing.

        To be asked before anything is committed or handed out, also after a long sleep: who has slept for longer than
        its session has no claims any more.
        """
        with self._changed:
            try:
                return self._machine.pending(self._now_s())
            finally:
                self._notify()

    @property
    def assignment_lost(self) -> EndReason | None:
        """Why what this member has is not its own any more, or may not be; None: it is. Costs nothing.

        While others join, a member keeps what it has: then `rebalance_pending` says so, and this does not.
        """
        with self._changed:
            try:
                return self._machine.assignment_lost(self._now_s())
            finally:
                self._notify()

    @property
    def member(self) -> GroupMember:
        """Who commits, as the coordinator knows it just now."""
        with self._changed:
            return self._machine.member

    @property
    def owned(self) -> frozenset[tuple[str, int]]:
        with self._changed:
            return self._machine.owned

    def take_authorization_error(self) -> BrokerError | None:
        """Names topics that the group reads and this user may not know of: who leads assigns them to nobody. Once."""
        with self._changed:
            refusal, self._authorization_error = self._authorization_error, None
            return refusal

    def progress(self) -> None:
        """The owner is at work: `max.poll.interval.ms` begins anew. `poll_rebalance` says so, too."""
        with self._changed:
            self._machine.progress(self._now_s())
            self._notify()

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Subscribes to something else. What that brings is taken up as any other rebalance."""
        with self._changed:
            self._machine.subscribe(subscription, self._clock.now_s())
            self._changed.notify_all()

    def poll_rebalance(
        self, deadline: Deadline, before_revoke: Callable[[Revocation], None] = lambda revocation: None
    ) -> Assignment:
        """Goes along with the group: joins, gives up, takes what is assigned, until nothing is pending or `deadline`.

        `before_revoke` is called in this thread with what has to go. What it raises is raised here, and nothing is
        given up. When other members are slow, `Assignment.pending_reason` says why more is still to come: the
        member's thread goes on, and `rebalance_pending` tells when it has come.

        Raises `KafkaError` when this cannot be a member, for good: no right to the group, no strategy in common with
        the others, another member with its instance id, brokers that do not speak the protocol.
        """
        self._start()
        added = NO_PARTITIONS
        while True:
            with self._changed:
                now_s = self._now_s()
                self._machine.progress(now_s)
                self._raise_if_ended()
                revocation = self._machine.revocation(now_s)
                if revocation is None:
                    added |= self._machine.accept_assignment(now_s)
                    self._notify()
                    if self._machine.is_reconciled or deadline.passed:
                        pending_reason = None if self._machine.is_reconciled else self._machine.reason
                        return Assignment(self._machine.member, self._machine.owned, added, pending_reason)
                    self._changed.wait(min(deadline.remaining_s(), _TICK_S))
                    continue
            if revocation.lost:
                words = self._client.format_error(revocation.reason.error)
                log.warning("group %s: all claims are lost: %s", self._machine.group, words)
            before_revoke(revocation)
            added -= revocation.partitions
            with self._changed:
                self._machine.complete_revocation(revocation, self._clock.now_s())
                self._notify()

    def close(self, leave: bool | None = None, timeout_ms: float = LEAVE_MS) -> None:
        """Leaves the group at once, and ends the thread. What is to be committed should be by now.

        leave : False: the coordinator is not told, and waits for the session's end; None: of a static member, so
            that it may come back to what it had (KIP-345).
        """
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        with self._changed:
            try:
                while self._machine.awaits_member_id and not deadline.passed:
                    self._changed.wait(min(deadline.remaining_s(), _TICK_S))
            finally:  # also at Ctrl-C
                self._machine.leave(for_good=leave)
                self._notify()
            asked = self._in_flight
            while asked is not None and self._in_flight is asked and not deadline.passed:
                self._client.hang_up(self._purpose)  # what is not sent yet will wait for an answer, too
                self._changed.wait(min(deadline.remaining_s(), _HANG_UP_AGAIN_S))
        if self._thread is not None:
            self._thread.join(deadline.remaining_s())
        with self._changed:
            self._machine.leave(for_good=False)  # without an answer, if there is none by now
            self._notify()
        self._client.hang_up(self._purpose)

    def __enter__(self) -> Membership:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _raise_if_ended(self) -> None:
        if self._machine.error is not None:
            raise self._machine.error
        if self._machine.state in TERMINAL or self._machine.state is MemberState.LEAVING:
            raise UsageError(f"this member of group {self._machine.group} was closed")

    def _notify(self) -> None:
        """Under the lock, after whatever may have changed the member."""
        before, self._notified = self._notified, (self._machine.state, self._machine.member)
        if self._notified != before:
            self._changed.notify_all()
        if self._notified[1] != before[1]:
            self._on_member(self._notified[1])

    # -- the thread ---------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            name = f"{self._purpose} of {self._machine.group}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while (step := self._next_step()) is not None:
                if isinstance(step, SendRequest):
                    self._send_request(step)
                else:
                    self._refresh_metadata(step)
        except Exception as fault:  # the owner has to hear of it: nobody else speaks for this member
            log.exception("group %s: an unexpected fault ends this member", self._machine.group)
            with self._changed:
                error = UsageError(f"a fault in this client: {fault!r}")
                error.__cause__ = fault
                self._machine.fail(error)
                self._notify()

    def _next_step(self) -> SendRequest | RefreshMetadata | None:
        """Waits until there is something to do; None: nothing ever."""
        with self._changed:
            while self._machine.state not in TERMINAL:
                now_s = self._now_s()
                step = self._machine.next_step(now_s)
                self._notify()
                if isinstance(step, (SendRequest, RefreshMetadata)):
                    self._in_flight = step if isinstance(step, SendRequest) else None
                    return step
                self._changed.wait(min(max(0.0, step.until_s - now_s), _TICK_S))
            return None

    def _send_request(self, request: SendRequest) -> None:
        """One attempt in the one retry loop, which looks the coordinator up anew. The machine says when again."""
        deadline = Deadline.after_ms(request.timeout_ms, self._clock)
        since_s = self._clock.now_s()

        def attempt() -> dict[str, Any]:
            nonlocal since_s
            broker = self._client.coordinator(self._coordinator, deadline)
            since_s = self._clock.now_s()
            options: dict[str, Any] = {"purpose": self._purpose, "at_least": request.at_least}
            reply = self._client.send(broker, request.api, request.body, deadline, **options)
            while not ready([reply], _TICK_S, deadline) and not deadline.passed:
                since_s = self._extend_session(request, since_s)
            body = reply.result(deadline)
            if body["error_code"] not in request.accept:
                own = f": {body['error_message']}" if body.get("error_message") else ""
                what = f"{request.api.name} for {self._coordinator} at {broker}{own}"
                about = {"api": request.api.name, "topic": ", ".join(sorted(self._machine.subscription.names))}
                raise broker_error(body["error_code"], what, **about, **self._coordinator.context)
            return body

        what = f"{request.api.name} for {self._coordinator}"
        key = self._coordinator
        try:
            body = self._client.retrying(what, attempt, deadline, coordinator_of=key, max_attempts=1)
        except KafkaError as error:
            self._log_failing(error)
            tell = partial(self._machine.on_failure, request, _attempt_error(error))
        else:
            self._log_failing(None)
            tell = partial(self._machine.on_response, request, body, since_s)
        self._deliver(tell)

    def _refresh_metadata(self, step: RefreshMetadata) -> None:
        deadline = Deadline.after_ms(step.timeout_ms, self._clock)
        try:
            cluster = self._client.metadata(step.topics, deadline)
        except KafkaError as error:
            self._log_failing(error)
            tell = partial(self._machine.on_metadata_failure, error)
        else:
            self._log_failing(None)
            self._note_unauthorized(step.topics or frozenset(), cluster)
            tell = partial(self._machine.on_metadata, cluster)
        self._deliver(tell)

    def _log_failing(self, failure: KafkaError | None) -> None:
        """Says it, once, when requests have failed for a while, and when they go through again."""
        now_s, group = self._clock.now_s(), self._machine.group
        if failure is None:
            if self._has_warned:
                log.warning("group %s: requests of this member go through again", group)
            self._failing_since_s, self._has_warned = None, False
            return
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s >= _WARN_AFTER_S and not self._has_warned:
            self._has_warned = True
            words = self._client.format_error(_attempt_error(failure))
            log.warning("group %s: requests of this member fail, and are tried again: %s", group, words)

    def _note_unauthorized(self, watched: frozenset[str], cluster: Metadata) -> None:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        hidden = frozenset(name for name in watched & cluster.topics.keys() if cluster.topics[name].error_code == code)
        with self._changed:
            if hidden - self._unauthorized_topics:
                names, group = ", ".join(sorted(hidden)), self._machine.group
                words = f"group {group}: nobody is assigned the partitions of {names}"
                self._authorization_error = broker_error(code, words, api="Metadata", topic=names)
            self._unauthorized_topics = hidden

    def _deliver(self, tell: Callable[[float], None]) -> None:
        with self._changed:
            self._in_flight = None
            try:
                tell(self._clock.now_s())
            except KafkaError as error:  # such as bytes of another member that make no sense
                self._machine.fail(error)
            self._notify()
            self._changed.notify_all()

    def _extend_session(self, request: SendRequest, since_s: float) -> float:
        """Since when the coordinator is known to hold an answer back, rather than to be silent."""
        with self._changed:
            now_s = self._now_s()
            if request.held:
                self._machine.extend_session(request, since_s, now_s)
            self._notify()
            return now_s if request.held else since_s

    def _now_s(self) -> float:
        """Under the lock. Brokers alone know when a session of KIP-848 ends, so after a long sleep they are asked."""
        now_s = self._clock.now_s()
        if self._thread is not None and now_s - self._checked_s >= _PAUSE_DETECTED_S:
            words = f"this process has stood still for {now_s - self._checked_s:.0f} s, and may have lost its claims"
            self._machine.suspect_lost(EndReason(words), now_s)
        self._checked_s = now_s
        return now_s


def _attempt_error(error: KafkaError) -> KafkaError:
    """What was wrong, without that it was tried once."""
    return error.__cause__ if isinstance(error, DeadlineExceeded) and isinstance(error.__cause__, KafkaError) else error
