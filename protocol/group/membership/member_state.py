"""States, transitions and steps of a member, as data for the state machines of both protocols.

State names are those of Java's `MemberState` where it has them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from protocol.broker_errors import ErrorCode
from protocol.errors import UsageError
from protocol.group.membership.assignment import EndReason
from protocol.wire.schema import Api, Body

log = logging.getLogger(__name__)


class MemberState(Enum):
    """What a member is doing, for the coordinator and for its owner."""

    UNJOINED = "is no member yet"
    JOINING = "asks to be let in"
    SYNCING = "waits for what it is assigned"
    RECONCILING = "was assigned something else than its owner has"
    ACKNOWLEDGING = "tells the coordinator what its owner has"
    STABLE = "has what it was assigned"
    REBALANCING = "must give up partitions before it may join again"
    LOST = "has lost its claims, and its owner does not know"
    LEAVING = "is leaving"
    LEFT = "has left"
    FAILED = "cannot be a member"


Transitions = Mapping[MemberState, frozenset[MemberState]]

_S = MemberState


def _transitions(own: Mapping[MemberState, set[MemberState]]) -> Transitions:
    """What any living member may do beside its own moves: leave, and fail."""
    ends = {_S.LEAVING, _S.LEFT, _S.FAILED}
    return {
        **{state: frozenset(to | ends) for state, to in own.items()},
        _S.LEAVING: frozenset({_S.LEFT}),
        _S.FAILED: frozenset({_S.LEFT}),
        _S.LEFT: frozenset(),
    }


CLASSIC_TRANSITIONS = _transitions(
    {
        _S.UNJOINED: {_S.JOINING},
        _S.JOINING: {_S.SYNCING, _S.LOST},
        _S.SYNCING: {_S.RECONCILING, _S.STABLE, _S.REBALANCING, _S.JOINING, _S.LOST},
        _S.RECONCILING: {_S.STABLE, _S.REBALANCING, _S.JOINING, _S.LOST},
        _S.STABLE: {_S.REBALANCING, _S.JOINING, _S.LOST},
        _S.REBALANCING: {_S.JOINING, _S.LOST},
        _S.LOST: {_S.JOINING},
    }
)
"""JoinGroup, SyncGroup, and Heartbeat until the group rebalances."""

CONSUMER_TRANSITIONS = _transitions(
    {
        _S.UNJOINED: {_S.JOINING},
        _S.JOINING: {_S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE, _S.LOST},
        _S.RECONCILING: {_S.ACKNOWLEDGING, _S.STABLE, _S.JOINING, _S.LOST},
        _S.ACKNOWLEDGING: {_S.RECONCILING, _S.STABLE, _S.JOINING, _S.LOST},
        _S.STABLE: {_S.RECONCILING, _S.ACKNOWLEDGING, _S.JOINING, _S.LOST},
        _S.LOST: {_S.JOINING},
    }
)
"""KIP-848: one kind of request, and partitions change hands one by one."""

AWAITS_OWNER = frozenset({_S.UNJOINED, _S.RECONCILING, _S.REBALANCING, _S.LOST, _S.FAILED})
"""Where a member goes on only when its owner has acted."""

IN_SESSION = frozenset({_S.JOINING, _S.SYNCING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE, _S.REBALANCING})
"""Where the coordinator counts on the member, or soon will."""

RECONCILED = frozenset({_S.ACKNOWLEDGING, _S.STABLE})
"""Where the owner has all that was assigned."""

TERMINAL = frozenset({_S.LEFT, _S.FAILED})


class Lifecycle:
    """The state of one member, and why it is in it."""

    def __init__(self, name: str, transitions: Transitions) -> None:
        self.state = MemberState.UNJOINED
        self.reason = EndReason("it has not joined the group yet")
        self._name = name
        self._transitions = transitions

    def transition(self, to: MemberState, reason: EndReason) -> None:
        """The only way into another state. Raises `UsageError` for one that may not follow: a fault in this client."""
        if to not in self._transitions.get(self.state, ()):
            raise UsageError(f"{self._name}: {to.name} may not follow {self.state.name} ({reason})")
        log.debug("%s: %s -> %s: %s", self._name, self.state.name, to.name, reason)
        self.state, self.reason = to, reason

    def update_reason(self, reason: EndReason) -> None:
        """It is in the same state for another reason now."""
        log.debug("%s: still %s: %s", self._name, self.state.name, reason)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class SendRequest:
    """One request to the coordinator; its reply, or why there is none, goes to the machine.

    `held`: the coordinator answers when other members have acted. `renews`: who is answered has a whole session before
    it. `accept`: error codes that are an answer.
    """

    api: Api
    body: Body
    timeout_ms: float
    at_least: int = 0
    held: bool = False
    renews: bool = True
    accept: frozenset[int] = field(default=frozenset({ErrorCode.NONE}))


@dataclass(frozen=True)
class RefreshMetadata:
    """Metadata of these topics; None: of all."""

    topics: frozenset[str] | None
    timeout_ms: float


@dataclass(frozen=True)
class Wait:
    """Nothing, until then or until the owner acts. Infinite where only the owner can go on."""

    until_s: float


Step = SendRequest | RefreshMetadata | Wait
