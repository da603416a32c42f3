"""A leader's state of one producer: its epoch, its last five record batches, and the start of its transaction.

The rules are those of Kafka's `ProducerAppendInfo` and `ProducerStateEntry`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Refused

_REMEMBERED = 5
_SEQUENCES = 2**31


def last_sequence(base_sequence: int, count: int) -> int:
    """Return the sequence number of the last record of a batch."""
    return (base_sequence + count - 1) % _SEQUENCES


@dataclass(frozen=True)
class Written:
    """One written record batch."""

    base_sequence: int
    last_sequence: int
    base_offset: int


@dataclass
class ProducerState:
    """State of one producer in one log."""

    epoch: int
    batches: deque[Written] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    transaction_from: int | None = None
    """Offset of the first record of its open transaction in this log."""

    def copy(self) -> ProducerState:
        """Return a copy, as a follower has it."""
        return ProducerState(self.epoch, self.batches.copy(), self.transaction_from)

    def duplicate_of(self, epoch: int, base_sequence: int, count: int) -> Written | None:
        """Return the equal record batch among the last five."""
        if epoch != self.epoch:
            return None
        key = (base_sequence, last_sequence(base_sequence, count))
        return next((batch for batch in self.batches if (batch.base_sequence, batch.last_sequence) == key), None)

    def check_epoch(self, epoch: int) -> None:
        """Raise `Refused` for an older epoch."""
        if epoch < self.epoch:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH)

    def check_sequence(self, epoch: int, base_sequence: int) -> None:
        """Check the sequence number: 0 in a new epoch, and in one with only a marker so far."""
        is_current = epoch == self.epoch and bool(self.batches)
        expected = (self.batches[-1].last_sequence + 1) % _SEQUENCES if is_current else 0
        if base_sequence != expected:
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def add(self, epoch: int, written: Written) -> None:
        """Add a written batch, which may begin an epoch."""
        self.begin_epoch(epoch)
        self.batches.append(written)

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch without batches, unless it is the present one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
