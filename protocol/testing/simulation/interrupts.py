"""Signals that arrive between two lines of a process's main thread."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from protocol.testing.simulation.scheduler import Scheduler, SimulatedThread

_THIS_PACKAGE = str(Path(__file__).parent)


class Interrupts:
    """Counts lines of main threads that a signal is on its way to, by a trace function.

    A thread that waits handles the signal at once, as in the interpreter.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._numbers: dict[int, int] = {}

    def send(self, thread: SimulatedThread, number: int, after_lines: int) -> None:
        """Run the handler of a signal in a thread after lines of its own code, or at once if it waits by then."""
        if after_lines <= 0:
            thread.signals.append(number)
            self._scheduler.interrupt(thread)
            return
        self._numbers[thread.number] = number
        thread.countdown = after_lines
        if thread is self._scheduler.current:
            self._trace(sys._getframe(1))
        else:
            thread.on_resume = lambda: self._trace(sys._getframe(1))

    @staticmethod
    def frame_outside() -> FrameType | None:
        """Return the innermost frame of the current thread that is not of this package."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_THIS_PACKAGE):
            frame = frame.f_back
        return frame

    def _trace(self, frame: FrameType | None) -> None:
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_THIS_PACKAGE):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        thread = self._scheduler.current
        if thread is None or not thread.countdown or frame.f_code.co_filename.startswith(_THIS_PACKAGE):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        thread = self._scheduler.current
        if thread is None or not thread.countdown:
            return None
        if event == "line" and not self._scheduler.atomic:
            thread.countdown -= 1
            if not thread.countdown:
                sys.settrace(None)
                thread.signals.append(self._numbers.pop(thread.number))
                thread.process.run_handlers(thread, frame)
                return None
        return self._line
