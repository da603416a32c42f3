"""The common part of both group protocols: a sans-IO state machine of one member.

Takes responses, calls of the owner and the time `now_s`, and returns steps (`member_state`) to execute.
`classic_member` and `consumer_member` add the requests of their protocol. `membership` calls it under a lock, from the
member's thread and from the owner's thread, and executes one step at a time, without the lock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from protocol.base.clock import Backoff
from protocol.broker_errors import ErrorCode, GroupEffect, error_row
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import Metadata
from protocol.config import ClientConfig, ConsumerConfig
from protocol.errors import BrokerError, KafkaError, UnsupportedVersion
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import EndReason, Revocation, TopicSubscription, available_topics
from protocol.group.membership.member_state import (
    AWAITS_OWNER,
    IN_SESSION,
    RECONCILED,
    TERMINAL,
    WITHOUT_ASSIGNMENT,
    CallAssignor,
    Lifecycle,
    MemberState,
    RefreshMetadata,
    SendRequest,
    Step,
    Transitions,
    Wait,
)
from protocol.kafka_terms import NO_TOPIC_IDS, TopicIds, TopicPartition

# Metadata are refreshed sooner while a subscribed topic does not exist.
_MISSING_TOPIC_S = 5.0
# Properties named in errors of these timeouts.
_SESSION_TIMEOUT = frozenset({"session.timeout.ms"})
_MAX_POLL_INTERVAL = frozenset({"max.poll.interval.ms"})

_RESUBSCRIBED = EndReason("the subscription has changed")

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class MemberMachine(ABC):
    """One member of one group.

    `owned`: the owner's partitions; differ from the assigned ones until the owner has accepted the assignment.
    `error`: the error that the owner has not taken yet; in state FAILED, the fatal error.
    """

    transitions: Transitions
    remedies: Mapping[int, tuple[str, str]]
    """The property to change and the remedy, by fatal error code."""
    owned_topic_ids: TopicIds = NO_TOPIC_IDS
    """Ids with which the coordinator has assigned the owned partitions; empty if it assigns by name."""
    broker_matches_patterns = False
    """True if the coordinator matches patterns in RE2 syntax."""

    def __init__(
        self, client: ClientConfig, config: ConsumerConfig, subscription: TopicSubscription, now_s: float
    ) -> None:
        self.group = str(config.group_id)
        self.config = config
        self.subscription = subscription
        self.owned = NO_PARTITIONS
        self.error: KafkaError | None = None
        self._lifecycle = Lifecycle(f"member of group {self.group}", self.transitions)
        self._backoff = Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms)
        self._request_timeout_ms = client.request_timeout_ms
        self._metadata_max_age_s = client.metadata_max_age_ms / 1000
        self._session_s = config.session_timeout_ms / 1000
        self._poll_interval_s = config.max_poll_interval_ms / 1000
        self._session_ends_s = math.inf
        self._polled_s = now_s
        # Times of the next heartbeat and of the next metadata; no step is due before `_retry_s`.
        self._heartbeat_s = now_s
        self._refresh_s = now_s
        self._retry_s = now_s
        # With a pattern matched by this client: None until metadata were received.
        self._topics = None if self._matches_in_client else subscription.names
        # True until metadata have shown which topics a new pattern matches.
        self._pattern_pending = False
        # True if the last metadata, or those in flight, were requested for an earlier subscription.
        self._metadata_outdated = False
        # The step whose reply or result counts: the last one, unless it has failed or its session has ended.
        self._awaited: SendRequest | CallAssignor | None = None
        # The reason why the assignment may be lost. In the consumer protocol only brokers know when a session ends.
        self._suspicion: EndReason | None = None
        self._suspected_s = now_s
        # The leave request to send, or in flight.
        self._pending_leave: SendRequest | None = None
        # True if a newer member has the instance id: the coordinator does not know this one.
        self._is_fenced = False

    # -- for the owner ------------------------------------------------------------------------

    @property
    def state(self) -> MemberState:
        """Return the present state."""
        return self._lifecycle.state

    @property
    def reason(self) -> EndReason:
        """Return the reason of the state, or of the suspicion that the assignment is lost."""
        outdated = _RESUBSCRIBED if self.state in RECONCILED and self._is_outdated else None
        return self._suspicion or outdated or self._lifecycle.reason

    @property
    def is_reconciled(self) -> bool:
        """Return True if the owner has all partitions assigned for its present subscription.

        False also while the session is suspected to have ended.
        """
        return self.state in RECONCILED and self._suspicion is None and not self._is_outdated

    @property
    @abstractmethod
    def member(self) -> GroupMember:
        """Return the member as the coordinator knows it; without generation or epoch outside a session."""

    @property
    @abstractmethod
    def is_becoming_known(self) -> bool:
        """Return True while a request is in flight whose response a leave request must wait for."""

    def pending(self, now_s: float) -> EndReason | None:
        """Return the reason why the owner must act; None if it need not."""
        self.tick(now_s)
        if self.state in AWAITS_OWNER or (self.state in RECONCILED and not self.is_reconciled):
            return self.reason
        return self._suspicion

    def take_error(self) -> KafkaError | None:
        """Return the error to raise: always in state FAILED, and once for each refused request."""
        error = self.error
        if self.state is not MemberState.FAILED:
            self.error = None
        return error

    def assignment_lost(self, now_s: float) -> EndReason | None:
        """Return the reason to return no records now: the assignment is lost, or suspected to be; None if valid."""
        self.tick(now_s)
        return self.reason if self.state in WITHOUT_ASSIGNMENT else self._suspicion

    def progress(self, now_s: float) -> None:
        """Restart `max.poll.interval.ms`, unless it has elapsed already."""
        self.tick(now_s)
        self._polled_s = now_s

    def subscribe(self, subscription: TopicSubscription, now_s: float) -> None:
        """Change the subscription. The member is not reconciled until it has an assignment for it."""
        changed, self.subscription = subscription != self.subscription, subscription
        self._pattern_pending = self._matches_in_client and (changed or self._pattern_pending)
        self._metadata_outdated |= changed
        if not self._matches_in_client:
            self._topics = subscription.names
        self._refresh_s = now_s

    def revocation(self, now_s: float) -> Revocation | None:
        """Return the partitions that the owner must release now."""
        self.tick(now_s)
        if self.state is MemberState.LOST:
            return Revocation(self.owned, True, self.reason)
        if partitions := self._to_revoke():
            return Revocation(partitions, False, self.reason)
        if self.state is MemberState.REBALANCING:  # the subscription has changed once more, and keeps them
            self._join(self.reason)
        return None

    def complete_revocation(self, revocation: Revocation, now_s: float) -> None:
        """Record that the owner has released the partitions."""
        self.owned -= revocation.partitions
        if self.state is MemberState.LOST and revocation.lost:
            self._polled_s = now_s
            self._join(self.reason)
        elif self.state is MemberState.REBALANCING and not self._to_revoke():
            self._join(self.reason)

    def accept_assignment(self, now_s: float) -> frozenset[TopicPartition]:
        """Make the assigned partitions the owner's, unless some must be revoked first; return the new ones.

        The first call joins the group.
        """
        if self.state is MemberState.UNJOINED:
            self._join(EndReason("first join of this member"))
        if self.state is not MemberState.RECONCILING or not self._may_accept:
            return NO_PARTITIONS
        before, self.owned = self.owned, self._assigned
        self._accepted()
        return self.owned - before

    def leave(self, *, for_good: bool | None) -> None:
        """Leave the group; a member that is leaving already stops waiting for the response.

        `for_good`: True leaves. False stays until the session ends (KIP-1092); a static member of the consumer protocol
        releases its instance id. None leaves, but a static member may return to its partitions until its session ends
        (KIP-345), unless it is giving some up in a cooperative rebalance.
        """
        if self.state is MemberState.LEFT:
            return
        if self.state is MemberState.LEAVING:
            return self._leave_completed()
        if not self._is_fenced:
            self._pending_leave = self._leave_request(for_good) or self._pending_leave
        self.owned = NO_PARTITIONS
        self._retry_s = -math.inf
        self._lifecycle.transition(
            MemberState.LEAVING if self._pending_leave else MemberState.LEFT, EndReason("closed by its owner")
        )
        self._forget_session()

    # -- for the thread -----------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Apply timeouts (session, `max.poll.interval.ms`). Called before any other query."""
        if self.state not in IN_SESSION:
            return
        if now_s >= self._session_ends_s:
            text = f"no response of the coordinator for {self._session_s:g} s (session.timeout.ms)"
            self._lose_assignment(EndReason(text, _SESSION_TIMEOUT))
        elif now_s >= self._polled_s + self._poll_interval_s:
            self._leave_after_poll_timeout()

    def suspect_lost(self, reason: EndReason, now_s: float) -> None:
        """Ask the coordinator at once whether the session still exists; the owner must wait for the response."""
        if self.state in IN_SESSION:
            self._suspicion, self._suspected_s, self._heartbeat_s = reason, now_s, now_s

    def next_step(self, now_s: float) -> Step:
        """Return the step that is due, or `Wait`."""
        self.tick(now_s)
        if self._retry_s > now_s:
            return Wait(self._until(self._retry_s))
        if self._pending_leave is not None:
            return self._pending_leave
        if self.state not in IN_SESSION:
            return Wait(math.inf)
        step = self._refresh_metadata(now_s) if self._topics is None else self._next_step(now_s)
        self._awaited = step if isinstance(step, (SendRequest, CallAssignor)) else None
        self._metadata_outdated &= not isinstance(step, RefreshMetadata)
        return step

    def on_response(self, request: SendRequest, reply: Mapping[str, Any], since_s: float, now_s: float) -> None:
        """Process a response; `since_s` is the latest time at which the coordinator has surely seen this member."""
        self._backoff.reset()
        if request.renews:
            self.extend_session(request, since_s, now_s)
        else:
            self.tick(now_s)
        if request is self._pending_leave:
            self._leave_completed()
        elif request is self._awaited:
            self._on_response(request, reply, now_s)
            if request.renews and since_s >= self._suspected_s:
                self._suspicion = None
            elif self._suspicion is not None:
                self._heartbeat_s = now_s  # the response is older than the suspicion

    def awaits(self, request: SendRequest) -> bool:
        """Return False if the session of a request has ended: a response would be ignored."""
        return request is self._awaited or request is self._pending_leave

    def extend_session(self, request: SendRequest, since_s: float, now_s: float) -> None:
        """Restart the session timeout, after a response or while the coordinator delays one."""
        self.tick(now_s)
        if request is not self._awaited:
            return  # of an ended session
        if now_s < since_s + self._session_s:
            self._session_ends_s = since_s + self._session_s
        else:
            text = f"this process was suspended for {now_s - since_s:.0f} s, longer than session.timeout.ms"
            self._lose_assignment(EndReason(text, _SESSION_TIMEOUT))

    def on_failure(self, request: SendRequest, error: KafkaError, now_s: float) -> None:
        """Process a failed request or an error code.

        The table in `broker_errors` defines the effect of each code.
        """
        if request is self._pending_leave:
            if self.state is MemberState.LEAVING and is_retriable(error):
                self._retry_after_backoff(error, now_s)
            else:
                self._leave_completed()
        elif request is not self._awaited:
            return  # of an ended session
        elif is_retriable(error):
            self._retry_after_backoff(error, now_s)
            self._on_unknown_outcome()
        elif isinstance(error, BrokerError) and self._loses_assignment(error):
            self._fenced(error, now_s)
        else:
            self._refused(error, now_s)

    def on_member_refused(self, member: GroupMember, error: BrokerError, now_s: float) -> None:
        """Process an error of a commit: the coordinator does not know `member` any more (UNKNOWN_MEMBER_ID).

        No heartbeat detects this while a JoinGroup is in flight, whose response may be lost.
        """
        self.tick(now_s)
        if self.state not in IN_SESSION or not member.member_id or not self.member.keeps_assignment_of(member):
            return
        if self._loses_assignment(error):
            self._fenced(error, now_s)
        else:
            self._refused(error, now_s)

    def on_assignor_result(self, step: CallAssignor, result: Callable[[], Any], now_s: float) -> None:
        """Process the result of the assignor, which `result` returns or raises; dropped if the session has ended."""
        self.tick(now_s)
        if step is self._awaited:
            step.process(result())

    def on_invalid_data(self, error: KafkaError, now_s: float) -> None:
        """Process an error in a response, metadata, or the user's assignor; as in Java, the next poll joins again."""
        self._refused(error, now_s)

    def _refused(self, error: KafkaError, now_s: float) -> None:
        """End the session with an error for the owner, whose next poll joins again: the cause may have changed."""
        error = self._with_remedy(error)
        if isinstance(error, BrokerError) and error.code == ErrorCode.FENCED_INSTANCE_ID:
            self._is_fenced = True
            return self.fail(error)  # a join would fence the newer member
        self.error, self._retry_s = error, now_s + self._backoff.next_s()
        self._lose_assignment(EndReason.of(error), wait=True)

    def _fenced(self, error: BrokerError, now_s: float) -> None:
        self._on_fenced(error)
        if self.state is MemberState.JOINING:
            self._retry_s = now_s + self._backoff.next_s()
        self._lose_assignment(EndReason.of(error))

    def on_metadata(self, cluster: Metadata, now_s: float) -> None:
        """Process metadata."""
        self._backoff.reset()
        if self.state not in IN_SESSION:
            return
        if not self._metadata_outdated:
            if self._matches_in_client:
                self._topics, self._pattern_pending = self.subscription.topics(cluster), False
            age_s, missing = self._metadata_max_age_s, (self._topics or frozenset()) - available_topics(cluster)
            self._refresh_s = now_s + (min(_MISSING_TOPIC_S, age_s) if missing else age_s)
        self._on_metadata(cluster, now_s)

    def on_metadata_failure(self, error: KafkaError, now_s: float) -> None:
        """Process a failed metadata request."""
        if is_retriable(error):
            self._refresh_s = now_s + self._backoff.next_s()
        elif self.state in IN_SESSION:
            self._refused(error, now_s)

    def fail(self, error: KafkaError) -> None:
        """End the member with a fatal error, which the owner gets. It leaves the group when its owner closes it."""
        if self.state in TERMINAL:
            return
        if self.state is MemberState.LEAVING:
            return self._leave_completed()
        self.error = error
        self._lifecycle.transition(MemberState.FAILED, EndReason.of(error))
        self._forget_session()

    # -- common to both protocols --------------------------------------------------------------

    def _loses_assignment(self, error: BrokerError) -> bool:
        """Return True if the error ends the session and the member should rejoin."""
        return error_row(error.code).group_effect is GroupEffect.ASSIGNMENT_LOST

    def _join(self, reason: EndReason) -> None:
        self._lifecycle.transition(MemberState.JOINING, reason)

    def _lose_assignment(self, reason: EndReason, *, wait: bool = False) -> None:
        """End the session; rejoin at once if no partitions are owned, unless `wait` is set."""
        self._forget_session()
        if self.owned or wait:
            self._lifecycle.transition(MemberState.LOST, reason)
        elif self.state is MemberState.JOINING:
            self._lifecycle.update_reason(reason)
        else:
            self._join(reason)

    def _leave_after_poll_timeout(self) -> None:
        self._pending_leave = self._leave_request(None)
        outcome = "it has left the group" if self._pending_leave else "it sends no heartbeats"
        text = (
            f"max.poll.interval.ms: no poll of this member for {self._poll_interval_s:g} s, so {outcome}; "
            "raise it, or process fewer records per poll"
        )
        self._lose_assignment(EndReason(text, _MAX_POLL_INTERVAL), wait=True)

    def _leave_completed(self) -> None:
        self._pending_leave = None
        if self.state is MemberState.LEAVING:
            self._lifecycle.transition(MemberState.LEFT, self.reason)

    def _retry_after_backoff(self, error: KafkaError, now_s: float) -> None:
        """Forget the request in flight and retry after the back-off."""
        self._awaited, self._retry_s = None, now_s + self._backoff.next_s()
        if self.state in (MemberState.JOINING, MemberState.SYNCING):
            self._lifecycle.update_reason(EndReason.of(error))

    def _until(self, *moments_s: float) -> float:
        """Return the earliest of these times and, in a session, of its timeouts."""
        if self.state in IN_SESSION:
            moments_s += self._session_ends_s, self._polled_s + self._poll_interval_s
        return min(moments_s)

    def _refresh_metadata(self, now_s: float) -> Step:
        """Return a metadata request if it is due; its timeout keeps heartbeats in time."""
        due = now_s >= self._refresh_s
        return (
            RefreshMetadata(self._watched_topics, self._heartbeat_timeout_ms)
            if due
            else Wait(self._until(self._refresh_s))
        )

    def _watch_topics(self, now_s: float) -> Step:
        """Wait for the next heartbeat, and refresh metadata if this member must detect changed topics."""
        if self._watches_topics and now_s >= self._refresh_s:
            return self._refresh_metadata(now_s)
        return Wait(self._until(self._heartbeat_s, self._refresh_s if self._watches_topics else math.inf))

    @property
    def _matches_in_client(self) -> bool:
        return self.subscription.pattern is not None and not (self.broker_matches_patterns and self.subscription.re2)

    @property
    def _heartbeat_timeout_ms(self) -> float:
        """Return a third of the session timeout, or less, so that there is time to find another coordinator."""
        return min(self._request_timeout_ms, self.config.session_timeout_ms / 3)

    def _forget_session(self) -> None:
        self._session_ends_s, self._awaited, self._suspicion = math.inf, None, None
        self._end_session()

    def _with_remedy(self, error: KafkaError) -> KafkaError:
        """Add the remedy to an error, if there is one."""
        by_client = ErrorCode.UNSUPPORTED_VERSION if isinstance(error, UnsupportedVersion) else ErrorCode.NONE
        code = error.code if isinstance(error, BrokerError) else by_client
        if code not in self.remedies:
            return error
        setting, remedy = self.remedies[code]
        explained = type(error)(f"{error}; {setting}: {remedy}", **{**error.context, "settings": (setting,)})
        explained.__cause__ = error
        return explained

    # -- specific to a protocol --------------------------------------------------------------
    # Of these, only `_accepted`, `_next_step`, `_on_response` and `_on_metadata` may change the state.

    @property
    @abstractmethod
    def _watches_topics(self) -> bool:
        """Return True if this member must detect changed topics."""

    @property
    @abstractmethod
    def _watched_topics(self) -> frozenset[str] | None:
        """Return the topics to refresh; None: all."""

    @property
    @abstractmethod
    def _is_outdated(self) -> bool:
        """Return True if the assignment is for an earlier subscription."""

    @property
    @abstractmethod
    def _assigned(self) -> frozenset[TopicPartition]: ...

    @abstractmethod
    def _to_revoke(self) -> frozenset[TopicPartition]:
        """Return the partitions that the owner must release in the present state."""

    @property
    @abstractmethod
    def _may_accept(self) -> bool:
        """Return True if the assignment may be accepted now."""

    @abstractmethod
    def _accepted(self) -> None:
        """Continue after the owner has accepted the assignment: leave RECONCILING."""

    @abstractmethod
    def _next_step(self, now_s: float) -> Step:
        """Return the step in a session, with the topics of the subscription known. A request is then in flight."""

    @abstractmethod
    def _on_response(self, request: SendRequest, reply: Mapping[str, Any], now_s: float) -> None:
        """Process the response to the request in flight. A `KafkaError` goes to `on_invalid_data`."""

    @abstractmethod
    def _on_metadata(self, cluster: Metadata, now_s: float) -> None:
        """Process metadata in a session. A `KafkaError` goes to `on_invalid_data`."""

    @abstractmethod
    def _on_fenced(self, error: BrokerError) -> None:
        """Process an error that ends the session, before `_end_session`."""

    @abstractmethod
    def _on_unknown_outcome(self) -> None:
        """Process a lost request, which is not in flight any more: the coordinator may have handled it."""

    @abstractmethod
    def _leave_request(self, for_good: bool | None) -> SendRequest | None:
        """Return the leave request, if one must be sent. Called before `_end_session`."""

    @abstractmethod
    def _end_session(self) -> None:
        """Reset generation or epoch, and the assignment; `owned` keeps lost partitions until they are released."""
