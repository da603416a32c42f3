"""Compares the processor time of the code here with that of another commit, in turns on one broker.

    python -m benchmarks.against_commit COMMIT [--turns 6] [JOB ...]

Each turn is a new process (`turn.py`), alternately with one code and the other. Run it on an idle machine; the ratio is
that of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.turn import JOBS
from protocol import Producer
from spark_kafka_source.local_kafka import LocalKafka

ROOT = Path(__file__).parents[1]
ROWS = 2_000_000
BATCH = 20_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

TOPICS: dict[str, dict[str, Any]] = {
    "rows": {},
    "headers": {"headers": True},
    "incompressible": {"value_bytes": 2_000, "compression": "none"},
    "one": {"partitions": 1},
    "thousand": {"partitions": 1_000},
    "wide": {"partitions": 1_000},
    "sink": {},
}
"""How each topic is filled."""

PLACES = {
    "read-headers": ("headers", ROWS // 2),
    "read-incompressible": ("incompressible", BATCH * 10),
    "trigger-1000-partitions": ("wide", 0),
    "poll": ("one", ROWS // 4),
    "poll-1000-partitions": ("thousand", ROWS // 20),
    "sink": ("sink", ROWS // 4),
    "sink-exactly-once": ("sink", ROWS // 4),
}
"""Topic and rows of a job; otherwise all of `rows`."""


def _fill(
    kafka: LocalKafka,
    topic: str,
    rows: int,
    *,
    value_bytes: int = 100,
    headers: bool = False,
    compression: str = "lz4",
    partitions: int = 4,
) -> None:
    """Write rows with keys; half of a compressible value is random."""
    kafka.create_topic(topic, partitions=partitions)
    random = np.random.default_rng(1)
    columns = {
        "key": pa.array([b"%d" % number for number in range(BATCH)], pa.binary()),
        "value": pa.array([_value(random, value_bytes, compression) for _ in range(BATCH)], pa.binary()),
    }
    if headers:
        columns["headers"] = pa.array([[{"key": "trace", "value": b"%d" % n}] for n in range(BATCH)], HEADERS)
    with Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": compression}) as producer:
        for _ in range(rows // BATCH):
            producer.send_columns(topic, pa.record_batch(columns))


def _value(random: np.random.Generator, size: int, compression: str) -> bytes:
    if compression == "none":
        return random.bytes(size)
    return random.integers(97, 122, size // 2, dtype=np.uint8).tobytes() + b"x" * (size - size // 2)


def _turn(script: Path, tree: Path, job: str, servers: str, topic: str, rows: int) -> float:
    ended = subprocess.run(
        [sys.executable, "-P", str(script), job, servers, topic, str(rows)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        # Both trees have compiled modules, whatever the surroundings say: the commit's is new.
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""},
    )
    if ended.returncode:
        raise RuntimeError(f"{job} in {tree}: {ended.stderr[-2000:]}")
    return float(ended.stdout.split()[-1])


def compare(commit: str, jobs: list[str], turns: int, script: Path) -> None:
    """Print the ratio of each job."""
    with TemporaryDirectory() as folder, LocalKafka() as kafka:
        before = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", str(before), commit], cwd=ROOT, check=True)
        try:
            places = {job: PLACES.get(job, ("rows", ROWS)) for job in jobs}
            for topic, rows in sorted(set(places.values())):
                _fill(kafka, topic, rows, **TOPICS[topic])
            for job in jobs:
                topic, rows = places[job]
                times: dict[Path, list[float]] = {before: [], ROOT: []}
                for turn in range(turns + 1):
                    for tree in sorted(times, reverse=turn % 2 == 0):
                        used_s = _turn(script, tree, job, kafka.bootstrap_servers, topic, rows)
                        if turn:  # the first one warms up the broker
                            times[tree].append(used_s)
                old, new = (statistics.median(times[tree]) for tree in (before, ROOT))
                ratios = " ".join(f"{b:.2f}/{a:.2f}" for a, b in zip(times[before], times[ROOT], strict=True))
                print(f"{job:24} {new / old:6.3f}  {new:.3f} s / {old:.3f} s  ({ratios})", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=ROOT, check=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("jobs", nargs="*", default=list(JOBS), metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--script", type=Path, default=Path(__file__).with_name("turn.py"), help="for an older API")
    namespace = parser.parse_args()
    compare(namespace.commit, namespace.jobs or list(JOBS), namespace.turns, namespace.script)


if __name__ == "__main__":
    main()
