"""Choose the task that takes over: one task of a start does, the others wait for it. Runs on executors.

A takeover fences one in progress, and tasks cannot communicate. So each task observes the producer that writes the
ledger. If the producer is at rest, and still is after a random delay, the task takes over. Otherwise another task has
begun, or the driver of the older start is deciding: the task waits for a limited time, since that producer may be dead.
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
    """The producer that writes the ledger.

    Attributes
    ----------
    identity : TransactionalIdentity or None
        None before Kafka 3.0, where only delays keep tasks apart.
    is_at_rest : bool
        Its last transaction is complete, and no other one has begun.
    """

    identity: TransactionalIdentity | None
    is_at_rest: bool


class TakeOverTurn:
    """Decides when a task may take over. `ask_holder` sends the request."""

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
        """Return True to take over now. If the takeover fails, the next turn comes later."""
        if self._now_s() < self._next_s:
            return False
        before, self._holder = self._holder, self._ask_holder()
        self._next_s = self._after_another_s()
        # Neither at rest nor changed: the task that began a takeover is dead or slow.
        return self._holder.is_at_rest or self._holder.identity == before.identity

    def wait(self) -> None:
        """Wait until the turn may have come, or until the ledger should be checked again."""
        if self._deadline.passed:
            raise DeadlineExceeded(
                "another task of this start began to take over the query's ledger, and has not completed"
            )
        wait_s = min(self._next_s - self._now_s(), _LOOK_S * random.uniform(0.5, 1))  # noqa: S311
        self._deadline.clock.sleep_s(min(wait_s, self._deadline.remaining_s()))

    def _after_another_s(self) -> float:
        """Return the time by which another task should be done; the wait doubles each time."""
        wait_s = self._patience_s * random.uniform(1, 2)  # noqa: S311
        self._patience_s = min(2 * self._patience_s, _MOST_S)
        return self._now_s() + wait_s

    def _now_s(self) -> float:
        return self._deadline.clock.now_s()
