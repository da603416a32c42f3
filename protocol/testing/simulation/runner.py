"""Run scenarios in separate processes: one seed, or many on several cores."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import ConfigurationError
from protocol.testing.simulation.scheduler import SimulationFailed

Scenario = Callable[..., Any] | str
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run in another process.

    Attributes
    ----------
    digest : str
        Digest of all switches, sends and times: equal for the same seed.
    switches, deviations : int
        All switches, and the voluntary ones: those that a thread made where it need not wait.
    faults : list of str
        Descriptions of the faults, in order.
    processes : int
        Simulated processes that the scenario has started.
    kills : int
        Processes that were killed before they ended by themselves and before the faults were stopped.
    result : object
        Return value of the scenario, as JSON.
    trace : list of str
        The last lines of the trace.
    observed : object
        Result of the observer, as JSON.
    """

    seed: int = -1
    error: str | None = None
    traceback: str = ""
    digest: str = ""
    switches: int = 0
    deviations: int = 0
    faults: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    real_s: float = 0.0
    processes: int = 0
    kills: int = 0
    result: Any = None
    trace: list[str] = field(default_factory=list)
    observed: Any = None


class Worker:
    """A process in which scenarios run, each in a fork of it. Not thread-safe.

    Parameters
    ----------
    environment : mapping of str to str, optional
        More variables of its environment.

    Raises
    ------
    ConfigurationError
        greenlet is not installed.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        if importlib.util.find_spec("greenlet") is None:
            raise ConfigurationError("simulations need greenlet: install this package with the extra `simulation`")
        variables = {**os.environ, **_ENVIRONMENT, **(environment or {})}
        variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "protocol.testing.simulation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            text=True,
            start_new_session=True,  # Ctrl-C lets the current run end
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def run(
        self,
        scenario: Scenario,
        seed: int,
        *arguments: Any,
        packages: Iterable[str] = (),
        limit_s: float = 900.0,
        real_limit_s: float = 300.0,
        faults: Iterable[int] | None = None,
        switches: Sequence[tuple[int, int]] | None = None,
        preempt: Sequence[str] = (),
        trace: bool = False,
        log_level: str = "WARNING",
        observer: str | None = None,
        prepare: bool = True,
    ) -> Outcome:
        """Run one seed of a scenario.

        Parameters
        ----------
        scenario : callable or str
            A function of a module, or `module:function`; called with the `Simulation` and `arguments`.
        *arguments : object
            Values of JSON.
        packages, limit_s, preempt
            As in `Simulation`.
        real_limit_s : float
            Real time after which the process of the run ends, with the stacks on standard error.
        faults : iterable of int, optional
            Numbers of the faults that happen; by default all.
        switches : sequence of (int, int), optional
            Half-open ranges of the voluntary switches that happen; by default all.
        trace : bool
            Write the trace to standard error while the run lasts.
        log_level : str
            Log records of this level, or above, are in the trace.
        observer : str, optional
            `module:class` of an `Observer`.
        prepare : bool
            Prepare processes for the next run of the scenario. False if a run changes the code that they import.
        """
        options = {
            "scenario": scenario_name(scenario),
            "seed": seed,
            "arguments": arguments,
            "packages": list(packages),
            "limit_s": limit_s,
            "real_limit_s": real_limit_s,
            "faults": None if faults is None else list(faults),
            "switches": switches,
            "preempt": list(preempt),
            "trace": trace,
            "log_level": log_level,
            "observer": observer,
            "prepare": prepare,
            "path": [path for path in sys.path if path],
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SimulationFailed(f"the worker has ended with status {self._process.wait()}")
        return Outcome(**{"seed": seed, **json.loads(line)})


def scenario_name(scenario: Scenario) -> str:
    """Return `module:function`."""
    return scenario if isinstance(scenario, str) else f"{scenario.__module__}:{scenario.__qualname__}"


def simulate(
    scenario: Scenario, seed: int = 0, *arguments: Any, worker: Worker | None = None, **options: Any
) -> Outcome:
    """Run one seed of a scenario in a separate process, with the options of `Worker.run`.

    Parameters
    ----------
    scenario : callable or str
        A function of a module, or `module:function`; called with the `Simulation` and `arguments`.
    *arguments : object
        Values of JSON.
    worker : Worker, optional
        The process; by default a new one, whose start takes about a second.

    Raises
    ------
    SimulationFailed
        The scenario has failed. The message has seed, command, error and the end of the trace.
    """
    with nullcontext(worker) if worker is not None else Worker() as process:
        outcome = process.run(scenario, seed, *arguments, **options)
    if outcome.error is not None:
        raise SimulationFailed(failure_text(scenario, outcome))
    return outcome


def failure_text(scenario: Scenario, outcome: Outcome, command: str | None = None) -> str:
    """Return the message of a failed run: seed, command, error, traceback, and the end of the trace."""
    name = scenario_name(scenario)
    again = command or f"python -m protocol.testing.simulation {name} --seed {outcome.seed}"
    lines = [f"{name} failed with seed {outcome.seed}: {outcome.error}", f"Run it again: {again}"]
    return "\n".join([*lines, outcome.traceback, *outcome.trace])


def run_seeds(
    scenario: Scenario,
    seeds: Iterable[int],
    jobs: int = 1,
    report: Callable[[Outcome], object] = lambda outcome: None,
    **options: Any,
) -> list[Outcome]:
    """Run many seeds on several cores; call `report` with every outcome as it comes, and return the failed ones."""
    failed: list[Outcome] = []

    def check(_: Scenario, outcome: Outcome) -> None:
        report(outcome)
        if outcome.error is not None:
            failed.append(outcome)

    run_all(((scenario, seed) for seed in seeds), jobs, check, **options)
    return failed


def run_all(
    runs: Iterable[tuple[Scenario, int]], jobs: int, report: Callable[[Scenario, Outcome], object], **options: Any
) -> None:
    """Run pairs of scenario and seed on several cores; call `report` with every outcome, one at a time."""
    pairs, lock, stopped = iter(runs), threading.Lock(), threading.Event()

    def take() -> tuple[Scenario, int] | None:
        with lock:
            return None if stopped.is_set() else next(pairs, None)

    def work() -> None:
        with Worker() as worker:
            while (pair := take()) is not None:
                outcome = worker.run(*pair, **options)
                with lock:
                    report(pair[0], outcome)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(work) for _ in range(jobs)]:
                future.result()
        except BaseException:
            stopped.set()
            raise
