"""What a test wants to go wrong, and how often: refusals, lost requests and replies, late replies, other replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import TopicPartition
from protocol.wire.schema import Api
from tests.fake_kafka.requests import Body, Refused

ALWAYS = 10**9
Edit = Callable[[Body], "Body | bytes | None"]


class Kind(Enum):
    """What becomes of a request or of its reply."""

    REFUSED = "answered with an error code, and nothing is done"
    REQUEST_LOST = "the connection is reset before anything is done"
    REPLY_LOST = "done, and the connection is reset"
    REPLY_LATE = "done, and answered later"
    REPLY_EDITED = "done, and answered as a test wants it"


@dataclass
class Fault:
    """`times`: how often it will still happen. None for `broker` or `partition` stands for all of them."""

    kind: Kind
    api: Api
    times: int
    broker: int | None = None
    partition: TopicPartition | None = None
    code: ErrorCode = ErrorCode.NONE
    late_s: float = 0.0
    edit: Edit = field(default=lambda body: body)


class Faults:
    """The faults to come, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def take(self, kind: Kind, api: Api, broker: int, partition: TopicPartition | None = None) -> Fault | None:
        """The next fault of this kind that is meant, once less from now on."""
        for fault in self._faults:
            meant = (fault.broker in (None, broker)) and (fault.partition in (None, partition))
            if fault.kind is kind and fault.api is api and fault.times > 0 and meant:
                fault.times -= 1
                return fault
        return None

    def refuse(self, api: Api, broker: int, partition: TopicPartition | None = None) -> None:
        """Raises `Refused` where a test wants that."""
        fault = self.take(Kind.REFUSED, api, broker, partition)
        if fault is not None:
            raise Refused(fault.code)
