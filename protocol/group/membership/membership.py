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
from protocol.group.membership.assignment import Assignment, Revocation
from protocol.group.membership.cause import Cause
from protocol.group.membership.classic import ClassicMember
from protocol.group.membership.consumer import ConsumerMember
from protocol.group.membership.machine import NOTHING, MemberMachine
from protocol.group.membership.states import OVER, MemberState
from protocol.group.membership.steps import Ask, LookUp
from protocol.group.membership.topic_subscription import TopicSubscription
from protocol.net.readiness import ready

log = logging.getLogger(__name__)

# The machine is told this often that time has passed, or that a coordinator holds back an answer.
_STILL_WAITING_S = 1.0
_HANG_UP_AGAIN_S = 0.1
# When nobody has looked at the clock for so long, this process has stood still.
_STOOD_STILL_S = 3.0
# Whose requests have failed for so long says it: its owner just sees that nothing comes.
_FAILING_S = 10.0
LEAVE_MS = 5_000

_MACHINES: dict[str, type[MemberMachine]] = {"classic": ClassicMember, "consumer": ConsumerMember}
_numbers = itertools.count(1)


class Membership:
    """One member of the group `config.group_id`, by the protocol `config.group_protocol`.

    Joins with the first `take_up`. `on_member` is told of each new generation or epoch, and of none any more, from
    whichever thread finds it: `OffsetManager.join`. It must not call this member. Raises `ConfigurationError` for what
    cannot be a member.
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
        self._told = self._machine.state, self._machine.member
        self._changed = Condition()
        self._asks: Ask | None = None
        self._looked_s = self._clock.now_s()
        self._failing_since_s: float | None = None
        self._has_warned = False
        # Topics that metadata do not tell this user of, and the error until the owner has taken it.
        self._hidden: frozenset[str] = frozenset()
        self._refusal: BrokerError | None = None
        self._thread: threading.Thread | None = None

    # -- for the owner ------------------------------------------------------------------------

    @property
    def rebalance_pending(self) -> Cause | None:
        """Why `take_up` is to be called; None: all is as it was. Costs nothing.

        To be asked before anything is committed or handed out, also after a long sleep: who has slept for longer than
        its session has no claims any more.
        """
        with self._changed:
            try:
                return self._machine.pending(self._now_s())
            finally:
                self._tell()

    @property
    def claims_ended(self) -> Cause | None:
        """Why what this member has is not its own any more, or may not be; None: it is. Costs nothing.

        While others join, a member keeps what it has: then `rebalance_pending` says so, and this does not.
        """
        with self._changed:
            try:
                return self._machine.claims_ended(self._now_s())
            finally:
                self._tell()

    @property
    def member(self) -> GroupMember:
        """Who commits, as the coordinator knows it just now."""
        with self._changed:
            return self._machine.member

    @property
    def owned(self) -> frozenset[tuple[str, int]]:
        with self._changed:
            return self._machine.owned

    def take_refusal(self) -> BrokerError | None:
        """Names topics that the group reads and this user may not know of: who leads assigns them to nobody. Once."""
        with self._changed:
            refusal, self._refusal = self._refusal, None
            return refusal

    def progress(self) -> None:
        """The owner is at work: `max.poll.interval.ms` begins anew. `take_up` says so, too."""
        with self._changed:
            self._machine.progress(self._now_s())
            self._tell()

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Subscribes to something else. What that brings is taken up as any other rebalance."""
        with self._changed:
            self._machine.subscribe(subscription, self._clock.now_s())
            self._changed.notify_all()

    def take_up(
        self, deadline: Deadline, before_revoke: Callable[[Revocation], None] = lambda revocation: None
    ) -> Assignment:
        """Goes along with the group: joins, gives up, takes what is assigned, until nothing is pending or `deadline`.

        `before_revoke` is called in this thread with what has to go. What it raises is raised here, and nothing is
        given up. When other members are slow, `Assignment.joining` says why more is still to come: the member's thread
        goes on, and `rebalance_pending` tells when it has come.

        Raises `KafkaError` when this cannot be a member, for good: no right to the group, no strategy in common with
        the others, another member with its instance id, brokers that do not speak the protocol.
        """
        self._start()
        added = NOTHING
        while True:
            with self._changed:
                now_s = self._now_s()
                self._machine.progress(now_s)
                self._raise_if_over()
                revocation = self._machine.revocation(now_s)
                if revocation is None:
                    added |= self._machine.take(now_s)
                    self._tell()
                    if self._machine.settled or deadline.passed:
                        joining = None if self._machine.settled else self._machine.cause
                        return Assignment(self._machine.member, self._machine.owned, added, joining)
                    self._changed.wait(min(deadline.remaining_s(), _STILL_WAITING_S))
                    continue
            if revocation.lost:
                words = self._client.format_error(revocation.cause.error)
                log.warning("group %s: all claims are lost: %s", self._machine.group, words)
            before_revoke(revocation)
            added -= revocation.partitions
            with self._changed:
                self._machine.give_up(revocation, self._clock.now_s())
                self._tell()

    def close(self, leave: bool | None = None, timeout_ms: float = LEAVE_MS) -> None:
        """Leaves the group at once, and ends the thread. What is to be committed should be by now.

        leave : False: the coordinator is not told, and waits for the session's end; None: of a static member, so
            that it may come back to what it had (KIP-345).
        """
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        with self._changed:
            try:
                while self._machine.is_being_named and not deadline.passed:
                    self._changed.wait(min(deadline.remaining_s(), _STILL_WAITING_S))
            finally:  # also at Ctrl-C
                self._machine.leave(for_good=leave)
                self._tell()
            asked = self._asks
            while asked is not None and self._asks is asked and not deadline.passed:
                self._client.hang_up(self._purpose)  # what is not sent yet will wait for an answer, too
                self._changed.wait(min(deadline.remaining_s(), _HANG_UP_AGAIN_S))
        if self._thread is not None:
            self._thread.join(deadline.remaining_s())
        with self._changed:
            self._machine.leave(for_good=False)  # without an answer, if there is none by now
            self._tell()
        self._client.hang_up(self._purpose)

    def __enter__(self) -> Membership:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _raise_if_over(self) -> None:
        if self._machine.error is not None:
            raise self._machine.error
        if self._machine.state in OVER or self._machine.state is MemberState.LEAVING:
            raise UsageError(f"this member of group {self._machine.group} was closed")

    def _tell(self) -> None:
        """Under the lock, after whatever may have changed the member."""
        before, self._told = self._told, (self._machine.state, self._machine.member)
        if self._told != before:
            self._changed.notify_all()
        if self._told[1] != before[1]:
            self._on_member(self._told[1])

    # -- the thread ---------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            name = f"{self._purpose} of {self._machine.group}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while (step := self._next_step()) is not None:
                if isinstance(step, Ask):
                    self._ask(step)
                else:
                    self._look_up(step)
        except Exception as fault:  # the owner has to hear of it: nobody else speaks for this member
            log.exception("group %s: an unexpected fault ends this member", self._machine.group)
            with self._changed:
                error = UsageError(f"a fault in this client: {fault!r}")
                error.__cause__ = fault
                self._machine.fail(error)
                self._tell()

    def _next_step(self) -> Ask | LookUp | None:
        """Waits until there is something to do; None: nothing ever."""
        with self._changed:
            while self._machine.state not in OVER:
                now_s = self._now_s()
                step = self._machine.next_step(now_s)
                self._tell()
                if isinstance(step, (Ask, LookUp)):
                    self._asks = step if isinstance(step, Ask) else None
                    return step
                self._changed.wait(min(max(0.0, step.until_s - now_s), _STILL_WAITING_S))
            return None

    def _ask(self, ask: Ask) -> None:
        """One attempt in the one retry loop, which looks the coordinator up anew. The machine says when again."""
        deadline = Deadline.after_ms(ask.timeout_ms, self._clock)
        since_s = self._clock.now_s()

        def attempt() -> dict[str, Any]:
            nonlocal since_s
            broker = self._client.coordinator(self._coordinator, deadline)
            since_s = self._clock.now_s()
            options: dict[str, Any] = {"purpose": self._purpose, "at_least": ask.at_least}
            reply = self._client.send(broker, ask.api, ask.body, deadline, **options)
            while not ready([reply], _STILL_WAITING_S, deadline) and not deadline.passed:
                since_s = self._still_waiting(ask, since_s)
            body = reply.result(deadline)
            if body["error_code"] not in ask.accept:
                own = f": {body['error_message']}" if body.get("error_message") else ""
                what = f"{ask.api.name} for {self._coordinator} at {broker}{own}"
                about = {"api": ask.api.name, "topic": ", ".join(sorted(self._machine.subscription.names))}
                raise broker_error(body["error_code"], what, **about, **self._coordinator.context)
            return body

        what = f"{ask.api.name} for {self._coordinator}"
        key = self._coordinator
        try:
            body = self._client.retrying(what, attempt, deadline, coordinator_of=key, max_attempts=1)
        except KafkaError as error:
            self._note(error)
            tell = partial(self._machine.failed, ask, _of_attempt(error))
        else:
            self._note(None)
            tell = partial(self._machine.answered, ask, body, since_s)
        self._hand_over(tell)

    def _look_up(self, step: LookUp) -> None:
        deadline = Deadline.after_ms(step.timeout_ms, self._clock)
        try:
            cluster = self._client.metadata(step.topics, deadline)
        except KafkaError as error:
            self._note(error)
            tell = partial(self._machine.not_found, error)
        else:
            self._note(None)
            self._note_hidden(step.topics or frozenset(), cluster)
            tell = partial(self._machine.found, cluster)
        self._hand_over(tell)

    def _note(self, failure: KafkaError | None) -> None:
        """Says it, once, when requests have failed for a while, and when they go through again."""
        now_s, group = self._clock.now_s(), self._machine.group
        if failure is None:
            if self._has_warned:
                log.warning("group %s: requests of this member go through again", group)
            self._failing_since_s, self._has_warned = None, False
            return
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s >= _FAILING_S and not self._has_warned:
            self._has_warned = True
            words = self._client.format_error(_of_attempt(failure))
            log.warning("group %s: requests of this member fail, and are tried again: %s", group, words)

    def _note_hidden(self, watched: frozenset[str], cluster: Metadata) -> None:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        hidden = frozenset(name for name in watched & cluster.topics.keys() if cluster.topics[name].error_code == code)
        with self._changed:
            if hidden - self._hidden:
                names, group = ", ".join(sorted(hidden)), self._machine.group
                words = f"group {group}: nobody is assigned the partitions of {names}"
                self._refusal = broker_error(code, words, api="Metadata", topic=names)
            self._hidden = hidden

    def _hand_over(self, tell: Callable[[float], None]) -> None:
        with self._changed:
            self._asks = None
            try:
                tell(self._clock.now_s())
            except KafkaError as error:  # such as bytes of another member that make no sense
                self._machine.fail(error)
            self._tell()
            self._changed.notify_all()

    def _still_waiting(self, ask: Ask, since_s: float) -> float:
        """Since when the coordinator is known to hold an answer back, rather than to be silent."""
        with self._changed:
            now_s = self._now_s()
            if ask.held:
                self._machine.still_waited_for(ask, since_s, now_s)
            self._tell()
            return now_s if ask.held else since_s

    def _now_s(self) -> float:
        """Under the lock. Brokers alone know when a session of KIP-848 ends, so after a long sleep they are asked."""
        now_s = self._clock.now_s()
        if self._thread is not None and now_s - self._looked_s >= _STOOD_STILL_S:
            words = f"this process has stood still for {now_s - self._looked_s:.0f} s, and may have lost its claims"
            self._machine.doubt(Cause(words), now_s)
        self._looked_s = now_s
        return now_s


def _of_attempt(error: KafkaError) -> KafkaError:
    """What was wrong, without that it was tried once."""
    return error.__cause__ if isinstance(error, DeadlineExceeded) and isinstance(error.__cause__, KafkaError) else error
