"""Handle signals at waits and in code of the user, and nowhere else within a call of this package.

Python runs the handlers of signals between any two steps of the main thread. Ctrl-C raises KeyboardInterrupt there by
default; other handlers may raise or call this package. Code in other threads is never interrupted.

In a block of `Deferred`, handlers run in `interruptible` calls, and at the end of the block. An interruptible call
waits, or calls code of the user: it may raise other errors as well, so every object is consistent there.
"""

from __future__ import annotations

import signal
import threading
import time
from _thread import RLock
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from protocol.errors import ConnectFailed

Handler = Callable[[int, FrameType | None], object]
P = ParamSpec("P")
T = TypeVar("T")

# Signals for which programs have handlers that raise, or that end their work; some are missing on Windows.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
# Its functions in C: those of `signal` convert each handler to an enum, which takes ten times as long.
_signal: Any = getattr(signal, "_signal", signal)

# How soon a signal is handled during `join` and `acquire`.
_PART_S = 0.05

# What `defer` has found: another thread, a deferring block, an interruptible call of one, or nothing.
_NO_SIGNALS, NESTED, _IN_INTERRUPTIBLE, _OUTERMOST = range(4)


class _MainThread:
    """The signals of the main thread. `deferring` is true in `Deferred`, but not in an `interruptible` call of it."""

    def __init__(self) -> None:
        self.deferring = False
        self._installed = False
        self._handlers: dict[int, Handler] = {}
        self._arrived: dict[int, tuple[Handler, FrameType | None]] = {}
        self._recorder = self._record

    def defer(self) -> int:
        """Begin to defer signals; return the level for `end`."""
        if threading.get_ident() != threading.main_thread().ident:
            return _NO_SIGNALS
        if self.deferring:
            return NESTED
        self.deferring = True
        if self._installed:
            return _IN_INTERRUPTIBLE
        try:
            self._installed = True
            for number in _SIGNALS:
                if callable(handler := _signal.getsignal(number)):
                    self._handlers[number] = handler
                    _signal.signal(number, self._recorder)
        except ValueError:  # not the main interpreter
            pass
        except BaseException:  # a signal that is not deferred yet
            self.end(_OUTERMOST)
            raise
        return _OUTERMOST

    def end(self, level: int) -> None:
        """End the level: of the outermost one, set the handlers again, then run those of signals that have arrived."""
        if level <= NESTED:
            return
        try:
            if level == _OUTERMOST:
                self._restore()
        finally:
            self.deferring = False
            try:
                if self._arrived:
                    self.run_handlers()
            finally:
                if self._arrived:  # another signal came at the entry of that call
                    self.run_handlers()

    def _restore(self) -> None:
        """Set the handlers again, also if one of them raises meanwhile."""
        try:
            while self._handlers:
                number = next(iter(self._handlers))
                if _signal.getsignal(number) is self._recorder:  # unless a handler has set another one
                    _signal.signal(number, self._handlers[number])
                del self._handlers[number]
        finally:
            if self._handlers:
                self._restore()
            self._installed = False

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._arrived[number] = self._handlers[number], frame
        if not self.deferring:
            self.run_handlers()

    def run_handlers(self) -> None:
        """Run the handlers of signals that have arrived; all, also if one raises."""
        try:
            while self._arrived:
                number, (handler, frame) = self._arrived.popitem()
                handler(number, frame)
        finally:
            if self._arrived:
                self.run_handlers()


signals = _MainThread()


class Deferred:
    """A context manager: signals are handled in `interruptible` calls of its block, and at its end.

    Does nothing in other threads than the main one, and for signals without a handler in Python.
    """

    __slots__ = ("_level",)

    def __enter__(self) -> None:
        self._level = signals.defer()

    def __exit__(self, *_: object) -> None:
        signals.end(self._level)


def deferred(call: Callable[P, T]) -> Callable[P, T]:
    """Make a function a block of `Deferred`."""

    @wraps(call)
    def in_block(*arguments: P.args, **options: P.kwargs) -> T:
        with Deferred():
            return call(*arguments, **options)

    return in_block


def interruptible(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Return the result of a call, which waits or calls code of the user. Signals are handled at once meanwhile."""
    if not signals.deferring or threading.get_ident() != threading.main_thread().ident:
        return call(*arguments, **options)
    try:
        signals.deferring = False
        signals.run_handlers()
        return call(*arguments, **options)
    finally:
        signals.deferring = True


def start(thread: threading.Thread) -> None:
    """Start a thread; raise `ConnectFailed`, which is retriable, if this process has too many."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ConnectFailed(f"{thread.name}: no thread could be started: {error}") from error


def join(thread: threading.Thread, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
    """Wait for the end of a thread; True if it has ended. Signals are handled between parts of the wait.

    Before Python 3.13, a signal handler that raises in `Thread.join` makes a running thread count as ended.
    """

    def ended(part_s: float) -> bool:
        thread.join(part_s)
        return not thread.is_alive()

    return _in_parts(ended, timeout_s)


def acquire(lock: RLock, timeout_s: float) -> bool:
    """Acquire a lock in a block of `Deferred`; False after the timeout. Signals are handled between parts of the wait.

    A signal handler that raises in `acquire` of the lock would leave open if it was acquired.
    """
    return lock.acquire(False) or _in_parts(lambda part_s: lock.acquire(timeout=part_s), timeout_s)


def _in_parts(wait: Callable[[float], bool], timeout_s: float) -> bool:
    end_s = time.monotonic() + timeout_s
    with Deferred():
        while True:
            left_s = end_s - time.monotonic()
            if (done := wait(max(0.0, min(_PART_S, left_s)))) or left_s <= 0:
                return done
            interruptible(bool)


class BackgroundCall:
    """A call in another thread, which a signal does not end: it ends `wait` only. It begins after the call `earlier`.

    The interpreter waits for the call before it ends.
    """

    def __init__(self, call: Callable[[], None], name: str, earlier: BackgroundCall | None = None) -> None:
        self._call = call
        self._earlier = earlier
        self._raised: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=False)
        try:
            self._thread.start()
        except RuntimeError:  # this process has too many threads
            self._run()

    def _run(self) -> None:
        if self._earlier is not None:
            self._earlier.join()
            self._earlier = None
        try:
            self._call()
        except Exception as error:  # raised by `wait`
            self._raised = error

    def join(self) -> None:
        """Wait for the end."""
        if self._thread.ident is not None:
            join(self._thread)

    def wait(self) -> None:
        """Wait for the end, and raise the exception of the call, once."""
        self.join()
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
