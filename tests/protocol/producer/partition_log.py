"""One partition's log at a broker, with Kafka's rules for producer ids, epochs and sequence numbers.

For tests of `PartitionProducer`: the broker's replies, without a broker. As in Kafka's producer state: the last five
record batches are cached, a producer without state may start with any number, a new epoch starts with 0.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.broker_errors import ErrorCode

_REMEMBERED = 5
_WRAP = 2**31


@dataclass
class _State:
    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """(first sequence, last sequence, base offset)"""


@dataclass
class PartitionLog:
    """`values` are the records in order; a batch may have `largest` of them, and none of `too_large`."""

    largest: int = 1_000_000
    too_large: frozenset[int] = frozenset()
    values: list[int] = field(default_factory=list)
    _producers: dict[int, _State] = field(default_factory=dict)

    def append(self, producer_id: int, epoch: int, sequence: int, values: list[int]) -> tuple[int, int]:
        """Return (error code, base offset) as the broker replies."""
        if len(values) > self.largest or not self.too_large.isdisjoint(values):
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if producer_id < 0:
            return ErrorCode.NONE, self._write(values)
        last = (sequence + len(values) - 1) % _WRAP
        state = self._producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if state is not None and epoch == state.epoch:
            for first_known, last_known, offset in state.batches:
                if (first_known, last_known) == (sequence, last):
                    return ErrorCode.NONE, offset
            if sequence != (state.batches[-1][1] + 1) % _WRAP:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        elif state is not None and sequence != 0:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if state is None or epoch != state.epoch:
            state = self._producers[producer_id] = _State(epoch)
        offset = self._write(values)
        state.batches.append((sequence, last, offset))
        return ErrorCode.NONE, offset

    def truncate(self, length: int) -> None:
        """Simulate an unclean election: the records after `length` are lost, with the producer state from them."""
        del self.values[length:]
        for state in self._producers.values():
            while state.batches and state.batches[-1][2] >= length:
                state.batches.pop()
        self._producers = {key: state for key, state in self._producers.items() if state.batches}

    def _write(self, values: list[int]) -> int:
        base_offset = len(self.values)
        self.values += values
        return base_offset
