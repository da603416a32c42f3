"""What a member decides, in either protocol: what it sends next, what an answer means, what its owner has to do.

Pure: takes `now_s` and replies, gives steps (`steps.py`). `classic` and `consumer` fill in what is theirs. Called by
`membership` under its lock, from the member's thread and from its owner's; one request is under way at most.
Knows no socket, no thread and no clock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from protocol.broker_errors import ErrorCode, GroupEffect, error_row
from protocol.clock import Backoff
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
    Lifecycle,
    MemberState,
    RefreshMetadata,
    SendRequest,
    Step,
    Transitions,
    Wait,
)
from protocol.kafka_terms import TopicPartition

# A topic that is not there (yet) is looked for again sooner than metadata grow old.
_MISSING_TOPIC_S = 5.0
# What its user may set, where that was too short.
_SESSION_TIMEOUT = frozenset({"session.timeout.ms"})
_MAX_POLL_INTERVAL = frozenset({"max.poll.interval.ms"})

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class MemberMachine(ABC):
    """One member of one group.

    Attributes
    ----------
    owned : what its owner has; another set than what is assigned, until the owner has taken that up.
    """

    transitions: Transitions
    remedies: Mapping[int, tuple[str, str]]
    """Of errors that end a member: the property to change, and what to do about it."""
    broker_matches_patterns = False
    """Whether the coordinator matches patterns that are given in its syntax."""

    def __init__(
        self, client: ClientConfig, config: ConsumerConfig, subscription: TopicSubscription, now_s: float
    ) -> None:
        self.group = str(config.group_id)
        self.config = config
        self.subscription = subscription
        self.owned = NO_PARTITIONS
        self.error: KafkaError | None = None
        self._life = Lifecycle(f"member of group {self.group}", self.transitions)
        self._backoff = Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms)
        self._request_timeout_ms = client.request_timeout_ms
        self._metadata_max_age_s = client.metadata_max_age_ms / 1000
        self._session_s = config.session_timeout_ms / 1000
        self._poll_interval_s = config.max_poll_interval_ms / 1000
        self._session_ends_s = math.inf
        self._polled_s = now_s
        self._heartbeat_s = now_s
        self._retry_s = now_s
        self._refresh_s = now_s
        # Of a pattern that is matched here: None until it was, for the first time.
        self._topics = None if self._matches_in_client else subscription.names
        # What is under way, unless the session that it is of is over; and what is said on leaving.
        self._in_flight: SendRequest | None = None
        # Why nobody knows whether the claims still hold. Brokers alone know when a session of KIP-848 ends.
        self._suspicion: EndReason | None = None
        self._suspected_s = now_s
        self._pending_leave: SendRequest | None = None

    # -- for the owner ------------------------------------------------------------------------

    @property
    def state(self) -> MemberState:
        return self._life.state

    @property
    def reason(self) -> EndReason:
        """Why it is in its state, or in doubt."""
        return self._suspicion or self._life.reason

    @property
    def is_reconciled(self) -> bool:
        return self.state in RECONCILED and self._suspicion is None

    @property
    @abstractmethod
    def member(self) -> GroupMember:
        """As the coordinator knows it; without a generation or epoch while it does not."""

    @property
    def awaits_member_id(self) -> bool:
        """Whether the answer that is under way says under which id it has to leave."""
        return False

    def pending(self, now_s: float) -> EndReason | None:
        """Why the owner has to act; None: it need not."""
        self.tick(now_s)
        return self.reason if self.state in AWAITS_OWNER else self._suspicion

    def assignment_lost(self, now_s: float) -> EndReason | None:
        """Why what the owner has is not its own any more, or may not be; None: it is."""
        self.tick(now_s)
        return self.reason if self.state in (MemberState.LOST, MemberState.FAILED) else self._suspicion

    def progress(self, now_s: float) -> None:
        """The owner is alive: `max.poll.interval.ms` begins anew. Not if it is over already."""
        self.tick(now_s)
        self._polled_s = now_s

    def subscribe(self, subscription: TopicSubscription, now_s: float) -> None:
        """To something else, from now on."""
        self.subscription = subscription
        if not self._matches_in_client:
            self._topics = subscription.names
        self._refresh_s = now_s

    def revocation(self, now_s: float) -> Revocation | None:
        """What the owner has to give up now."""
        self.tick(now_s)
        if self.state is MemberState.LOST:
            return Revocation(self.owned, True, self.reason)
        partitions = self._to_revoke()
        return Revocation(partitions, False, self.reason) if partitions else None

    def complete_revocation(self, revocation: Revocation, now_s: float) -> None:
        """The owner has done so."""
        self.owned -= revocation.partitions
        if self.state is MemberState.LOST and revocation.lost:
            self._polled_s = now_s
            self._join(self.reason)
        elif self.state is MemberState.REBALANCING and not self._to_revoke():
            self._join(self.reason)

    def accept_assignment(self, now_s: float) -> frozenset[TopicPartition]:
        """The owner takes what it is assigned, if it has nothing to give up; what of it is new. Joins at first."""
        if self.state is MemberState.UNJOINED:
            self._join(EndReason("it joins for the first time"))
        if self.state is not MemberState.RECONCILING or not self._may_accept:
            return NO_PARTITIONS
        before, self.owned = self.owned, self._assigned
        self._accepted()
        return self.owned - before

    def leave(self, *, for_good: bool | None) -> None:
        """None: a static member may come back, and its partitions wait for it until its session ends (KIP-345).

        Of a member that is leaving: waits no longer for the answer.
        """
        if self.state in TERMINAL:
            return
        if self.state is MemberState.LEAVING:
            return self._leave_completed()
        self._pending_leave = self._leave_request(for_good) or self._pending_leave
        self.owned = NO_PARTITIONS
        self._retry_s = -math.inf
        self._life.transition(
            MemberState.LEAVING if self._pending_leave else MemberState.LEFT, EndReason("it was closed by its owner")
        )
        self._forget_session()

    # -- for its thread -----------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """What time has brought: a session, or the owner's time, may be over. Comes before every other look."""
        if self.state not in IN_SESSION:
            return
        if now_s >= self._session_ends_s:
            words = f"no answer of the coordinator for {self._session_s:g} s (session.timeout.ms)"
            self._lose(EndReason(words, _SESSION_TIMEOUT))
        elif now_s >= self._polled_s + self._poll_interval_s:
            self._leave_after_poll_timeout()

    def suspect_lost(self, reason: EndReason, now_s: float) -> None:
        """Its claims may have ended: the coordinator is asked at once, and until it answers the owner has to wait."""
        if self.state in IN_SESSION:
            self._suspicion, self._suspected_s, self._heartbeat_s = reason, now_s, now_s

    def next_step(self, now_s: float) -> Step:
        """What to do now. Gives a `Wait` where nothing is due."""
        self.tick(now_s)
        if self._retry_s > now_s:
            return Wait(self._until(self._retry_s))
        if self._pending_leave is not None:
            return self._pending_leave
        if self.state not in IN_SESSION:
            return Wait(math.inf)
        step = self._refresh_metadata(now_s) if self._topics is None else self._next_step(now_s)
        self._in_flight = step if isinstance(step, SendRequest) else None
        return step

    def on_response(self, request: SendRequest, reply: Mapping[str, Any], since_s: float, now_s: float) -> None:
        """`since_s`: since when the coordinator has known for sure that this member is there."""
        self._backoff.reset()
        if request.renews:
            self.extend_session(request, since_s, now_s)
        else:
            self.tick(now_s)
        if request is self._pending_leave:
            self._leave_completed()
        elif request is self._in_flight:
            self._on_response(request, reply, now_s)
            if since_s >= self._suspected_s:
                self._suspicion = None
            elif self._suspicion is not None:
                self._heartbeat_s = now_s  # an answer of before says nothing

    def extend_session(self, request: SendRequest, since_s: float, now_s: float) -> None:
        """As `on_response`; or it holds its answer back because of others, and counts no session meanwhile."""
        self.tick(now_s)
        if request is not self._in_flight:
            return  # it is of a session that is over
        if now_s < since_s + self._session_s:
            self._session_ends_s = since_s + self._session_s
        else:
            words = f"this process has stood still for {now_s - since_s:.0f} s, longer than session.timeout.ms"
            self._lose(EndReason(words, _SESSION_TIMEOUT))

    def on_failure(self, request: SendRequest, error: KafkaError, now_s: float) -> None:
        """No answer, or one with an error code, whose row in `broker_errors` says what that ends."""
        if request is self._pending_leave:
            if self.state is MemberState.LEAVING and is_retriable(error):
                self._retry_after_backoff(error, now_s)
            else:
                self._leave_completed()
        elif request is not self._in_flight:
            return  # it is of a session that is over
        elif is_retriable(error):
            self._retry_after_backoff(error, now_s)
            self._on_unknown_outcome()
        elif isinstance(error, BrokerError) and self._loses_assignment(error):
            self._on_fenced(error)
            if self.state is MemberState.JOINING:
                self._retry_s = now_s + self._backoff.next_s()
            self._lose(EndReason.of(error))
        else:
            self.fail(self._with_remedy(error))

    def on_metadata(self, cluster: Metadata, now_s: float) -> None:
        """What was looked up."""
        self._backoff.reset()
        if self.state in IN_SESSION:
            if self._matches_in_client:
                self._topics = self.subscription.topics(cluster)
            age_s, missing = self._metadata_max_age_s, (self._topics or frozenset()) - available_topics(cluster)
            self._refresh_s = now_s + (min(_MISSING_TOPIC_S, age_s) if missing else age_s)
            self._on_metadata(cluster, now_s)

    def on_metadata_failure(self, error: KafkaError, now_s: float) -> None:
        """Nobody has answered."""
        if is_retriable(error):
            self._refresh_s = now_s + self._backoff.next_s()
        elif self.state in IN_SESSION:
            self.fail(error)

    def fail(self, error: KafkaError) -> None:
        """It cannot be a member, and its owner has to know why."""
        self.error = error
        self._life.transition(MemberState.FAILED, EndReason.of(error))
        self._forget_session()

    # -- what both protocols do ---------------------------------------------------------------

    def _loses_assignment(self, error: BrokerError) -> bool:
        """Whether to join (again) may help."""
        return error_row(error.code).group_effect is GroupEffect.ASSIGNMENT_LOST

    def _join(self, reason: EndReason) -> None:
        self._life.transition(MemberState.JOINING, reason)

    def _lose(self, reason: EndReason, *, wait: bool = False) -> None:
        """All claims have ended. Joins again at once if there were none (unless it is to `wait` for its owner)."""
        self._forget_session()
        if self.owned or wait:
            self._life.transition(MemberState.LOST, reason)
        elif self.state is MemberState.JOINING:
            self._life.update_reason(reason)
        else:
            self._join(reason)

    def _leave_after_poll_timeout(self) -> None:
        words = (
            f"max.poll.interval.ms: nothing was asked of this member for {self._poll_interval_s:g} s, so it has left "
            "the group; raise it, or take less at once"
        )
        self._pending_leave = self._leave_request(None)
        self._lose(EndReason(words, _MAX_POLL_INTERVAL), wait=True)

    def _leave_completed(self) -> None:
        self._pending_leave = None
        if self.state is MemberState.LEAVING:
            self._life.transition(MemberState.LEFT, self.reason)

    def _retry_after_backoff(self, error: KafkaError, now_s: float) -> None:
        self._in_flight, self._retry_s = None, now_s + self._backoff.next_s()
        if self.state in (MemberState.JOINING, MemberState.SYNCING):
            self._life.update_reason(EndReason.of(error))

    def _until(self, *moments_s: float) -> float:
        """The first of these; in a session, or when that or the owner's time is over."""
        if self.state in IN_SESSION:
            moments_s += self._session_ends_s, self._polled_s + self._poll_interval_s
        return min(moments_s)

    def _refresh_metadata(self, now_s: float) -> Step:
        """When it is time for that. Takes no longer than a heartbeat may be late."""
        due = now_s >= self._refresh_s
        return (
            RefreshMetadata(self._watched_topics, self._heartbeat_timeout_ms)
            if due
            else Wait(self._until(self._refresh_s))
        )

    def _watch_topics(self, now_s: float) -> Step:
        """Until the next heartbeat: looks whether topics have changed, where that is for this member to see."""
        if self._watches_topics and now_s >= self._refresh_s:
            return self._refresh_metadata(now_s)
        return Wait(self._until(self._heartbeat_s, self._refresh_s if self._watches_topics else math.inf))

    @property
    def _matches_in_client(self) -> bool:
        return self.subscription.pattern is not None and not (self.broker_matches_patterns and self.subscription.re2)

    @property
    def _heartbeat_timeout_ms(self) -> float:
        """A coordinator that is silent is given up while there is time to find another one."""
        return min(self._request_timeout_ms, self.config.session_timeout_ms / 3)

    def _forget_session(self) -> None:
        self._session_ends_s, self._in_flight, self._suspicion = math.inf, None, None
        self._end_session()

    def _with_remedy(self, error: KafkaError) -> KafkaError:
        """With the remedy, where there is one."""
        by_client = ErrorCode.UNSUPPORTED_VERSION if isinstance(error, UnsupportedVersion) else ErrorCode.NONE
        code = error.code if isinstance(error, BrokerError) else by_client
        if code not in self.remedies:
            return error
        setting, remedy = self.remedies[code]
        told = type(error)(f"{error}; {setting}: {remedy}", **{**error.context, "settings": (setting,)})
        told.__cause__ = error
        return told

    # -- what each protocol does in its own way -----------------------------------------------

    @property
    @abstractmethod
    def _watches_topics(self) -> bool:
        """Whether it is for this member to see that topics change."""

    @property
    @abstractmethod
    def _watched_topics(self) -> frozenset[str] | None:
        """Those that are looked up; None: all."""

    @property
    @abstractmethod
    def _assigned(self) -> frozenset[TopicPartition]: ...

    @abstractmethod
    def _to_revoke(self) -> frozenset[TopicPartition]:
        """What the owner has to give up in the present state, before the member may go on."""

    @property
    @abstractmethod
    def _may_accept(self) -> bool:
        """Whether what is assigned holds just now."""

    @abstractmethod
    def _accepted(self) -> None:
        """The owner has what is assigned."""

    @abstractmethod
    def _next_step(self, now_s: float) -> Step: ...

    @abstractmethod
    def _on_response(self, request: SendRequest, reply: Mapping[str, Any], now_s: float) -> None: ...

    @abstractmethod
    def _on_metadata(self, cluster: Metadata, now_s: float) -> None: ...

    @abstractmethod
    def _on_fenced(self, error: BrokerError) -> None:
        """An answer has ended this member's claims."""

    @abstractmethod
    def _on_unknown_outcome(self) -> None:
        """A request was heard or not: nobody knows."""

    @abstractmethod
    def _leave_request(self, for_good: bool | None) -> SendRequest | None:
        """None: there is nobody to be told."""

    @abstractmethod
    def _end_session(self) -> None:
        """Forgets generation or epoch, and what was assigned."""
