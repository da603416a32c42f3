"""The state of a simulated process that its modules share."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from types import FrameType, ModuleType
from typing import Any, Protocol

_FIRST_FILE = 3
_FIRST_PID = 1_000


class File(Protocol):
    """The object of a file descriptor."""

    def close(self) -> None:
        """Close it."""


class Host(ABC):
    """A simulated process, as its threads, clocks and sockets see it.

    `main` is a `SimulatedThread`. `modules` has its modules while `sys.modules` shows those of another process; None
    for one that it must not import. `files` has the open sockets by file descriptor. While the process is paused,
    `held` has the threads that are ready. Its clocks have jumped ahead by `monotonic_ahead_s` and `wall_ahead_s`.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.pid = _FIRST_PID + number
        self.killed = False
        self.modules: dict[str, ModuleType | None] = {"_queue": None}  # so `queue` is pure Python
        self.files: dict[int, Any] = {}
        self.held: list[Any] | None = None
        self.monotonic_ahead_s = 0.0
        self.wall_ahead_s = 0.0
        self.signal_handlers: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
        self.main: Any = None

    def open_file(self, file: File) -> int:
        """Return the lowest free file descriptor for a socket."""
        number = _FIRST_FILE
        while number in self.files:
            number += 1
        self.files[number] = file
        return number

    def close_file(self, number: int) -> None:
        """Free a file descriptor."""
        self.files.pop(number, None)

    @property
    @abstractmethod
    def in_main_thread(self) -> bool:
        """True if the current thread is the main thread of this process."""

    @abstractmethod
    def thread_failed(self, arguments: Any) -> None:
        """Fail the run: a thread has ended with an exception."""

    @abstractmethod
    def interrupt(self, number: int = signal.SIGINT, after_lines: int = 0) -> None:
        """Send a signal, whose handler runs in the main thread.

        It runs at once, also during a wait, or after `after_lines` lines. A wait has no lines: such a signal does not
        end it, and comes after it.
        """

    @abstractmethod
    def run_handlers(self, thread: Any, frame: FrameType | None = None) -> None:
        """Run the handlers of signals that have arrived. Raises the exception of a handler."""
