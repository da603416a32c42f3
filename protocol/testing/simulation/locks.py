"""The module `_thread` of a simulated process: locks, thread starts and thread-local values on the scheduler.

The standard library's own `threading` is executed on top of it, so that conditions, events and joins behave, and can be
interrupted, as they are written.
"""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import Any

from protocol.testing.simulation.host import Host
from protocol.testing.simulation.scheduler import Scheduler, SimulatedThread

TIMEOUT_MAX = 9_223_372_036.0


class SimulatedLock:
    """`_thread.lock`: not reentrant, without an owner."""

    __slots__ = ("__weakref__", "_number", "_scheduler", "_waiters", "held")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters: deque[tuple[SimulatedThread, int]] = deque()
        self.held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, as `threading.Lock.acquire`."""
        scheduler = self._scheduler
        if scheduler.random() < scheduler.switch_rate:
            scheduler.maybe_switch()
        if not self.held:
            self.held = True
            return True
        if not blocking:
            return False
        if not self.wait_free(timeout):
            return False
        self.held = True
        return True

    def wait_free(self, timeout: float) -> bool:
        """Wait until the lock is free; False after the timeout."""
        scheduler = self._scheduler
        end_s = None if timeout < 0 else scheduler.now_s + timeout
        thread = scheduler.current
        assert thread is not None
        while self.held:
            left_s = None if end_s is None else end_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                return False
            waiter = (thread, thread.token + 1)
            self._waiters.append(waiter)
            try:
                woken = scheduler.park(left_s)
            except BaseException:
                self._leave(waiter)
                if not self.held:
                    self._wake_next()
                raise
            if not woken:
                self._leave(waiter)
        return True

    def _leave(self, waiter: tuple[SimulatedThread, int]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def _wake_next(self) -> None:
        while self._waiters:
            thread, token = self._waiters.popleft()
            if thread.parked and thread.token == token:
                self._scheduler.wake(thread, token)
                return

    def release(self) -> None:
        """Release the lock; callable from any thread."""
        if not self.held:
            raise RuntimeError("release unlocked lock")
        self.held = False
        if self._waiters:
            self._wake_next()
        scheduler = self._scheduler
        if scheduler.random() < scheduler.switch_rate:
            scheduler.maybe_switch()

    def locked(self) -> bool:
        """Return True if the lock is held."""
        return self.held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.held = False
        self._waiters.clear()

    acquire_lock, release_lock, locked_lock = acquire, release, locked


class SimulatedRLock:
    """`_thread.RLock`."""

    __slots__ = ("__weakref__", "_count", "_lock", "_owner", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = SimulatedLock(scheduler)
        self._owner: SimulatedThread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, as `threading.RLock.acquire`."""
        scheduler = self._scheduler
        if self._count and self._owner is scheduler.current:
            self._count += 1
            return True
        if scheduler.random() < scheduler.switch_rate:
            scheduler.maybe_switch()
        lock = self._lock
        if lock.held and not (blocking and lock.wait_free(timeout)):
            return False
        lock.held = True
        self._owner = scheduler.current
        self._count = 1
        return True

    def release(self) -> None:
        """Release the lock, as `threading.RLock.release`."""
        if not self._count or self._owner is not self._scheduler.current:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        """Return True if a thread holds the lock."""
        return self._count > 0

    def _is_owned(self) -> bool:
        return self._count > 0 and self._owner is self._scheduler.current

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0

    def _release_save(self) -> tuple[int, SimulatedThread | None]:
        saved = (self._count, self._owner)
        self._count, self._owner = 0, None
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, SimulatedThread | None]) -> None:
        self._lock.acquire()
        self._count, self._owner = saved

    def _at_fork_reinit(self) -> None:
        self._count, self._owner = 0, None
        self._lock._at_fork_reinit()


def _local_class(scheduler: Scheduler) -> type:
    class local:  # noqa: N801 - the name in `threading`
        """`threading.local`: before each access `__dict__` becomes that of the current thread."""

        def __new__(cls, /, *arguments: Any, **options: Any) -> Any:
            self = object.__new__(cls)
            values: dict[str, Any] = {}
            object.__setattr__(self, "__dict__", {})
            created[id(self)] = (arguments, options, self)
            if scheduler.current is not None:
                scheduler.current.local_values[id(self)] = values
            object.__setattr__(self, "__dict__", values)
            return self

        def __getattribute__(self, name: str) -> Any:
            _select(self)
            return object.__getattribute__(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            _select(self)
            object.__setattr__(self, name, value)

        def __delattr__(self, name: str) -> None:
            _select(self)
            object.__delattr__(self, name)

    # Keeps each object, so that no other gets its id.
    created: dict[int, tuple[Any, Any, Any]] = {}

    def _select(self: Any) -> None:
        thread = scheduler.current
        values = thread.local_values.get(id(self)) if thread is not None else {}
        if values is None:
            assert thread is not None
            values = thread.local_values[id(self)] = {}
            object.__setattr__(self, "__dict__", values)
            arguments, options, _ = created[id(self)]
            type(self).__init__(self, *arguments, **options)
        object.__setattr__(self, "__dict__", values)

    return local


class _Handle:
    """`_thread._ThreadHandle` of Python 3.13."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._done = SimulatedLock(scheduler)
        self._done.held = True
        self.ident = 0

    def is_done(self) -> bool:
        return not self._done.held

    def _set_done(self) -> None:
        if self._done.held:
            self._done.release()

    def join(self, timeout: float | None = -1) -> None:
        if self._done.acquire(True, -1 if timeout is None else max(0.0, timeout)):
            self._done.held = False
            self._done._wake_next()


def thread_module(scheduler: Scheduler, process: Host) -> ModuleType:
    """Return the module `_thread` of a process."""
    module = ModuleType("_thread")
    joinable: list[_Handle] = []

    class Lock(SimulatedLock):
        __slots__ = ()

        def __init__(self) -> None:
            super().__init__(scheduler)

    class RLock(SimulatedRLock):
        __slots__ = ()

        def __init__(self) -> None:
            super().__init__(scheduler)

    def start_new_thread(function: Any, arguments: tuple[Any, ...], options: Any = None) -> int:
        thread = scheduler.start(process, lambda: function(*arguments, **(options or {})))
        scheduler.maybe_switch()
        return thread.ident

    def start_joinable_thread(function: Any, handle: _Handle | None = None, daemon: bool = True) -> _Handle:
        handle = handle or _Handle(scheduler)
        thread = scheduler.start(process, function)
        handle.ident = thread.ident
        thread.ending.append(handle._set_done)
        if not daemon:
            joinable.append(handle)
        scheduler.maybe_switch()
        return handle

    def shutdown() -> None:
        while joinable:
            joinable.pop().join()

    def set_sentinel() -> SimulatedLock:
        lock = SimulatedLock(scheduler)
        assert scheduler.current is not None
        scheduler.current.ending.append(lambda: lock.release() if lock.held else None)
        return lock

    def make_handle(ident: int) -> _Handle:
        handle = _Handle(scheduler)
        handle.ident = ident
        return handle

    def ident() -> int:
        return scheduler.current.ident if scheduler.current is not None else 1

    members: dict[str, Any] = {
        "LockType": Lock,
        "RLock": RLock,
        "TIMEOUT_MAX": TIMEOUT_MAX,
        "_ExceptHookArgs": _ExceptHookArgs,
        "_ThreadHandle": lambda: _Handle(scheduler),
        "_excepthook": process.thread_failed,
        "_get_main_thread_ident": lambda: process.pid,
        "_is_main_interpreter": lambda: True,
        "_local": _local_class(scheduler),
        "_make_thread_handle": make_handle,
        "_set_sentinel": set_sentinel,
        "_shutdown": shutdown,
        "allocate_lock": Lock,
        "daemon_threads_allowed": lambda: True,
        "error": RuntimeError,
        "get_ident": ident,
        "get_native_id": ident,
        "lock": Lock,
        "stack_size": lambda size=0: 0,
        "start_joinable_thread": start_joinable_thread,
        "start_new": start_new_thread,
        "start_new_thread": start_new_thread,
    }
    vars(module).update(members)
    return module


class _ExceptHookArgs(tuple[Any, ...]):
    """`threading.ExceptHookArgs`: the four values, also by name."""

    exc_type = property(lambda self: self[0])
    exc_value = property(lambda self: self[1])
    exc_traceback = property(lambda self: self[2])
    thread = property(lambda self: self[3])
