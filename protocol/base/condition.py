"""Locks, conditions and events that a signal handler which raises leaves consistent.

Signals are deferred while these change, and handled during waits, when the lock of the condition is free.

Python 3.14 handles signals after the C function `threading.Lock.__enter__`, before the block begins (CPython issue
148874), also where signals are not deferred: `Lock` has an `__enter__` that releases the lock then.
"""

from __future__ import annotations

import sys
import threading
from _thread import RLock
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from protocol.base.interrupts import Deferred, acquire, interruptible

T = TypeVar("T")


def locked(lock: Lock, timeout_s: float, call: Callable[[bool], T]) -> T:
    """Return `call(True)`, called with the lock held, which Ctrl-C cannot leave held.

    `call(False)` if the lock is not free in time, or if this thread holds it already.
    """
    owned: Any = lock
    if owned._is_owned():
        return call(False)
    with Deferred():
        free = acquire(lock, timeout_s)
        try:
            return call(free)
        finally:
            if free:
                lock.release()


class Lock(RLock):  # type: ignore[misc]  # in CPython it is not final
    """`threading.RLock`, which Ctrl-C cannot leave held at the begin of a `with` statement."""

    __slots__ = ()

    if sys.version_info[:2] == (3, 14):  # it handles signals behind functions in C, but not behind this one

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                try:  # noqa: SIM105 - Ctrl-C may come in `suppress`
                    self.release()
                except RuntimeError:  # interrupted in the wait
                    pass
                raise


class Condition(threading.Condition):
    """`threading.Condition` on a reentrant lock, which knows its owner; `wait` always returns with the lock held."""

    def __init__(self, lock: Lock | None = None) -> None:
        super().__init__(Lock() if lock is None else lock)

    # A `with` statement calls the lock's own methods, without those of `threading.Condition` around them.
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    @property
    def waiting(self) -> bool:
        """True if a thread waits."""
        condition: Any = self
        return bool(condition._waiters)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `threading.Condition.wait`. Signals are handled only while the lock is free."""
        condition: Any = self
        if not condition._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        timeout_s = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        waiter, notified = threading.Lock(), False
        waiter.acquire()
        with Deferred():
            condition._waiters.append(waiter)
            lock_state = condition._release_save()
            try:
                notified = interruptible(waiter.acquire, True, timeout_s)
            finally:
                condition._acquire_restore(lock_state)
                if not notified and waiter in condition._waiters:
                    condition._waiters.remove(waiter)
                elif not notified:  # a notification for this thread, which a signal handler has made leave
                    self.notify()
        return notified


class Event(threading.Event):
    """`threading.Event` on this module's `Condition`."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = Condition()
