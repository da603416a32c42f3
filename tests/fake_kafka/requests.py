"""What goes in and out of the model: requests, replies that are not due yet, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.wire.schema import Api

Body = dict[str, Any]

Pending = Callable[[], "Body | None"]
"""A reply that is not due yet: called again and again, it gives None until it is. Kafka's delayed operation."""


@dataclass(frozen=True)
class Request:
    """One request as a broker has read it."""

    api: Api
    version: int
    body: Body
    client_id: str = ""


class Refused(Exception):
    """A request, or one partition's part of it, is answered with an error code; `fields` are the rest of that row."""

    def __init__(self, code: ErrorCode, **fields: Any) -> None:
        super().__init__(code.name)
        self.code = code
        self.fields = fields


def row_of(act: Callable[[], Body], **identity: Any) -> Body:
    """A partition's row of a reply: who it is about, and what `act` gives, or the code that it was refused with."""
    try:
        return {**identity, "error_code": ErrorCode.NONE, **act()}
    except Refused as refusal:
        return {**identity, "error_code": refusal.code, **refusal.fields}
