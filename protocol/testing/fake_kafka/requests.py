"""Types of requests, pending replies and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.wire.schema import Api

Body = dict[str, Any]

Pending = Callable[[], "Body | None"]
"""A pending reply (Kafka's delayed operation): returns None until the reply is due."""


@dataclass(frozen=True)
class TimedPending:
    """A pending reply that is due by a time of the cluster's clock at the latest."""

    look: Pending
    until_s: float

    def __call__(self) -> Body | None:
        """Return the reply, or None until it is due."""
        return self.look()


ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection without SASL."""


@dataclass(frozen=True)
class Request:
    """A request as a broker decodes it, and the principal of its connection."""

    api: Api
    version: int
    body: Body
    client_id: str = ""
    principal: str = ANONYMOUS


class Refused(Exception):
    """A request, or one partition's part of it, fails with an error code; `fields` are the other fields of that row."""

    def __init__(self, code: ErrorCode, **fields: Any) -> None:
        super().__init__(code.name)
        self.code = code
        self.fields = fields


def row_of(act: Callable[[], Body], **identity: Any) -> Body:
    """Return a partition's row of a reply: `identity`, and the result of `act` or the code of its refusal."""
    try:
        return {**identity, "error_code": ErrorCode.NONE, **act()}
    except Refused as refusal:
        return {**identity, "error_code": refusal.code, **refusal.fields}
