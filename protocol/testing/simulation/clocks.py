"""The module `time` of a simulated process: virtual time, and clocks that may differ from those of other processes."""

from __future__ import annotations

import time
from types import ModuleType

from protocol.testing.simulation.host import Host
from protocol.testing.simulation.scheduler import Scheduler

WALL_OFFSET_S = 1.7e9
"""Wall clock of the world's start: November 2023."""
_READING_COST_S = 1e-7


def time_module(scheduler: Scheduler, process: Host) -> ModuleType:
    """Return the module `time` of a process. Reading a clock takes time, so that a loop that only reads it ends."""
    module = ModuleType("time")
    vars(module).update({name: value for name, value in vars(time).items() if not name.startswith("__")})

    def monotonic() -> float:
        scheduler.now_s += _READING_COST_S
        return scheduler.now_s + process.monotonic_ahead_s

    def wall() -> float:
        scheduler.now_s += _READING_COST_S
        return scheduler.now_s + process.wall_ahead_s + WALL_OFFSET_S

    def sleep(seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        end_s = scheduler.now_s + process.monotonic_ahead_s + seconds
        while (left_s := end_s - scheduler.now_s - process.monotonic_ahead_s) > 0 or not seconds:
            scheduler.park(left_s)
            if not seconds:
                return

    vars(module).update(
        monotonic=monotonic,
        monotonic_ns=lambda: int(monotonic() * 1e9),
        perf_counter=monotonic,
        perf_counter_ns=lambda: int(monotonic() * 1e9),
        process_time=monotonic,
        thread_time=monotonic,
        sleep=sleep,
        time=wall,
        time_ns=lambda: int(wall() * 1e9),
    )
    return module
