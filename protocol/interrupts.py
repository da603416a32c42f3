"""Delay signals while a block changes several objects that must agree.

Python runs the handlers of signals between any two steps of the main thread. Ctrl-C raises KeyboardInterrupt there by
default; other handlers may raise or call this package. Code in other threads is never interrupted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

# Signals for which programs have handlers that raise, or that end their work; some are missing on Windows.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))

# How soon a signal is handled during `join`.
_JOIN_S = 0.05


def join(thread: threading.Thread, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
    """Wait for the end of a thread; True if it has ended. Signals are handled between parts of the wait.

    Before Python 3.13, a signal handler that raises in `Thread.join` makes a running thread count as ended.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        with DeferredInterrupts():
            left_s = end_s - time.monotonic()
            thread.join(max(0.0, min(_JOIN_S, left_s)))
            ended = not thread.is_alive()
        if ended or left_s <= 0:
            return ended


class DeferredInterrupts:
    """A context manager: signals in its block are handled at the end of the block, each at most once.

    Does nothing in other threads than the main one, and for signals without a handler in Python.
    """

    def __init__(self) -> None:
        self._former: dict[int, Handler] = {}
        self._arrived: dict[int, FrameType | None] = {}
        self._allowed = False

    def __enter__(self) -> DeferredInterrupts:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _SIGNALS:
                    if callable(former := signal.getsignal(number)):
                        self._former[number] = former
                        with suppress(ValueError):  # not the main interpreter
                            signal.signal(number, self._handle)
            except BaseException:  # a signal that is not deferred yet
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._former:
            try:
                self._restore()
            finally:
                try:
                    self._run_handlers()
                finally:  # if a signal that came after `_restore` has raised before the first handler ran
                    if self._arrived:
                        self._run_handlers()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Handle signals at once in this inner block, for waits and for the user's code."""
        before = self._allowed
        try:
            self._allowed = True
            self._run_handlers()
            yield
        finally:
            self._allowed = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._arrived[number] = frame
        if self._allowed:
            self._run_handlers()

    def _restore(self) -> None:
        """Set the former handlers again, also if one of them raises meanwhile."""
        left = list(self._former.items())
        try:
            while left:
                number, former = left[-1]
                if signal.getsignal(number) == self._handle:  # unless a handler has set another one
                    with suppress(ValueError):
                        signal.signal(number, former)
                del left[-1]
        finally:
            if left:
                self._restore()

    def _run_handlers(self) -> None:
        """Run the former handlers of signals that have arrived; all, also if one raises."""
        try:
            while self._arrived:
                number, frame = self._arrived.popitem()
                self._former[number](number, frame)
        finally:
            if self._arrived:
                self._run_handlers()
