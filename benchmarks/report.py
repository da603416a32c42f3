"""Report of a run: a table with ratios, JSON, and a description of the machine.

Reads only the description of the machine from the system. Called by `run`.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.job import BINARY, CONSTANT, EMPTY, JVM, OURS, PROTOCOL, Figure
from tests.support.jvm_connector import CONNECTOR_VERSION

_PACKAGES = ("pyspark", "pyarrow", "numpy", "crc32c", "lz4", "confluent-kafka", "aiokafka", "kafka-python")

# The project's goals: (section, competitor) → ratio ours / theirs, and the better side.
_AIMS = {
    ("source", JVM): (1.0, "at least"),
    ("sink", JVM): (1.0, "at least"),
    ("source-sasl-ssl", JVM): (1.0, "at least"),
    ("sink-sasl-ssl", JVM): (1.0, "at least"),
    ("client", "confluent-kafka"): (3.0, "at least"),
    ("producer", "confluent-kafka"): (2.0, "at least"),
    ("trigger", JVM): (1.3, "at most"),
    ("memory", ""): (400.0, "at most"),
    ("partitions", JVM): (0.05, "at most"),
    ("partitions", ""): (5_000.0, "at most"),
    ("events", JVM): (1.0, "at least"),
    ("ceiling, source", CONSTANT): (0.85, "at least"),
}
# The same as a maximum difference, in the unit of the figure.
_MAX_ABOVE = {("first batch", EMPTY): 300.0, ("decoding-memory", BINARY): 64.0}


def machine() -> dict[str, Any]:
    """Return cores, processor, memory, load, and the versions of all packages involved."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()[:1]
    return {
        "cores": os.cpu_count(),
        "processor": _from_file("/proc/cpuinfo", "model name") or platform.processor(),
        "memory": _from_file("/proc/meminfo", "MemTotal"),
        "load": [round(load, 1) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java[0] if java else "",
        "packages": {name: _version(name) for name in _PACKAGES} | {"spark-sql-kafka-0-10": CONNECTOR_VERSION},
    }


def table(figures: Sequence[Figure]) -> str:
    """Return one line per contestant, the first of each group ours, with its ratio to each of the others."""
    lines = [f"{'':<44}{'':<18}{'median':>12} {'least':>12} {'most':>12}  ours to theirs"]
    for (section, subject, measure), group in _grouped(figures):
        ours = next((figure for figure in group if figure.who in (OURS, PROTOCOL)), None)
        for figure in group:
            title = f"{section}, {subject}: {measure}" if figure is group[0] else ""
            if len(title) > 43:
                lines.append(title)
                title = ""
            low, high = min(figure.samples), max(figure.samples)
            row = f"{title:<44}{figure.who:<18}{figure.value:>12,.0f} {low:>12,.0f} {high:>12,.0f} {figure.unit:<10}"
            lines.append(f"{row}{_compared(ours, figure)}".rstrip())
    return "\n".join(lines)


def as_json(figures: Sequence[Figure], about: dict[str, Any]) -> dict[str, Any]:
    """Return all figures, with `value` the median of `samples`."""
    return {**about, "figures": [asdict(figure) | {"value": figure.value} for figure in figures]}


def _compared(ours: Figure | None, figure: Figure) -> str:
    """Return the ratio ours to theirs, and whether it meets the goal."""
    if ours is None or (figure is ours and (figure.section, "") not in _AIMS):
        return ""
    max_above = _MAX_ABOVE.get((figure.section, figure.who))
    if max_above is not None:
        above = ours.value - figure.value
        verdict = "reached" if above <= max_above else "MISSED"
        return f"{above:+,.0f} {figure.unit} (at most {max_above:+g}: {verdict})"
    ratio, shown = (figure.value, "") if figure is ours else _ratio(ours, figure)
    aim, side = _AIMS.get((figure.section, "" if figure is ours else figure.who), (None, ""))
    if aim is None or (figure.unit == "ns/record"):
        return shown
    reached = ratio >= aim if side == "at least" else ratio <= aim
    return f"{shown} ({side} {aim:g}: {'reached' if reached else 'MISSED'})".strip()


def _ratio(ours: Figure, figure: Figure) -> tuple[float, str]:
    """Return the ratio of medians, or the median of the ratios of pairs, with their range."""
    if not (ours.paired and figure.paired):
        return ours.value / figure.value, f"{ours.value / figure.value:.2f}"
    ratios = [our / their for our, their in zip(ours.samples, figure.samples, strict=True)]
    median = statistics.median(ratios)
    return median, f"{median:.2f}, of {len(ratios)} pairs from {min(ratios):.2f} to {max(ratios):.2f}"


def _grouped(figures: Iterable[Figure]) -> Iterable[tuple[tuple[str, str, str], list[Figure]]]:
    groups: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in figures:
        groups.setdefault((figure.section, figure.subject, figure.measure), []).append(figure)
    for key, group in groups.items():
        yield key, sorted(group, key=lambda figure: figure.who not in (OURS, PROTOCOL))


def _from_file(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
