"""Conditions and events that keep their lock consistent when Ctrl-C interrupts a wait or a `with` statement.

`threading.Condition.wait` releases its lock before the `try` block that reacquires it. An interrupt between the two
leaves the lock unheld: the surrounding `with` then raises `RuntimeError` or releases a lock that another thread holds.

`threading.Condition.__enter__` is written in Python. An interrupt after it has acquired the lock, and before its
`return`, leaves the lock held forever: no thread but this one gets it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def locked(lock: threading.RLock, timeout_s: float, call: Callable[[bool], T]) -> T:
    """Return `call(True)`, called with the lock held, which Ctrl-C cannot leave held.

    `call(False)` if the lock is not free in time, or if this thread holds it already.
    """
    owned: Any = lock
    if owned._is_owned():
        return call(False)
    try:  # no context manager: the exception of Ctrl-C would keep its generator, and so the lock
        return call(lock.acquire(timeout=timeout_s))
    finally:
        try:  # noqa: SIM105 - Ctrl-C may come in `suppress`
            lock.release()
        except RuntimeError:  # not acquired
            pass


class Condition(threading.Condition):
    """`threading.Condition` on a reentrant lock, which knows its owner; `wait` always returns with the lock held."""

    def __init__(self, lock: threading.RLock | None = None) -> None:
        super().__init__(threading.RLock() if lock is None else lock)

    # A `with` statement calls the lock's own methods in C, which Ctrl-C cannot interrupt. Python 3.14 handles signals
    # between `__enter__` and the block (CPython issue 148874), so that the lock may stay held there.
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

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
