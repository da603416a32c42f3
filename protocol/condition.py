"""Conditions and events that keep their lock consistent when Ctrl-C interrupts a wait.

`threading.Condition.wait` releases its lock before the `try` block that reacquires it. An interrupt between the two
leaves the lock unheld: the surrounding `with` then raises `RuntimeError` or releases a lock that another thread holds.
"""

from __future__ import annotations

import threading
from typing import Any


class Condition(threading.Condition):
    """`threading.Condition` on a reentrant lock, which knows its owner; `wait` always returns with the lock held."""

    def __init__(self, lock: threading.RLock | None = None) -> None:
        super().__init__(threading.RLock() if lock is None else lock)

    @property
    def waiting(self) -> bool:
        """True if a thread waits."""
        this: Any = self
        return bool(this._waiters)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `threading.Condition.wait`; spurious wake-ups are possible."""
        this: Any = self
        try:
            return super().wait(timeout)
        except BaseException:
            if not this._is_owned():
                self.acquire()
            self.notify_all()  # this wait's waiter may remain queued and would consume the next notify()
            raise


class Event(threading.Event):
    """`threading.Event` on this module's `Condition`."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = Condition()
