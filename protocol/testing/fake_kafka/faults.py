"""Faults that a test requests, with their number: refusals, lost requests and replies, delayed or edited replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from protocol.base.spelling import closest_match
from protocol.broker_errors import ErrorCode
from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.requests import Body, Refused
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api

ALWAYS = 10**9
_OF_ROWS = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})
"""Codes of rows only, also in a request that other codes refuse as a whole."""
Edit = Callable[[Body], "Body | bytes | None"]


def api_of(kind: Api | str) -> Api:
    """Return the API of a request kind, which may be its name in Kafka, such as "Produce"; raise `UsageError`."""
    if isinstance(kind, Api):
        return kind
    by_name = {api.name: api for api in API_BY_KEY.values()}
    if kind not in by_name:
        near = closest_match(kind, by_name)
        raise UsageError(f"{kind} is no kind of request{f'; did you mean {near}?' if near else ''}")
    return by_name[kind]


def code_of(code: ErrorCode | str) -> ErrorCode:
    """Return an error code, which may be given by its name in Kafka; raise `UsageError`."""
    if isinstance(code, ErrorCode):
        return code
    if code not in ErrorCode.__members__:
        near = closest_match(code, ErrorCode.__members__)
        raise UsageError(f"{code} is no error code of Kafka{f'; did you mean {near}?' if near else ''}")
    return ErrorCode[code]


class Kind(Enum):
    """Effect on a request or its reply."""

    REFUSED = "answered with an error code, and nothing is done"
    REQUEST_LOST = "the connection is reset before anything is done"
    REPLY_LOST = "done, and the connection is reset"
    REPLY_LATE = "done, and answered later"
    REPLY_EDITED = "done, and answered as a test wants it"


@dataclass
class Fault:
    """A fault that happens `times` more often. None for `broker` or `partition` matches all."""

    kind: Kind
    api: Api
    times: int
    broker: int | None = None
    partition: TopicPartition | None = None
    code: ErrorCode = ErrorCode.NONE
    late_s: float = 0.0
    edit: Edit = field(default=lambda body: body)


class Faults:
    """The pending faults, in the order of their requests."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Add a fault after the pending ones."""
        self._faults.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def take(self, kind: Kind, api: Api, broker: int, partition: TopicPartition | None = None) -> Fault | None:
        """Return the next matching fault of this kind, and count it down."""
        for fault in self._faults:
            if fault.api is not api or fault.kind is not kind or fault.times <= 0:
                continue
            meant = (fault.broker in (None, broker)) and (fault.partition in (None, partition))
            if meant and (partition is not None or fault.code not in _OF_ROWS):
                fault.times -= 1
                return fault
        return None

    def refuse(self, api: Api, broker: int, partition: TopicPartition | None = None) -> None:
        """Raise `Refused` if a test requested a refusal."""
        fault = self.take(Kind.REFUSED, api, broker, partition)
        if fault is not None:
            raise Refused(fault.code)
