"""A simulated process: its modules, threads, files, clocks and signals."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from protocol.testing.simulation.clocks import time_module
from protocol.testing.simulation.host import Host
from protocol.testing.simulation.interrupts import Interrupts
from protocol.testing.simulation.locks import SimulatedLock, thread_module
from protocol.testing.simulation.modules import ModuleTables
from protocol.testing.simulation.network import Network
from protocol.testing.simulation.scheduler import Scheduler, SimulatedThread, SimulationFailed
from protocol.testing.simulation.signals import signal_module
from protocol.testing.simulation.socket_modules import select_module, socket_module


class World(Protocol):
    """The parts of a world that a process uses."""

    scheduler: Scheduler
    network: Network
    modules: ModuleTables
    interrupts: Interrupts

    def trace(self, event: str) -> None:
        """Add a line to the trace."""


class Process(Host):
    """A simulated process of a world; `Simulation.start` makes one.

    Attributes
    ----------
    name : str
    alive : bool
        False once its main function has returned or raised, or it was killed.
    killed : bool
    error : BaseException or None
        The exception that ended the main function.
    result : object
        Return value of the main function.
    """

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(name, number)
        self.main = SimulatedThread(self)
        self.alive = True
        self.error: BaseException | None = None
        self.result: Any = None
        self._world = world
        self._joined = False
        self._end = SimulatedLock(world.scheduler)
        self._end.held = True
        scheduler, network = world.scheduler, world.network
        self.modules["_thread"] = thread_module(scheduler, self)
        self.modules["time"] = time_module(scheduler, self)
        self.modules["signal"] = signal_module(self)
        self.modules["socket"] = socket_module(network, self)
        self.modules["select"] = select_module(network, self)

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    @property
    def started(self) -> bool:
        """True once its main thread has started."""
        return bool(self.main.number > 0)

    @property
    def check_failed(self) -> bool:
        """True if an exception has ended the process and `join` has not raised it: the run must fail."""
        return self.error is not None and not self._joined

    # -- controls -----------------------------------------------------------------------------

    def join(self, timeout_s: float | None = None) -> Any:
        """Wait for the end; return the result of the main function, None if it was killed, or raise its exception.

        Raises
        ------
        TimeoutError
            It has not ended after `timeout_s` of virtual time.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"{self.name} has not ended after {timeout_s} s")
        self._joined = True
        if self.error is not None:
            raise self.error
        return self.result

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the process has ended, failed or was killed; return False after the timeout."""
        if self.alive and self._end.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._end.release()
        return not self.alive

    def kill(self) -> None:
        """End the process as SIGKILL: no line of it runs again, not even `finally`, and its sockets are closed."""
        if not self.alive:
            return
        scheduler = self._world.scheduler
        self._world.trace(f"{self.name} is killed")
        self.killed = True
        self.alive = False
        self.held = None  # a paused process never continues
        self._close_files()
        threads = [thread for thread in scheduler.threads if thread.process is self]
        for thread in threads:
            if thread is not scheduler.current:
                scheduler.end(thread)
        self._ended()
        if scheduler.current in threads:
            scheduler.end(scheduler.current)

    def pause(self, seconds: float | None = None) -> None:
        """Stop all threads (SIGSTOP), for virtual seconds or until `resume`. Its sockets go on receiving."""
        if self.alive and self.held is None:
            self._world.trace(f"{self.name} is paused for {seconds} s")
            self._world.scheduler.hold(self)
            if seconds is not None:
                self._world.scheduler.after(seconds, self.resume)
            self._world.scheduler.give_way()

    def resume(self) -> None:
        """Continue after `pause` (SIGCONT)."""
        if self.held is not None:
            self._world.trace(f"{self.name} continues")
            self._world.scheduler.release(self)

    def jump_monotonic(self, seconds: float) -> None:
        """Move the monotonic clock forwards; waits with a timeout end as much sooner."""
        if seconds < 0:
            raise ValueError("a monotonic clock only moves forwards")
        self._world.trace(f"{self.name}: monotonic clock jumps by {seconds} s")
        self.monotonic_ahead_s += seconds
        self._world.scheduler.advance(self, seconds)

    def jump_wall(self, seconds: float) -> None:
        """Move the wall clock, forwards or backwards."""
        self._world.trace(f"{self.name}: wall clock jumps by {seconds} s")
        self.wall_ahead_s += seconds

    def interrupt(self, number: int = signal.SIGINT, after_lines: int = 0) -> None:
        """Send a signal, whose handler runs in the main thread.

        It runs at once, also during a wait, or after `after_lines` lines. A wait has no lines: such a signal does not
        end it, and comes after it.
        """
        if not self.started or not self.alive:
            return
        self._world.trace(f"{self.name}: signal {signal.Signals(number).name} after {after_lines} lines")
        self._world.interrupts.send(self.main, number, after_lines)

    # -- called by the world ------------------------------------------------------------------

    def run(self, main: Callable[[], Any]) -> None:
        """Run the main function in the main thread, then wait for threads that are not daemons."""
        try:
            try:
                threading = self._world.modules.load("threading")
                self.result = main()
            finally:
                threading._shutdown()
        except BaseException as error:
            self.error = error
        if self.alive:
            self.alive = False
            self._close_files()
            scheduler = self._world.scheduler
            for thread in [thread for thread in scheduler.threads if thread.process is self]:
                if thread is not self.main:
                    scheduler.end(thread)
            self._ended()

    def _ended(self) -> None:
        self._end.held = False
        self._end._wake_next()
        self._world.trace(f"{self.name} has ended{f' with {self.error!r}' if self.error else ''}")

    def _close_files(self) -> None:
        for file in list(self.files.values()):
            file.close()

    def thread_failed(self, arguments: Any) -> None:
        """Fail the run: a thread has ended with an exception, other than `SystemExit`."""
        _, error, _, thread = arguments
        if not isinstance(error, SystemExit):
            failure = SimulationFailed(f"thread {thread.name} of {self.name} ended with {error!r}")
            failure.__cause__ = error
            self._world.scheduler.fail(failure)

    def run_handlers(self, thread: SimulatedThread, frame: FrameType | None = None) -> None:
        """Run the handlers of signals that have arrived. Raises the exception of a handler."""
        while thread.signals:
            number = thread.signals.pop(0)
            handler = self.signal_handlers.get(number, signal.SIG_DFL)
            self._world.trace(f"{self.name}: handles {signal.Signals(number).name}")
            if callable(handler):
                handler(number, frame or self._world.interrupts.frame_outside())
            elif handler == signal.SIG_DFL:
                self.kill()

    @property
    def in_main_thread(self) -> bool:
        """True if the current thread is the main thread of this process."""
        return self._world.scheduler.current is self.main
