"""One world that a seed decides: processes, threads, time, network and faults."""

from __future__ import annotations

import gc
import importlib.util
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.testing.simulation.code_cache import Observer
from protocol.testing.simulation.foundation import Foundation
from protocol.testing.simulation.process import Process
from protocol.testing.simulation.scheduler import START_S, SimulationFailed

Fault = tuple[str, Callable[[], Any]]
"""A description and what it does."""
_SWITCH_RATES = (0.02, 0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Run:
    """The outcome of a run.

    Attributes
    ----------
    digest : str
        Digest of all switches, sends and times: equal for the same seed.
    switches, deviations : int
        All switches, and the voluntary ones: those that a thread made where it need not wait.
    result : object
        Return value of the scenario.
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
        Top-level packages of which each simulated process gets its own copy, beside `protocol`, `spark_kafka_source`,
        that of the scenario and those in its folder. Code in others that starts threads, waits or reads the time is
        not simulated.
    limit_s : float
        Virtual time after which the run fails, as a hang.
    switch_rate : float, optional
        Probability of a switch where a thread need not wait; by default the seed chooses.
    faults : iterable of int, optional
        Numbers of the faults that happen (`--shrink`); by default all.
    allow : callable, optional
        Returns False for numbers of voluntary switches that do not happen (`--shrink`).
    preempt : iterable of str
        Modules, or packages, in which a switch may happen before any statement.
    report : callable, optional
        Called with each line of the trace: virtual time, thread, event.
    observer : Observer, optional
        Sees the modules of all processes, for measurements.
    foundation : Foundation, optional
        Made before, with the same packages, `preempt` and observer.

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
        faults: Iterable[int] | None = None,
        allow: Callable[[int], bool] | None = None,
        preempt: Iterable[str] = (),
        report: Callable[[str], None] | None = None,
        observer: Observer | None = None,
        foundation: Foundation | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(f"{seed}:scenario")
        rate = self.random.choice(_SWITCH_RATES)
        self._foundation = foundation or Foundation(packages, preempt, observer)
        self._foundation.seed(seed, rate if switch_rate is None else switch_rate)
        self._foundation.report = report
        self.scheduler = self._foundation.scheduler
        self.scheduler.limit_s = self.scheduler.now_s + limit_s
        self.scheduler.is_allowed = allow
        self.network = self._foundation.network
        self.interrupts = self._foundation.interrupts
        self.processes: list[Process] = []
        self.faults: list[str] = []
        self.fault_random = random.Random(f"{seed}:fault")
        self._faults = None if faults is None else frozenset(faults)
        self._kills_at_stop: int | None = None
        self._ran = False
        self._real_from_s = time.perf_counter()

    # -- running ------------------------------------------------------------------------------

    def run(self, scenario: Callable[..., Any], *arguments: Any) -> Run:
        """Run `scenario(simulation, *arguments)` in the main process of the world, until it returns.

        Parameters
        ----------
        scenario : callable
            A function of a module, which is imported again in the world.

        Raises
        ------
        Exception
            The error of the scenario.
        SimulationFailed
            An exception in a thread, a deadlock, or a hang. At the end of the scenario also the exception of a process
            that `Process.join` has not raised.

        Notes
        -----
        Call it in a separate process, as `simulate` and the runner do: it changes `os.urandom`, `random`, the garbage
        collector and the import of modules while it runs.
        """
        if self._ran:
            raise RuntimeError("a Simulation runs once; make another one")
        self._ran = True
        self._foundation.use(_place(scenario)[0])
        self._real_from_s = time.perf_counter()
        box: list[Any] = []

        def body() -> None:
            box.append(self._find(scenario)(self, *arguments))
            self._check_processes()

        collects = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            with self._foundation.installed():
                self.main = self._foundation.process(0, "main")
                random.seed(f"{self.seed}:random")
                self.scheduler.run(self.main, body)
        finally:
            gc.unfreeze()
            if collects:
                gc.enable()
        return Run(self.seed, result=box[0], **self.summary())

    def _check_processes(self) -> None:
        """Raise `SimulationFailed` if an exception has ended a process, and `join` has not raised it."""
        for process in self.processes:
            if process.check_failed:
                assert process.error is not None
                raise SimulationFailed(f"{process.name} ended with {process.error!r}") from process.error

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

    @property
    def kills(self) -> int:
        """Processes that were killed before they ended by themselves and before the last `FaultSchedule.stop`."""
        killed = sum(process.killed for process in self.processes)
        return killed if self._kills_at_stop is None else self._kills_at_stop

    def faults_stopped(self) -> None:
        """Count no more kills: the scenario itself ends processes now."""
        self._kills_at_stop = sum(process.killed for process in self.processes)

    def _find(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the copy of a function in the current process."""
        module, names = _place(function)
        try:
            owner: Any = self._foundation.modules.load(module)
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
        return self.scheduler.now_s - START_S

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        end_s = self.scheduler.now_s + seconds
        while (left_s := end_s - self.scheduler.now_s) > 0:
            self.scheduler.park(left_s)

    def wait_until(
        self, condition: Callable[[], Any], timeout_s: float, awaited: str | Callable[[], object] = "the condition"
    ) -> None:
        """Wait in virtual time until a condition holds; fail the run after `timeout_s`.

        The failure has the text `awaited`, or that of a function, which is called then and may say what is missing. An
        exception that ends a process, and that `Process.join` has not raised, fails the run without further waiting.
        """
        end_s = self.scheduler.now_s + timeout_s
        while not condition():
            self._check_processes()
            if self.scheduler.now_s >= end_s:
                raise SimulationFailed(f"not within {timeout_s} s: {awaited() if callable(awaited) else awaited}")
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
        process = self._foundation.process(number, name or f"{target.__name__}-{number}")
        self.processes.append(process)

        def body() -> None:
            process.run(lambda: self._find(target)(*arguments))

        self.scheduler.start(process, body, process.main)
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
        if self._faults is not None and len(self.faults) not in self._faults:
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
        """Start a thread that does one of the faults, chosen by seed, until `stop`.

        Parameters
        ----------
        actions : sequence of (str, callable)
            Descriptions and functions without parameters, all equally likely; several times in it: more likely.
        every_s : (float, float)
            Bounds of the intervals between two faults, in virtual seconds.
        """
        return FaultSchedule(self, actions, every_s)

    def trace(self, event: str) -> None:
        """Add a line to the trace."""
        self._foundation.trace(event)


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
        self._world.faults_stopped()


def _place(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """Return module and qualified name of a function that another process can import."""
    name = getattr(function, "__qualname__", "")
    if not name or "<" in name:
        raise ValueError(f"{function!r} is no function of a module: a process imports its function by name")
    return function.__module__, name.split(".")
