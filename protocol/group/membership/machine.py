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
from protocol.group.membership.assignment import Revocation
from protocol.group.membership.cause import Cause
from protocol.group.membership.states import HAS_TO_HEAR, IN_SESSION, OVER, SETTLED, Lifecycle, MemberState, Moves
from protocol.group.membership.steps import Ask, LookUp, Step, Wait
from protocol.group.membership.topic_subscription import TopicSubscription, there
from protocol.kafka_terms import TopicPartition

# A topic that is not there (yet) is looked for again sooner than metadata grow old.
_MISSING_TOPIC_S = 5.0
# What its user may set, where that was too short.
_SESSION_TIMEOUT = frozenset({"session.timeout.ms"})
_MAX_POLL_INTERVAL = frozenset({"max.poll.interval.ms"})

NOTHING: frozenset[TopicPartition] = frozenset()


class MemberMachine(ABC):
    """One member of one group.

    Attributes
    ----------
    owned : what its owner has; another set than what is assigned, until the owner has taken that up.
    """

    moves: Moves
    remedies: Mapping[int, tuple[str, str]]
    """Of errors that end a member: the property to change, and what to do about it."""
    broker_matches = False
    """Whether the coordinator matches patterns that are given in its syntax."""

    def __init__(
        self, client: ClientConfig, config: ConsumerConfig, subscription: TopicSubscription, now_s: float
    ) -> None:
        self.group = str(config.group_id)
        self.config = config
        self.subscription = subscription
        self.owned = NOTHING
        self.error: KafkaError | None = None
        self._life = Lifecycle(f"member of group {self.group}", self.moves)
        self._backoff = Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms)
        self._request_timeout_ms = client.request_timeout_ms
        self._metadata_max_age_s = client.metadata_max_age_ms / 1000
        self._session_s = config.session_timeout_ms / 1000
        self._poll_interval_s = config.max_poll_interval_ms / 1000
        self._session_ends_s = math.inf
        self._polled_s = now_s
        self._heartbeat_s = now_s
        self._retry_s = now_s
        self._look_up_s = now_s
        # Of a pattern that is matched here: None until it was, for the first time.
        self._topics = None if self._matches_here else subscription.names
        # What is under way, unless the session that it is of is over; and what is said on leaving.
        self._asked: Ask | None = None
        # Why nobody knows whether the claims still hold. Brokers alone know when a session of KIP-848 ends.
        self._doubt: Cause | None = None
        self._doubted_s = now_s
        self._farewell: Ask | None = None

    # -- for the owner ------------------------------------------------------------------------

    @property
    def state(self) -> MemberState:
        return self._life.state

    @property
    def cause(self) -> Cause:
        """Why it is in its state, or in doubt."""
        return self._doubt or self._life.cause

    @property
    def settled(self) -> bool:
        return self.state in SETTLED and self._doubt is None

    @property
    @abstractmethod
    def member(self) -> GroupMember:
        """As the coordinator knows it; without a generation or epoch while it does not."""

    @property
    def is_being_named(self) -> bool:
        """Whether the answer that is under way says under which id it has to leave."""
        return False

    def pending(self, now_s: float) -> Cause | None:
        """Why the owner has to act; None: it need not."""
        self.tick(now_s)
        return self.cause if self.state in HAS_TO_HEAR else self._doubt

    def claims_ended(self, now_s: float) -> Cause | None:
        """Why what the owner has is not its own any more, or may not be; None: it is."""
        self.tick(now_s)
        return self.cause if self.state in (MemberState.LOST, MemberState.FAILED) else self._doubt

    def progress(self, now_s: float) -> None:
        """The owner is alive: `max.poll.interval.ms` begins anew. Not if it is over already."""
        self.tick(now_s)
        self._polled_s = now_s

    def subscribe(self, subscription: TopicSubscription, now_s: float) -> None:
        """To something else, from now on."""
        self.subscription = subscription
        if not self._matches_here:
            self._topics = subscription.names
        self._look_up_s = now_s

    def revocation(self, now_s: float) -> Revocation | None:
        """What the owner has to give up now."""
        self.tick(now_s)
        if self.state is MemberState.LOST:
            return Revocation(self.owned, True, self.cause)
        partitions = self._to_give_up()
        return Revocation(partitions, False, self.cause) if partitions else None

    def give_up(self, revocation: Revocation, now_s: float) -> None:
        """The owner has done so."""
        self.owned -= revocation.partitions
        if self.state is MemberState.LOST and revocation.lost:
            self._polled_s = now_s
            self._join(self.cause)
        elif self.state is MemberState.REBALANCING and not self._to_give_up():
            self._join(self.cause)

    def take(self, now_s: float) -> frozenset[TopicPartition]:
        """The owner takes what it is assigned, if it has nothing to give up; what of it is new. Joins at first."""
        if self.state is MemberState.UNJOINED:
            self._join(Cause("it joins for the first time"))
        if self.state is not MemberState.RECONCILING or not self._may_take:
            return NOTHING
        before, self.owned = self.owned, self._assigned
        self._taken()
        return self.owned - before

    def leave(self, *, for_good: bool | None) -> None:
        """None: a static member may come back, and its partitions wait for it until its session ends (KIP-345).

        Of a member that is leaving: waits no longer for the answer.
        """
        if self.state in OVER:
            return
        if self.state is MemberState.LEAVING:
            return self._said_farewell()
        self._farewell = self._leave_request(for_good) or self._farewell
        self.owned = NOTHING
        self._retry_s = -math.inf
        self._life.transition(
            MemberState.LEAVING if self._farewell else MemberState.LEFT, Cause("it was closed by its owner")
        )
        self._forget_session()

    # -- for its thread -----------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """What time has brought: a session, or the owner's time, may be over. Comes before every other look."""
        if self.state not in IN_SESSION:
            return
        if now_s >= self._session_ends_s:
            words = f"no answer of the coordinator for {self._session_s:g} s (session.timeout.ms)"
            self._lose(Cause(words, _SESSION_TIMEOUT))
        elif now_s >= self._polled_s + self._poll_interval_s:
            self._leave_for_its_owner()

    def doubt(self, cause: Cause, now_s: float) -> None:
        """Its claims may have ended: the coordinator is asked at once, and until it answers the owner has to wait."""
        if self.state in IN_SESSION:
            self._doubt, self._doubted_s, self._heartbeat_s = cause, now_s, now_s

    def next_step(self, now_s: float) -> Step:
        """What to do now. Gives a `Wait` where nothing is due."""
        self.tick(now_s)
        if self._retry_s > now_s:
            return Wait(self._until(self._retry_s))
        if self._farewell is not None:
            return self._farewell
        if self.state not in IN_SESSION:
            return Wait(math.inf)
        step = self._look_up(now_s) if self._topics is None else self._next_step(now_s)
        self._asked = step if isinstance(step, Ask) else None
        return step

    def answered(self, ask: Ask, reply: Mapping[str, Any], since_s: float, now_s: float) -> None:
        """`since_s`: since when the coordinator has known for sure that this member is there."""
        self._backoff.reset()
        if ask.renews:
            self.still_waited_for(ask, since_s, now_s)
        else:
            self.tick(now_s)
        if ask is self._farewell:
            self._said_farewell()
        elif ask is self._asked:
            self._answered(ask, reply, now_s)
            if since_s >= self._doubted_s:
                self._doubt = None
            elif self._doubt is not None:
                self._heartbeat_s = now_s  # an answer of before says nothing

    def still_waited_for(self, ask: Ask, since_s: float, now_s: float) -> None:
        """As `answered`; or it holds its answer back because of others, and counts no session meanwhile."""
        self.tick(now_s)
        if ask is not self._asked:
            return  # it is of a session that is over
        if now_s < since_s + self._session_s:
            self._session_ends_s = since_s + self._session_s
        else:
            words = f"this process has stood still for {now_s - since_s:.0f} s, longer than session.timeout.ms"
            self._lose(Cause(words, _SESSION_TIMEOUT))

    def failed(self, ask: Ask, error: KafkaError, now_s: float) -> None:
        """No answer, or one with an error code, whose row in `broker_errors` says what that ends."""
        if ask is self._farewell:
            if self.state is MemberState.LEAVING and is_retriable(error):
                self._try_again(error, now_s)
            else:
                self._said_farewell()
        elif ask is not self._asked:
            return  # it is of a session that is over
        elif is_retriable(error):
            self._try_again(error, now_s)
            self._unanswered()
        elif isinstance(error, BrokerError) and self._ends_claims(error):
            self._fenced(error)
            if self.state is MemberState.JOINING:
                self._retry_s = now_s + self._backoff.next_s()
            self._lose(Cause.of(error))
        else:
            self.fail(self._in_words(error))

    def found(self, cluster: Metadata, now_s: float) -> None:
        """What was looked up."""
        self._backoff.reset()
        if self.state in IN_SESSION:
            if self._matches_here:
                self._topics = self.subscription.topics(cluster)
            age_s, missing = self._metadata_max_age_s, (self._topics or frozenset()) - there(cluster)
            self._look_up_s = now_s + (min(_MISSING_TOPIC_S, age_s) if missing else age_s)
            self._found(cluster, now_s)

    def not_found(self, error: KafkaError, now_s: float) -> None:
        """Nobody has answered."""
        if is_retriable(error):
            self._look_up_s = now_s + self._backoff.next_s()
        elif self.state in IN_SESSION:
            self.fail(error)

    def fail(self, error: KafkaError) -> None:
        """It cannot be a member, and its owner has to know why."""
        self.error = error
        self._life.transition(MemberState.FAILED, Cause.of(error))
        self._forget_session()

    # -- what both protocols do ---------------------------------------------------------------

    def _ends_claims(self, error: BrokerError) -> bool:
        """Whether to join (again) may help."""
        return error_row(error.code).group_effect is GroupEffect.ASSIGNMENT_LOST

    def _join(self, cause: Cause) -> None:
        self._life.transition(MemberState.JOINING, cause)

    def _lose(self, cause: Cause, *, wait: bool = False) -> None:
        """All claims have ended. Joins again at once if there were none (unless it is to `wait` for its owner)."""
        self._forget_session()
        if self.owned or wait:
            self._life.transition(MemberState.LOST, cause)
        elif self.state is MemberState.JOINING:
            self._life.stay(cause)
        else:
            self._join(cause)

    def _leave_for_its_owner(self) -> None:
        words = (
            f"max.poll.interval.ms: nothing was asked of this member for {self._poll_interval_s:g} s, so it has left "
            "the group; raise it, or take less at once"
        )
        self._farewell = self._leave_request(None)
        self._lose(Cause(words, _MAX_POLL_INTERVAL), wait=True)

    def _said_farewell(self) -> None:
        self._farewell = None
        if self.state is MemberState.LEAVING:
            self._life.transition(MemberState.LEFT, self.cause)

    def _try_again(self, error: KafkaError, now_s: float) -> None:
        self._asked, self._retry_s = None, now_s + self._backoff.next_s()
        if self.state in (MemberState.JOINING, MemberState.SYNCING):
            self._life.stay(Cause.of(error))

    def _until(self, *moments_s: float) -> float:
        """The first of these; in a session, or when that or the owner's time is over."""
        if self.state in IN_SESSION:
            moments_s += self._session_ends_s, self._polled_s + self._poll_interval_s
        return min(moments_s)

    def _look_up(self, now_s: float) -> Step:
        """When it is time for that. Takes no longer than a heartbeat may be late."""
        due = now_s >= self._look_up_s
        return LookUp(self._watched, self._heartbeat_timeout_ms) if due else Wait(self._until(self._look_up_s))

    def _watch(self, now_s: float) -> Step:
        """Until the next heartbeat: looks whether topics have changed, where that is for this member to see."""
        if self._watches and now_s >= self._look_up_s:
            return self._look_up(now_s)
        return Wait(self._until(self._heartbeat_s, self._look_up_s if self._watches else math.inf))

    @property
    def _matches_here(self) -> bool:
        return self.subscription.pattern is not None and not (self.broker_matches and self.subscription.re2)

    @property
    def _heartbeat_timeout_ms(self) -> float:
        """A coordinator that is silent is given up while there is time to find another one."""
        return min(self._request_timeout_ms, self.config.session_timeout_ms / 3)

    def _forget_session(self) -> None:
        self._session_ends_s, self._asked, self._doubt = math.inf, None, None
        self._end_session()

    def _in_words(self, error: KafkaError) -> KafkaError:
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
    def _watches(self) -> bool:
        """Whether it is for this member to see that topics change."""

    @property
    @abstractmethod
    def _watched(self) -> frozenset[str] | None:
        """Those that are looked up; None: all."""

    @property
    @abstractmethod
    def _assigned(self) -> frozenset[TopicPartition]: ...

    @abstractmethod
    def _to_give_up(self) -> frozenset[TopicPartition]:
        """What the owner has to give up in the present state, before the member may go on."""

    @property
    @abstractmethod
    def _may_take(self) -> bool:
        """Whether what is assigned holds just now."""

    @abstractmethod
    def _taken(self) -> None:
        """The owner has what is assigned."""

    @abstractmethod
    def _next_step(self, now_s: float) -> Step: ...

    @abstractmethod
    def _answered(self, ask: Ask, reply: Mapping[str, Any], now_s: float) -> None: ...

    @abstractmethod
    def _found(self, cluster: Metadata, now_s: float) -> None: ...

    @abstractmethod
    def _fenced(self, error: BrokerError) -> None:
        """An answer has ended this member's claims."""

    @abstractmethod
    def _unanswered(self) -> None:
        """A request was heard or not: nobody knows."""

    @abstractmethod
    def _leave_request(self, for_good: bool | None) -> Ask | None:
        """None: there is nobody to be told."""

    @abstractmethod
    def _end_session(self) -> None:
        """Forgets generation or epoch, and what was assigned."""
