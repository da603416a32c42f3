"""The parts of a world that do not depend on its seed: a worker makes them once, before it forks for each run."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from protocol.testing.simulation.code_cache import Observer
from protocol.testing.simulation.interrupts import Interrupts
from protocol.testing.simulation.modules import ModuleTables
from protocol.testing.simulation.network import Network
from protocol.testing.simulation.process import Process
from protocol.testing.simulation.scheduler import START_S, Scheduler

PACKAGES = ("protocol", "spark_kafka_source")
# Their imports bring most of the client.
_USUAL_MODULES = (
    "protocol.consumer.kafka_consumer",
    "protocol.producer.transactional_producer",
    "protocol.testing.fake_kafka.server",
)


def _beside(package: str) -> set[str]:
    """Return a top-level module or package of the user, and those in the same folder, which it may import."""
    module = sys.modules.get(package)
    if module is None or not module.__file__:
        return {package}
    path = Path(module.__file__)
    folder = path.parent.parent if path.name == "__init__.py" else path.parent
    if folder.name in ("site-packages", "dist-packages"):
        return {package}
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    return {package} | (names - sys.stdlib_module_names)


class Foundation:
    """Scheduler, network, and processes that have imported the client and the module of a scenario.

    These imports see the time of the start and separate random numbers, so that a run is the same whether its processes
    were prepared before it or during it. The parameters are those of `Simulation`.

    `random` is the source of `os.urandom`, and of seeds for generators without one. `processes` are the main process,
    and those that were started or prepared, by number. `report` receives lines of the trace.
    """

    def __init__(
        self, packages: Iterable[str] = (), preempt: Iterable[str] = (), observer: Observer | None = None
    ) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler)
        self.interrupts = Interrupts(self.scheduler)
        self.modules = ModuleTables(self.scheduler, {*PACKAGES, *packages}, tuple(preempt), observer)
        self.random = random.Random()
        self.processes: list[Process] = []
        self.report: Callable[[str], None] | None = None
        self._scenario = ""

    def seed(self, seed: int, switch_rate: float) -> None:
        """Begin a run."""
        self.scheduler.seed(seed, switch_rate)
        self.network.random.seed(f"{seed}:network")
        self.random.seed(f"{seed}:urandom")
        self.modules.order.seed = seed

    def use(self, scenario: str) -> None:
        """Import the module of a scenario in all processes prepared from now on."""
        self._scenario = scenario
        for package in _beside(scenario.partition(".")[0]):
            self.modules.add_package(package)

    def prepare(self, count: int) -> None:
        """Make the first `count` processes, which import their modules, unless they exist."""
        if count > len(self.processes):
            with self.installed():
                while count > len(self.processes):
                    self.processes.append(self._prepared(len(self.processes)))

    def process(self, number: int, name: str) -> Process:
        """Return the process with this number; make it if it is the next one."""
        if number == len(self.processes):
            self.processes.append(self._prepared(number))
        process = self.processes[number]
        process.name = name
        return process

    def _prepared(self, number: int) -> Process:
        process = Process(self, f"process-{number}", number)
        scheduler, order = self.scheduler, self.modules.order
        former = scheduler.current, scheduler.now_s, order.seed, self.random.getstate(), random.getstate()
        scheduler.current, scheduler.now_s, order.seed = process.main, START_S, 0
        self.random.seed(f"import:{number}")
        random.seed(f"import:{number}")
        try:
            for name in ("threading", self._scenario, *_USUAL_MODULES):
                with contextlib.suppress(Exception):  # a run that needs the module raises it again
                    self.modules.load(name)
        finally:
            scheduler.current, scheduler.now_s, order.seed, own_state, shared_state = former
            self.random.setstate(own_state)
            random.setstate(shared_state)
        return process

    # -- for processes ------------------------------------------------------------------------

    def trace(self, event: str) -> None:
        """Add a line to the trace."""
        if self.report is not None:
            thread = self.scheduler.current
            now_s = self.scheduler.now_s - START_S
            self.report(f"{now_s:12.6f} {thread.name if thread is not None else '-':<16} {event}")

    # -- the real world -----------------------------------------------------------------------

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the modules, random bytes, process ids and signals of the real world, for the length of the block."""
        draw, scheduler = self.random, self.scheduler
        real = os.urandom, os.getpid, os.register_at_fork, os.kill, random._urandom, random.Random  # type: ignore[attr-defined]
        state = random.getstate()

        class SeededRandom(random.Random):
            """A generator without a seed gets one of the world: the C code would ask the system for it."""

            def __init__(self, seed: Any = None) -> None:
                super().__init__(draw.getrandbits(64) if seed is None else seed)

        random.Random = SeededRandom  # type: ignore[assignment, misc]
        os.urandom = random._urandom = draw.randbytes  # type: ignore[attr-defined]
        os.getpid = lambda: scheduler.current.process.pid if scheduler.current is not None else real[1]()
        os.register_at_fork = lambda **_: None
        os.kill = self._kill
        self.modules.install()
        try:
            yield
        finally:
            self.modules.uninstall()
            os.urandom, os.getpid, os.register_at_fork, os.kill, random._urandom, random.Random = real  # type: ignore[attr-defined, misc]
            random.setstate(state)

    def _kill(self, pid: int, number: int) -> None:
        """Send a signal to a process of the world."""
        for process in self.processes:
            if process.pid == pid and process.started and process.alive:
                process.interrupt(number)
                return
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
