"""What the processes below this one use, read from /proc (Linux): the most memory each ever held, CPU time of all.

`PeakMemory` looks again and again while its `with` block runs; it is of use to tests as well. Knows Spark's processes
by their command lines, and nothing else of Spark.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

WORKER, DRIVER_SIDE = "worker", "driver side"
# The daemon that workers are forked from is told which module they run; others of PySpark's have their own daemons.
_WORKER_MODULE = "pyspark.worker"


class PeakMemory:
    """Watches the descendants of this process; after the block `peaks_mb` has (kind, process id) → megabytes.

    Kinds: `worker` (Spark's Python workers and the daemon they are forked from) and `driver side` (the planners and the
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
        """Of the largest process of this kind; 0 if there was none."""
        return max((peak for (of_kind, _), peak in self.peaks_mb.items() if of_kind == kind), default=0.0)

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            for pid in descendants(os.getpid()):
                kind, now_mb, peak_mb = _python_memory(pid)
                if kind:
                    self.peaks_mb[kind, pid] = max(peak_mb, self.peaks_mb.get((kind, pid), 0.0))
                    self.trail_mb[kind, pid].append(now_mb)


def cpu_s() -> float:
    """Seconds of CPU that all processes below this one have used: Spark's JVM, its Python processes, dead ones too."""
    return sum(map(_cpu_s, descendants(os.getpid())))


def worker_cpu_s() -> float:
    """Of these seconds, those of Spark's Python workers."""
    return sum(_cpu_s(pid) for pid in descendants(os.getpid()) if _WORKER_MODULE in _command(pid))


def _cpu_s(pid: int) -> float:
    """User and system time, of the process itself and of children that have ended; 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15]) / os.sysconf("SC_CLK_TCK")


def _command(pid: int) -> list[str]:
    """The process's command line, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def descendants(root: int) -> list[int]:
    """The process ids of all processes below `root`."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            # The second field is the name, in brackets, and may hold blanks; the parent is the second after it.
            children[int(stat.rpartition(")")[2].split()[1])].append(int(folder.name))
    found, left = [], [root]
    while left:
        below = children[left.pop()]
        found += below
        left += below
    return found


def _python_memory(pid: int) -> tuple[str, float, float]:
    """Kind, megabytes now (without mapped files), and at most (with them).

    An empty kind for what is gone or no Python process of Spark.
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
