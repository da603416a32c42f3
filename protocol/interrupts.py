"""Delay Ctrl-C while a block changes several objects that must agree.

Python runs the handler of SIGINT between any two steps of the main thread, and by default it raises KeyboardInterrupt
there. Code in other threads is never interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class DeferredInterrupts:
    """A context manager: SIGINT in its block is handled at the end of the block.

    Does nothing in other threads than the main one, and if SIGINT has no handler in Python.
    """

    def __init__(self) -> None:
        self._former: Handler | None = None
        self._arrived: tuple[int, FrameType | None] | None = None
        self._allowed = False

    def __enter__(self) -> DeferredInterrupts:
        if threading.current_thread() is threading.main_thread():
            former = signal.getsignal(signal.SIGINT)
            if callable(former):
                self._former = former
                with suppress(ValueError):  # not the main interpreter
                    signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._former is not None:
            with suppress(ValueError):
                signal.signal(signal.SIGINT, self._former)
            self._run_former()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Handle SIGINT at once in this inner block, for waits and for the user's code."""
        try:
            self._allowed = True
            self._run_former()
            yield
        finally:
            self._allowed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._arrived = number, frame
        if self._allowed:
            self._run_former()

    def _run_former(self) -> None:
        if (arrived := self._arrived) is not None and self._former is not None:
            self._arrived = None
            self._former(*arrived)
