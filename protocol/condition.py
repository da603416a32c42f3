"""Conditions and events that keep their lock in order when Ctrl-C comes in the middle of a wait.

`threading.Condition.wait` gives its lock up before the block that takes it back. An interrupt in between leaves the
lock to another thread, and the `with` around the wait releases it there, or raises `RuntimeError`.
"""

from __future__ import annotations

import threading
from typing import Any


class Condition(threading.Condition):
    """`threading.Condition` on a reentrant lock, which knows its owner; `wait` holds it whenever it ends."""

    def __init__(self, lock: threading.RLock | None = None) -> None:
        super().__init__(threading.RLock() if lock is None else lock)

    def wait(self, timeout: float | None = None) -> bool:
        """As in `threading.Condition`; waiters may also wake for nothing."""
        this: Any = self
        try:
            return super().wait(timeout)
        except BaseException:
            if not this._is_owned():
                self.acquire()
            self.notify_all()  # the waiter of this wait may be left among the others, and take the next notify()
            raise


class Event(threading.Event):
    """`threading.Event` on a `Condition` of this module."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = Condition()
