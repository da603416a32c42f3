"""States, transitions and steps of a member, as data for the state machines of both protocols.

State names are those of Java's `MemberState` where it has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.group.membership.assignment import EndReason
from protocol.wire.schema import Api, Body

log = logging.getLogger(__name__)


class MemberState(Enum):
    """The state of a member. Each has a place in transitions, sets below, and diagrams in `docs/architecture.md`."""

    UNJOINED = "has not joined yet"
    JOINING = "waits for the response to its join request"
    SYNCING = "waits for its assignment"
    RECONCILING = "assignment and owned partitions differ"
    ACKNOWLEDGING = "reports the owned partitions to the coordinator"
    STABLE = "owns the assigned partitions"
    REBALANCING = "must revoke partitions before it rejoins"
    LOST = "has lost its partitions, and its owner does not know yet"
    LEAVING = "is leaving"
    LEFT = "has left"
    FAILED = "has failed with a fatal error"


Transitions = Mapping[MemberState, frozenset[MemberState]]

_S = MemberState


def _transitions(own: Mapping[MemberState, set[MemberState]]) -> Transitions:
    """Add the transitions to the states that end a member."""
    ends = {_S.LEAVING, _S.LEFT, _S.FAILED}
    return {
        **{state: frozenset(to | ends) for state, to in own.items()},
        _S.LEAVING: frozenset({_S.LEFT}),
        _S.FAILED: frozenset({_S.LEAVING, _S.LEFT}),
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
"""Transitions of the classic protocol: JoinGroup, SyncGroup, and heartbeats until the next rebalance."""

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
"""Transitions of the consumer protocol (KIP-848), which revokes and assigns partitions one by one."""

AWAITS_OWNER = frozenset({_S.UNJOINED, _S.RECONCILING, _S.REBALANCING, _S.LOST, _S.FAILED})
"""States that end only when the owner acts."""

IN_SESSION = frozenset({_S.JOINING, _S.SYNCING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE, _S.REBALANCING})
"""States in which the session timeout applies."""

RECONCILED = frozenset({_S.ACKNOWLEDGING, _S.STABLE})
"""States in which the owner has all assigned partitions."""

AWAITING_ASSIGNMENT = frozenset({_S.JOINING, _S.SYNCING})
"""States in which a failed request is a failed join."""

REJOINS_ON_NEW_TOPICS = frozenset({_S.STABLE, _S.RECONCILING})
"""States in which a member of the classic protocol rejoins if the subscribed topics change."""

WITHOUT_ASSIGNMENT = frozenset({_S.LOST, _S.FAILED})
"""States in which the owner's partitions may be another member's."""

CLOSED = frozenset({_S.LEAVING, _S.LEFT})
"""States of a member that its owner has closed."""

TERMINAL = frozenset({_S.LEFT, _S.FAILED})


class Lifecycle:
    """The state of one member, and the reason for it."""

    def __init__(self, name: str, transitions: Transitions) -> None:
        self.state = MemberState.UNJOINED
        self.reason = EndReason("this member has not joined yet")
        self._name = name
        self._transitions = transitions

    def transition(self, to: MemberState, reason: EndReason) -> None:
        """Change the state; raise `AssertionError` for a transition that is not allowed: a bug of this client."""
        if to not in self._transitions.get(self.state, ()):
            raise AssertionError(f"{self._name}: {to.name} may not follow {self.state.name} ({reason})")
        log.debug("%s: %s -> %s: %s", self._name, self.state.name, to.name, reason)
        self.state, self.reason = to, reason

    def update_reason(self, reason: EndReason) -> None:
        """Set another reason for the same state."""
        log.debug("%s: still %s: %s", self._name, self.state.name, reason)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class SendRequest:
    """A request to the coordinator; its response or error is passed to the state machine.

    `at_least`: minimum version of the request.
    `held`: the coordinator may delay the response until other members have acted.
    `renews`: a response restarts the session timeout.
    `accept`: error codes that are responses, not failures.
    `row_of`: field of the reply whose only row is the response; empty: the reply itself.
    """

    api: Api
    body: Body
    timeout_ms: float
    at_least: int = 0
    held: bool = False
    renews: bool = True
    accept: frozenset[int] = field(default=frozenset({ErrorCode.NONE}))
    row_of: str = ""

    def response_in(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Return the response, with its error code, in a reply."""
        response: dict[str, Any] = reply[self.row_of][0] if self.row_of else reply
        return response


@dataclass(frozen=True)
class RefreshMetadata:
    """Fetch metadata of these topics; None: of all topics."""

    topics: frozenset[str] | None
    timeout_ms: float


@dataclass(frozen=True, eq=False)
class CallAssignor:
    """Call the assignor, which may be the user's; its result is passed to the state machine.

    `call` reads nothing that the state machine changes. The state machine calls `process` with the result, unless the
    session has ended.
    """

    call: Callable[[], Any]
    process: Callable[[Any], None]


@dataclass(frozen=True)
class Wait:
    """Do nothing until this time, or until the owner acts; infinite if only the owner can continue."""

    until_s: float


Step = SendRequest | RefreshMetadata | CallAssignor | Wait
