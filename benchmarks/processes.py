"""Resources of the descendants of this process, from /proc (Linux): peak memory of each, CPU time of all.

`PeakMemory` samples repeatedly while its `with` block runs; tests use it, too. Recognises Spark's processes by their
command lines.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

WORKER, DRIVER_SIDE = "worker", "driver side"
# PySpark's daemon gets the name of the workers' module on its command line; PySpark starts other daemons, too.
_WORKER_MODULE = "pyspark.worker"


class PeakMemory:
    """Samples the descendants of this process; after the block `peaks_mb` has (kind, process id) → megabytes.

    Kinds: `worker` (Spark's Python workers and the daemon that forks them) and `driver side` (the planners and the
    long-lived process of a stream's reader). `trail_mb` has every sample of each, in time order.
    """

    def __init__(self, every_s: float = 0.2) -> None:
        self.peaks_mb: dict[tuple[str, int], float] = {}
        self.trail_mb: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="peak-memory")

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def peak_mb(self, kind: str) -> float:
        """Return the peak of the largest process of this kind; 0 if there was none."""
        return max((peak for (of_kind, _), peak in self.peaks_mb.items() if of_kind == kind), default=0.0)

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            for pid in descendants(os.getpid()):
                kind, now_mb, peak_mb = _python_memory(pid)
                if kind:
                    self.peaks_mb[kind, pid] = max(peak_mb, self.peaks_mb.get((kind, pid), 0.0))
                    self.trail_mb[kind, pid].append(now_mb)


def cpu_s() -> float:
    """Return the CPU seconds of all descendants: Spark's JVM, its Python processes, also ended ones."""
    return sum(map(_cpu_s, descendants(os.getpid())))


def worker_cpu_s() -> float:
    """Return the CPU seconds of Spark's Python workers, which `cpu_s` includes."""
    return sum(_cpu_s(pid) for pid in descendants(os.getpid()) if _WORKER_MODULE in _command(pid))


def _cpu_s(pid: int) -> float:
    """Return user and system time of the process and its ended children; 0 if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15]) / os.sysconf("SC_CLK_TCK")


def _command(pid: int) -> list[str]:
    """Return the process's command line, empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def descendants(root: int) -> list[int]:
    """Return the process ids of all descendants of `root`."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            # The second field is the name in brackets, which may contain blanks; the parent is two fields later.
            children[int(stat.rpartition(")")[2].split()[1])].append(int(folder.name))
    result, remaining = [], [root]
    while remaining:
        below = children[remaining.pop()]
        result += below
        remaining += below
    return result


def _python_memory(pid: int) -> tuple[str, float, float]:
    """Return kind, current megabytes (without mapped files), and peak megabytes (with them).

    The kind is empty for a process that ended or is no Python process of Spark.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "", 0.0, 0.0
    module = next((part for part in _command(pid) if part.startswith("pyspark.")), "")
    if not module or "VmHWM" not in status:
        return "", 0.0, 0.0
    kb = {
        line.split(":")[0]: int(line.split()[1])
        for line in status.splitlines()
        if line.startswith(("VmHWM", "RssAnon"))
    }
    kind = WORKER if module in ("pyspark.daemon", "pyspark.worker") else DRIVER_SIDE
    return kind, kb["RssAnon"] / 1024, kb["VmHWM"] / 1024
