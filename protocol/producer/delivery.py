"""The rows of one record batch on their way to a broker, from when they are handed to the sender until they have ended.

`Delivery` is one record batch's rows, also after it was split. `Deliveries` is the account of all of a producer's that
have not ended: what memory they take, what of them failed, and who waits for them. Made by `intake` in the callers'
threads, ended by `sender` in its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from protocol.clock import Deadline
from protocol.condition import Condition
from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProducedRange:
    """What brokers acknowledged of one partition. Offsets are -1 where no broker told them (acks=0)."""

    first_offset: int = -1
    last_offset: int = -1
    count: int = 0

    def plus(self, base_offset: int, count: int) -> ProducedRange:
        """With `count` more records, from `base_offset` on (-1: no broker told it)."""
        if base_offset < 0:
            return ProducedRange(self.first_offset, self.last_offset, self.count + count)
        first = base_offset if self.first_offset < 0 else min(self.first_offset, base_offset)
        return ProducedRange(first, max(self.last_offset, base_offset + count - 1), self.count + count)


class Outcome(NamedTuple):
    """What became of consecutive rows of one partition: written from `base_offset` on, or not, which is the error.

    `base_offset` is -1 where no broker told it (acks=0), `log_append_time_ms` unless the topic has LogAppendTime.
    """

    base_offset: int = -1
    log_append_time_ms: int = -1
    error: KafkaError | None = None


class Receipt(Protocol):
    """Who waits for the rows of one call. Called in the sender's thread."""

    @property
    def tells_failures(self) -> bool:
        """Whether it tells failures itself, so that `flush` need not."""

    def settle(self, partition: int, first: int, count: int, outcome: Outcome) -> None:
        """`count` of its rows for `partition`, from the one that is its `first` there, have ended."""


class ReceiptPart(NamedTuple):
    """Some rows of a receipt, from the one that is the `first` of its rows for the partition."""

    receipt: Receipt
    first: int
    rows: int


@dataclass(eq=False)
class Delivery:
    """`receipts` are of its rows, in their order; `trouble` is the last thing that went wrong."""

    topic: str
    partition: int
    size_bytes: int
    rows_left: int
    receipts: Sequence[ReceiptPart] = ()
    trouble: KafkaError | None = None

    @property
    def tells_failures(self) -> bool:
        """Whether all of its receipts do."""
        return bool(self.receipts) and all(part.receipt.tells_failures for part in self.receipts)

    def settle(self, first_row: int, count: int, outcome: Outcome) -> None:
        """`count` of its rows from `first_row` on have ended."""
        self.rows_left -= count
        begin, end = 0, first_row + count
        for receipt, first, rows in self.receipts:
            low, high = max(begin, first_row), min(begin + rows, end)
            if low < high:
                base = outcome.base_offset
                told = outcome._replace(base_offset=base + low - first_row) if base >= 0 else outcome
                receipt.settle(self.partition, first + low - begin, high - low, told)
            begin += rows


class Ended(NamedTuple):
    """How some rows of a delivery have ended, from `first_row` on."""

    delivery: Delivery
    first_row: int
    rows: int
    outcome: Outcome


@dataclass(eq=False)
class Deliveries:
    """Thread-safe. `failures`: those not raised or returned yet. `words`: the text of an error in a log line."""

    words: Callable[[KafkaError], str] = str
    acknowledged: dict[TopicPartition, ProducedRange] = field(default_factory=dict)
    failures: list[KafkaError] = field(default_factory=list)
    held_bytes: int = 0
    _under_way: dict[Delivery, None] = field(default_factory=dict)
    _changed: Condition = field(default_factory=Condition)

    def begin(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            self._under_way.update(dict.fromkeys(deliveries))
            self.held_bytes += sum(each.size_bytes for each in deliveries)

    def end(self, ended: Sequence[Ended]) -> None:
        """Tells the receipts of what has ended, then those who wait for it here."""
        with self._changed:
            for delivery, _, count, outcome in ended:
                key, error = (delivery.topic, delivery.partition), outcome.error
                if error is None:
                    before = self.acknowledged.get(key, ProducedRange())
                    self.acknowledged[key] = before.plus(outcome.base_offset, count)
                elif error not in self.failures and not delivery.tells_failures:
                    self.failures.append(error)
        for delivery, first_row, count, outcome in ended:
            delivery.settle(first_row, count, outcome)
        with self._changed:
            for delivery, *_ in ended:
                if not delivery.rows_left:
                    self._under_way.pop(delivery, None)
                    self.held_bytes -= delivery.size_bytes
            self._changed.notify_all()

    def failed(self, errors: Sequence[KafkaError]) -> None:
        """Of rows that were never under way."""
        if errors:
            with self._changed:
                self.failures += [error for error in errors if error not in self.failures]
                self._changed.notify_all()

    def was_told(self, error: KafkaError) -> None:
        """Somebody knows of this failure."""
        with self._changed:
            if error in self.failures:
                self.failures.remove(error)

    def take_failures(self) -> list[KafkaError]:
        with self._changed:
            taken, self.failures = self.failures, []
            return taken

    def raise_failures(self) -> None:
        """Raise the first of `failures`, log the others, and forget them."""
        if failures := self.take_failures():
            first, *others = failures
            for other in others:
                log.warning("another write failed: %s", self.words(other))
            raise first

    def begin_account(self) -> None:
        with self._changed:
            self.acknowledged = {}

    def acknowledged_now(self) -> dict[TopicPartition, ProducedRange]:
        with self._changed:
            return dict(self.acknowledged)

    def wait(self, deadline: Deadline, *, despite_failures: bool = False) -> list[Delivery]:
        """Until all that is under way now has ended, something has failed, or the deadline: what has not ended then."""
        with self._changed:
            waiting = list(self._under_way)
            while not self._have_ended(waiting) and (despite_failures or not self.failures) and not deadline.passed:
                self._changed.wait(deadline.remaining_s())
            return [each for each in waiting if each in self._under_way]

    def _have_ended(self, waiting: list[Delivery]) -> bool:
        """Whether all have. Looks at each once, however often it is called: takes those at the end that have."""
        while waiting and waiting[-1] not in self._under_way:
            waiting.pop()
        return not waiting

    def wake(self) -> None:
        """Who waits looks again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_room(self, fits: Callable[[], bool], timeout_s: float | None, *, despite_failures: bool) -> bool:
        """Wait until `fits()`; False when no delivery has ended for `timeout_s`.

        Raises
        ------
        KafkaError
            As `raise_failures`, unless `despite_failures`, for a caller whom failures do not concern.
        """
        with self._changed:
            while not fits():
                if not despite_failures:
                    self.raise_failures()
                if not self._changed.wait(timeout_s):
                    return False
            return True
