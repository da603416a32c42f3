"""What a member's machine wants to have done next: values that its thread acts upon."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.broker_errors import ErrorCode
from protocol.wire.schema import Api, Body


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
