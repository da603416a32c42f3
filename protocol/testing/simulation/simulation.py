"""One world that a seed decides: processes, threads, time, network and faults."""

from __future__ import annotations

import errno
import gc
import importlib.util
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.testing.simulation.interrupts import Interrupts
from protocol.testing.simulation.modules import ModuleTables
from protocol.testing.simulation.network import Network
from protocol.testing.simulation.process import Process
from protocol.testing.simulation.scheduler import Scheduler, SimulationFailed

PACKAGES = ("protocol", "spark_kafka_source")
Fault = tuple[str, Callable[[], Any]]
"""A description and what it does."""
# Their imports bring most of the client.
_USUAL_MODULES = (
    "protocol.consumer_group.kafka_consumer",
    "protocol.producer.transactional_producer",
    "protocol.testing.fake_kafka.server",
)
_SWITCH_RATES = (0.02, 0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Run:
    """The outcome of a run.

    Attributes
    ----------
    seed : int
    digest : str
        Digest of all switches, sends and times: equal for the same seed.
    switches, deviations : int
        All switches, and those that a thread made where it need not wait.
    faults : list of str
    virtual_s, real_s : float
    result : object
        What the scenario returned.
    """

    seed: int
    digest: str
    switches: int
    deviations: int
    faults: list[str]
    virtual_s: float
    real_s: float
    result: Any = None


class Simulation:
    """A world in which a seed decides the order of threads, the network, the time and the faults.

    Parameters
    ----------
    seed : int
    packages : iterable of str
        Top-level packages, beside `protocol`, `spark_kafka_source` and that of the scenario, of which each simulated
        process gets its own copy. Code in other packages that starts threads, waits or reads the time is not simulated.
    limit_s : float
        Virtual time after which the run fails, as a hang.
    switch_rate : float, optional
        Probability of a switch where a thread need not wait; by default the seed chooses.
    skip : iterable of int
        Faults by their number that do not happen (`--shrink`).
    allow : callable, optional
        Returns False for numbers of switches that do not happen (`--shrink`).
    preempt : iterable of str
        Modules, or packages, in which a switch may happen before any statement.
    report : callable, optional
        Called with each line of the trace: virtual time, thread, event.

    Attributes
    ----------
    random : random.Random
        The scenario's source of random numbers.
    fault_random : random.Random
        Random numbers of the current fault: they do not depend on other faults.
    network : Network
    main : Process
        The process in which the scenario runs, and the cluster if the scenario makes one. It has no faults.
    processes : list of Process
        All processes that were started, also those that have ended.
    """

    def __init__(
        self,
        seed: int,
        *,
        packages: Iterable[str] = (),
        limit_s: float = 900.0,
        switch_rate: float | None = None,
        skip: Iterable[int] = (),
        allow: Callable[[int], bool] | None = None,
        preempt: Iterable[str] = (),
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(f"{seed}:scenario")
        rate = self.random.choice(_SWITCH_RATES)
        self.scheduler = Scheduler(seed, rate if switch_rate is None else switch_rate)
        self.scheduler.limit_s = self.scheduler.now_s + limit_s
        self.scheduler.is_allowed = allow
        self.network = Network(self.scheduler, seed)
        self.interrupts = Interrupts(self.scheduler)
        self.processes: list[Process] = []
        self.faults: list[str] = []
        self.fault_random = random.Random(f"{seed}:fault")
        self._packages = frozenset({*PACKAGES, *packages})
        self._skip = frozenset(skip)
        self._preempt = tuple(preempt)
        self._report = report
        self._from_s = self.scheduler.now_s
        self._ran = False
        self._real_from_s = time.perf_counter()

    # -- running ------------------------------------------------------------------------------

    def run(self, scenario: Callable[..., Any], *arguments: Any, imports_only: bool = False) -> Run:
        """Run `scenario(simulation, *arguments)` in the main process of the world, until it returns.

        Parameters
        ----------
        scenario : callable
            A function of a module, which is imported again in the world.
        *arguments : object
        imports_only : bool
            Only import the client and the module of the scenario.

        Returns
        -------
        Run

        Raises
        ------
        Exception
            The error of the scenario, or of a process that ended with an exception for which the scenario never asked.
        SimulationFailed
            An exception in a thread, a deadlock, or a hang.

        Notes
        -----
        Call it in a separate process, as `simulate` and the runner do: it changes `os.urandom`, `random`, the garbage
        collector and the import of modules while it runs.
        """
        if self._ran:
            raise RuntimeError("a Simulation runs once; make another one")
        self._ran = True
        module, _ = _place(scenario)
        self.modules = ModuleTables(
            self.scheduler, self._packages | {module.partition(".")[0]}, self.seed, self._preempt
        )
        self._real_from_s = time.perf_counter()
        self.main = Process(self, "main", 0)
        box: list[Any] = []

        def body() -> None:
            self.main.main = self.scheduler.current
            self.modules.load("threading")
            function = self._find(scenario)
            if imports_only:
                for name in _USUAL_MODULES:
                    self.modules.load(name)
            box.append(None if imports_only else function(self, *arguments))
            for process in self.processes:
                if process.check_failed:
                    assert process.error is not None
                    raise SimulationFailed(f"{process.name} ended with {process.error!r}") from process.error

        undo = self._take_over()
        try:
            self.scheduler.run(self.main, body)
        finally:
            undo()
        return Run(self.seed, result=box[0], **self.summary())

    def summary(self) -> dict[str, Any]:
        """Return digest, switches, faults and times so far, by the names of `Run`."""
        return {
            "digest": self.scheduler.digest(),
            "switches": self.scheduler.switches,
            "deviations": self.scheduler.deviations,
            "faults": self.faults,
            "virtual_s": round(self.now_s, 6),
            "real_s": time.perf_counter() - self._real_from_s,
        }

    def _take_over(self) -> Callable[[], None]:
        """Replace what would bring the real world in; return the function that undoes it."""
        chance = random.Random(f"{self.seed}:urandom")
        real = os.urandom, os.getpid, os.register_at_fork, random._urandom, random.Random  # type: ignore[attr-defined]
        real_state = random.getstate()

        class SeededRandom(random.Random):
            """Without a seed, the C code would ask the system for one."""

            def __init__(self, seed: Any = None) -> None:
                super().__init__(chance.getrandbits(64) if seed is None else seed)

        random.Random = SeededRandom  # type: ignore[assignment, misc]
        kill, os.kill = os.kill, self._kill
        os.urandom = random._urandom = chance.randbytes  # type: ignore[attr-defined]
        os.getpid = lambda: self.scheduler.current.process.pid if self.scheduler.current is not None else real[1]()
        os.register_at_fork = lambda **_: None
        random.seed(f"{self.seed}:random")
        collects = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        self.modules.install()

        def undo() -> None:
            self.modules.uninstall()
            os.urandom, os.getpid, os.register_at_fork, random._urandom, random.Random = real  # type: ignore[attr-defined, misc]
            os.kill = kill
            random.setstate(real_state)
            gc.unfreeze()
            if collects:
                gc.enable()

        return undo

    def _kill(self, pid: int, number: int) -> None:
        """Send a signal to a process of the world."""
        for process in (self.main, *self.processes):
            if process.pid == pid and process.alive:
                process.interrupt(number)
                return
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    def _find(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the copy of a function in the current process."""
        module, names = _place(function)
        try:
            owner: Any = self.modules.load(module)
        except ModuleNotFoundError as error:
            path = getattr(getattr(function, "__code__", None), "co_filename", "")
            spec = importlib.util.spec_from_file_location(module, path)
            if error.name != module.partition(".")[0] or spec is None or spec.loader is None:
                raise
            owner = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(owner)
        for name in names:
            owner = getattr(owner, name)
        function = owner
        return function

    # -- for scenarios ------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self.scheduler.now_s - self._from_s

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        end_s = self.scheduler.now_s + seconds
        while (left_s := end_s - self.scheduler.now_s) > 0:
            self.scheduler.park(left_s)

    def wait_until(self, condition: Callable[[], Any], timeout_s: float, what: str = "") -> None:
        """Wait in virtual time until a condition holds; fail the run after `timeout_s`."""
        end_s = self.scheduler.now_s + timeout_s
        while not condition():
            if self.scheduler.now_s >= end_s:
                raise SimulationFailed(f"not within {timeout_s} s: {what or condition}")
            self.sleep(0.05)

    def start(self, target: Callable[..., Any], *arguments: Any, name: str | None = None) -> Process:
        """Start a process that calls `target(*arguments)` in its main thread, and ends when that returns.

        Parameters
        ----------
        target : callable
            A function of a module; the process imports the module for itself, with all of the client.
        *arguments : object
            Passed as they are: lists and objects of the scenario that the process changes are seen by the scenario.
        name : str, optional
            In the trace; by default the function's name and a number.
        """
        _place(target)
        number = len(self.processes) + 1
        process = Process(self, name or f"{target.__name__}-{number}", number)
        self.processes.append(process)

        def body() -> None:
            process.run(lambda: self._find(target)(*arguments))

        process.main = self.scheduler.start(process, body)
        self.trace(f"{process.name} starts")
        return process

    def alive(self, name: str = "") -> list[Process]:
        """Return the processes that have not ended, whose name begins with `name`."""
        return [process for process in self.processes if process.alive and process.name.startswith(name)]

    def fault(self, description: str, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Do a fault now, unless `--shrink` leaves it out; return what `action` returns, or None.

        Faults are numbered in their order. Draw random arguments before the call, so that a run without the fault
        draws the same numbers.
        """
        self.faults.append(description)
        self.fault_random = random.Random(f"{self.seed}:fault:{len(self.faults)}")
        if len(self.faults) in self._skip:
            return None
        self.trace(f"fault {len(self.faults)}: {description}")
        return action(*arguments, **options)

    def later(self, seconds: float, action: Callable[[], Any]) -> None:
        """Call `action` in a thread of the main process after virtual seconds."""

        def body() -> None:
            self.sleep(seconds)
            action()

        self.scheduler.start(self.main, body)

    def start_faults(self, actions: Sequence[Fault], every_s: tuple[float, float] = (0.2, 1.5)) -> FaultSchedule:
        """Start a thread that does one of the faults, chosen by seed, at random intervals, until `stop`."""
        return FaultSchedule(self, actions, every_s)

    def trace(self, event: str) -> None:
        """Add a line to the trace."""
        if self._report is not None:
            thread = self.scheduler.current
            self._report(f"{self.now_s:12.6f} {thread.name if thread is not None else '-':<16} {event}")

    def process_ended(self, process: Process) -> None:
        """Add the end of a process to the trace."""
        self.trace(f"{process.name} has ended{f' with {process.error!r}' if process.error else ''}")


class FaultSchedule:
    """Faults at random intervals, in a thread of the main process."""

    def __init__(self, world: Simulation, actions: Sequence[Fault], every_s: tuple[float, float]) -> None:
        self._world = world
        self._actions = list(actions)
        self._every_s = every_s
        self._random = random.Random(f"{world.seed}:faults")
        self._stopped = False
        world.scheduler.start(world.main, self._run)

    def _run(self) -> None:
        while True:
            self._world.sleep(self._random.uniform(*self._every_s))
            if self._stopped:
                return
            description, action = self._random.choice(self._actions)
            self._world.fault(description, action)

    def stop(self) -> None:
        """Do no more faults."""
        self._stopped = True


def _place(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """Return module and qualified name of a function that another process can import."""
    name = getattr(function, "__qualname__", "")
    if not name or "<" in name:
        raise ValueError(f"{function!r} is no function of a module: a process imports its function by name")
    return function.__module__, name.split(".")
