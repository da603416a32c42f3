"""Signals that arrive between two lines of a process's main thread."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from protocol.testing.simulation.scheduler import Scheduler, SimulatedThread

_THIS_PACKAGE = str(Path(__file__).parent)
# Functions in C that do not wait.
_LOOK_AFTERWARDS = ("__exit__", "release")
# Python ignores exceptions in callbacks of weak references: Ctrl-C is lost there, whatever a program does.
_WEAKREFS = ("/_weakrefset.py", "/weakref.py")


class Interrupts:
    """Counts lines of main threads that a signal is on its way to, by a trace function.

    The signal is then handled at the next place where CPython looks for signals: the begin of a function, or the return
    from a function in C. A block of `finally` or `with` begins to end without such a place.

    A thread that waits handles the signal at once, as in the interpreter.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._numbers: dict[int, int] = {}

    def send(self, thread: SimulatedThread, number: int, after_lines: int) -> None:
        """Run the handler of a signal after lines of the process's code in a thread, or at once if it waits by then."""
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

    def cancel(self, thread: SimulatedThread) -> None:
        """Forget the signal on its way to the current thread."""
        if self._numbers.pop(thread.number, None) is not None:
            thread.countdown = 0
            thread.on_resume = None
            sys.settrace(None)
            sys.setprofile(None)

    @staticmethod
    def frame_outside() -> FrameType | None:
        """Return the innermost frame of the current thread that is not of this package."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_inside(frame):
            frame = frame.f_back
        return frame

    def _trace(self, frame: FrameType | None) -> None:
        while frame is not None:
            if not _is_inside(frame):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        thread = self._scheduler.current
        if thread is None or not thread.countdown or _is_inside(frame):
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
                sys.setprofile(self._place)
                return None
        return self._line

    def _place(self, frame: FrameType, event: str, argument: Any) -> None:
        """Handle the signal if CPython looks for signals here; functions of this package replace functions in C."""
        thread = self._scheduler.current
        if thread is None or thread.number not in self._numbers or self._scheduler.atomic:
            return
        if frame.f_code.co_filename.endswith(_WEAKREFS):
            return
        inside = _is_inside(frame)
        if inside and (frame.f_back is None or _is_inside(frame.f_back)):
            return
        name = frame.f_code.co_name
        looks = {
            "call": not inside or name not in _LOOK_AFTERWARDS,
            "c_return": not inside,
            "return": inside and name != "__enter__",
        }
        if looks.get(event):
            thread.signals.append(self._numbers[thread.number])
            self.cancel(thread)
            thread.process.run_handlers(thread, self.frame_outside())


def _is_inside(frame: FrameType) -> bool:
    """Return True for the frame of a function of this package."""
    return frame.f_code.co_filename.startswith(_THIS_PACKAGE)
