"""Which task takes over: one of a start, while the others wait for it.

A take-over fences the one in progress, and tasks do not know of each other. So each looks at the producer that writes
the ledger. If that is at rest, and still is after a random time, the task begins. If it is not, another task has begun,
or the driver of the older start decides, and the task waits for a limited time, since that producer may be dead.
Runs in the executors.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from protocol.clock import Deadline
from protocol.errors import DeadlineExceeded
from protocol.transaction.states import TransactionalIdentity

_SPREAD_S = 0.1
_TAKE_OVER_S = 0.5
_MOST_S = 16.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Holder:
    """The producer that has written the ledger, or is about to.

    Attributes
    ----------
    identity : None where brokers do not tell (before Kafka 3.0): there time alone keeps tasks apart.
    is_at_rest : its last transaction is complete, and no other has begun.
    """

    identity: TransactionalIdentity | None
    is_at_rest: bool


class TakeOverTurn:
    """When a task may take over. `ask_holder` asks brokers."""

    def __init__(self, ask_holder: Callable[[], Holder], deadline: Deadline) -> None:
        self._ask_holder = ask_holder
        self._deadline = deadline
        self._patience_s = _TAKE_OVER_S
        self._holder = ask_holder()
        if self._holder.is_at_rest:
            self._next_s = self._now_s() + random.uniform(0, _SPREAD_S)  # noqa: S311
        else:
            self._next_s = self._after_another_s()

    def has_come(self) -> bool:
        """Return whether to take over now. If that fails, the next turn comes later."""
        if self._now_s() < self._next_s:
            return False
        before, self._holder = self._holder, self._ask_holder()
        self._next_s = self._after_another_s()
        # Not at rest and the same as before: the task that began to take over is dead, or slow.
        return self._holder.is_at_rest or self._holder.identity == before.identity

    def wait(self) -> None:
        """Until the turn may have come, or it is time to look whether another task is done."""
        if self._deadline.passed:
            raise DeadlineExceeded("other tasks of this start were to take over the query's ledger, and have not")
        wait_s = min(self._next_s - self._now_s(), _LOOK_S * random.uniform(0.5, 1))  # noqa: S311
        self._deadline.clock.sleep_s(min(wait_s, self._deadline.remaining_s()))

    def _after_another_s(self) -> float:
        """When another task should be done; more time with each that is not."""
        wait_s = self._patience_s * random.uniform(1, 2)  # noqa: S311
        self._patience_s = min(2 * self._patience_s, _MOST_S)
        return self._now_s() + wait_s

    def _now_s(self) -> float:
        return self._deadline.clock.now_s()
