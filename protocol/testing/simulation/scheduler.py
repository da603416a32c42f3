"""Threads, time and chance of a simulated world: of its threads exactly one runs, and a seed decides which.

A thread is a greenlet. It gives way at locks, socket calls and sleeps (`maybe_switch`), or blocks (`park`). Time stands
still while a thread runs, and jumps to the next timer when no thread can run.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
import traceback
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import greenlet

from protocol.testing.simulation.host import Host

START_S = 1000.0
"""Virtual time at which a world starts."""
SWITCH_COST_S = 2e-6
"""Virtual time of a switch, so that a loop without a wait does not stop the time."""
_DIGEST_BLOCK_BYTES = 65_536
_RECORD = struct.Struct("<Id").pack


class SimulationFailed(AssertionError):
    """A run has failed: a judge, an unexpected error, a deadlock or a hang. The message names seed and command."""


class SimulatedThread:
    """One thread of a simulated process.

    If `parked`, it waits for `Scheduler.wake` or a timer. `token` is the number of the thread's current wait, so that a
    late wake-up does not end a later wait.
    """

    __slots__ = (
        "countdown",
        "done",
        "ending",
        "greenlet",
        "local_values",
        "name",
        "number",
        "on_resume",
        "parked",
        "process",
        "signals",
        "token",
        "woken",
    )

    def __init__(self, process: Host) -> None:
        self.process = process
        self.number = 0
        self.name = process.name
        self.parked = False
        self.woken = False
        self.done = False
        self.token = 0
        self.greenlet: Any = None
        self.local_values: dict[int, dict[str, Any]] = {}
        self.ending: list[Callable[[], None]] = []
        self.signals: list[int] = []
        self.countdown = 0
        # Called in the thread when it runs next.
        self.on_resume: Callable[[], None] | None = None

    @property
    def ident(self) -> int:
        """The number that `threading.get_ident` returns in this thread; in the main thread the process id."""
        return self.process.pid if self is self.process.main else 1_000_000 + self.number

    def stack(self) -> list[str]:
        """Return the innermost lines at which the thread waits, as file:line function."""
        frame = sys._getframe() if self.greenlet is greenlet.getcurrent() else self.greenlet.gr_frame
        places = traceback.extract_stack(frame) if frame is not None else []
        outside = [place for place in places if "/testing/simulation/" not in place.filename]
        return [f"{place.filename.rsplit('/', 2)[-1]}:{place.lineno} {place.name}" for place in outside[-6:]]


class Scheduler:
    """Chooses the thread that runs next, and when; records each choice in the digest.

    `now_s` is the virtual time. `switch_rate` is the probability that a thread gives way at a point where it need not.
    """

    def __init__(self) -> None:
        self.now_s = START_S
        self.switches = 0
        self.switch_rate = 0.0
        self.preempt_rate = 0.05
        self.random = self._random = random.Random().random
        self.current: SimulatedThread | None = None
        self.threads: list[SimulatedThread] = []
        self.limit_s = float("inf")
        # Number of voluntary switches: those of `maybe_switch`, which `--shrink` may leave out.
        self.deviations = 0
        self.is_allowed: Callable[[int], bool] | None = None
        self.atomic = 0
        self._without = WithoutSwitches(self)
        self._ready: list[SimulatedThread] = []
        self._timers: list[tuple[float, int, Any, int]] = []
        self._sequence = 0
        self._started = 0
        self._sha = hashlib.sha256()
        self._records = bytearray()
        self._hub: Any = None
        self._failure: BaseException | None = None
        # Threads of killed processes: a greenlet that is collected would run its `finally` blocks.
        self.dead: list[Any] = []

    def seed(self, seed: int, switch_rate: float) -> None:
        """Choose by this seed from now on."""
        self.random = self._random = random.Random(f"{seed}:schedule").random
        self.switch_rate = switch_rate

    # -- events -------------------------------------------------------------------------------

    def note(self, number: int, value: float) -> None:
        """Add an event to the digest."""
        records = self._records
        records += _RECORD(number & 0xFFFFFFFF, value)
        if len(records) >= _DIGEST_BLOCK_BYTES:
            self._sha.update(records)
            records.clear()

    def digest(self) -> str:
        """Return the digest of all switches, sends and times so far."""
        self._sha.update(self._records)
        self._records.clear()
        return self._sha.hexdigest()[:16]

    def at(self, when_s: float, action: Callable[[], object]) -> None:
        """Call `action` at a virtual time. It may wake threads, and must not wait."""
        self._sequence += 1
        heappush(self._timers, (when_s, self._sequence, action, -1))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` after virtual seconds, as `at`."""
        self.at(self.now_s + max(0.0, seconds), action)

    # -- threads ------------------------------------------------------------------------------

    def start(
        self, process: Host, body: Callable[[], object], thread: SimulatedThread | None = None
    ) -> SimulatedThread:
        """Start a thread of a process: a new one, or its main thread."""
        self._started += 1
        thread = thread or SimulatedThread(process)
        thread.number = self._started
        thread.name = f"{process.name}/{thread.number}"

        def main(*_: object) -> None:
            try:
                self._resumed(thread)
                body()
            except greenlet.GreenletExit:
                pass
            except BaseException as error:
                self.fail(error)
            self._finish(thread)

        thread.greenlet = greenlet.greenlet(main, parent=self._hub)
        self.threads.append(thread)
        self._make_ready(thread)
        return thread

    @staticmethod
    def _resumed(thread: SimulatedThread) -> None:
        """Call `on_resume`, which another thread has set, and run handlers of signals."""
        if thread.on_resume is not None:
            action, thread.on_resume = thread.on_resume, None
            action()
        if thread.signals:
            thread.process.run_handlers(thread)

    def _finish(self, thread: SimulatedThread) -> None:
        """End the current thread: a greenlet that returns switches to its parent, which is the next thread."""
        thread.done = True
        self.threads.remove(thread)
        self.current = None  # an action that wakes threads must not switch from here
        for action in thread.ending:
            action()
        self.current = following = self._choose()
        thread.greenlet.parent = following.greenlet

    def end(self, thread: SimulatedThread) -> None:
        """End another thread, or this one, without running another line of it."""
        thread.done = True
        thread.parked = False
        thread.token += 1
        self.dead.append(thread.greenlet)
        self.threads.remove(thread)
        if thread in self._ready:
            self._ready.remove(thread)
        if thread is self.current:
            self._switch_to_next(thread)

    def park(self, timeout_s: float | None = None) -> bool:
        """Block the current thread until `wake` or the timeout; True if woken. Handlers of signals run in here."""
        thread = self.current
        assert thread is not None, "only threads of the world may wait"
        if self.atomic:
            raise SimulationFailed(f"{thread.name} waits while it imports a module: {thread.stack()}")
        thread.woken = False
        thread.parked = True
        thread.token += 1
        if timeout_s is not None:
            self._sequence += 1
            heappush(self._timers, (self.now_s + timeout_s, self._sequence, thread, thread.token))
        self._switch_to_next(thread)
        if thread.on_resume is not None or thread.signals:
            self._resumed(thread)
        return thread.woken

    def wake(self, thread: SimulatedThread, token: int) -> None:
        """End a thread's wait, if it is still the wait with this token."""
        if thread.parked and thread.token == token:
            thread.parked = False
            thread.woken = True
            self._make_ready(thread)

    def interrupt(self, thread: SimulatedThread) -> None:
        """End a thread's wait, if it waits, so that it runs handlers of signals."""
        if thread.parked:
            thread.parked = False
            self._make_ready(thread)

    def maybe_switch(self) -> None:
        """Let another thread run with the probability `switch_rate`; called where threads affect one another."""
        if self.random() < self.switch_rate and self.current is not None and not self.atomic:
            self.deviations += 1
            if self.is_allowed is None or self.is_allowed(self.deviations):
                self.give_way()

    def before_statement(self) -> None:
        """Let another thread run with a small probability; called before statements of chosen modules."""
        if self.random() < self.preempt_rate:
            self.maybe_switch()

    def give_way(self) -> None:
        """Let any thread that is ready run next, including this one."""
        thread = self.current
        if thread is None or self.atomic:
            return
        thread.token += 1
        self._make_ready(thread)
        self._switch_to_next(thread)
        if thread.on_resume is not None or thread.signals:
            self._resumed(thread)

    def _make_ready(self, thread: SimulatedThread) -> None:
        held_threads = thread.process.held
        (self._ready if held_threads is None else held_threads).append(thread)

    def hold(self, process: Host) -> None:
        """Stop the threads of a process (SIGSTOP) until `release`."""
        process.held = [thread for thread in self._ready if thread.process is process]
        self._ready = [thread for thread in self._ready if thread.process is not process]

    def release(self, process: Host) -> None:
        """Continue the threads of a process."""
        held_threads, process.held = process.held, None
        self._ready += held_threads or []

    def advance(self, process: Host, seconds: float) -> None:
        """End waits of a process with a timeout sooner, since its monotonic clock has jumped."""
        self._timers = [
            (max(self.now_s, when_s - seconds), number, target, token)
            if token >= 0 and target.process is process
            else (when_s, number, target, token)
            for when_s, number, target, token in self._timers
        ]
        self._timers.sort()

    def without_switches(self) -> WithoutSwitches:
        """Return a context without switches, without time, and without draws of the scheduler: that of an import."""
        return self._without

    # -- switching ----------------------------------------------------------------------------

    def run(self, process: Host, main: Callable[[], object]) -> None:
        """Run `main` in a first thread, and all threads until it returns. Raises what it raises."""
        self._hub = greenlet.getcurrent()
        thread = self.start(process, main, process.main)
        thread.ending.append(lambda: self.fail(None))
        self._switch_to_next(None)
        self.current = None
        if self._failure is not None:
            raise self._failure

    def fail(self, error: BaseException | None) -> None:
        """End the run, with an error or without; the current thread does not continue."""
        self._failure = error
        if self.current is not None and self.current.greenlet is not None:
            self.dead.append(self.current.greenlet)
        self._hub.switch()

    def _switch_to_next(self, thread: SimulatedThread | None) -> None:
        following = self._choose()
        if following is not thread:
            self.current = following
            following.greenlet.switch()

    def _choose(self) -> SimulatedThread:
        """Return the thread that runs next; fire the timers that are due, and jump to the next one if none is ready."""
        ready, timers = self._ready, self._timers
        self.now_s += SWITCH_COST_S
        while True:
            if timers and (not ready or timers[0][0] <= self.now_s):
                when_s, _, target, token = heappop(timers)
                if when_s > self.now_s:
                    self.now_s = when_s
                    if when_s > self.limit_s:
                        self._stuck("the time limit has passed")
                if token < 0:
                    target()
                    ready, timers = self._ready, self._timers
                elif target.parked and target.token == token:
                    target.parked = False
                    self._make_ready(target)
            elif ready:
                break
            else:
                self._stuck("deadlock: all threads wait")
        count = len(ready)
        if count > 1:
            index = int(self.random() * count)
            ready[index], ready[-1] = ready[-1], ready[index]
        following = ready.pop()
        self.switches += 1
        self.note(following.number, self.now_s)
        return following

    def _stuck(self, why: str) -> None:
        lines = [f"{thread.name}: {' < '.join(reversed(thread.stack()))}" for thread in self.threads]
        self.fail(SimulationFailed("\n  ".join([f"{why} at {self.now_s - START_S:.3f} s", *lines])))


class WithoutSwitches:
    """A block in which no virtual time passes and the scheduler draws no random number; blocks may be nested."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._from_s = 0.0

    def __enter__(self) -> None:
        scheduler = self._scheduler
        if not scheduler.atomic:
            self._from_s = scheduler.now_s
            scheduler.random = _never
        scheduler.atomic += 1

    def __exit__(self, *_: object) -> None:
        scheduler = self._scheduler
        scheduler.atomic -= 1
        if not scheduler.atomic:
            scheduler.now_s = self._from_s
            scheduler.random = scheduler._random


def _never() -> float:
    return 1.0
