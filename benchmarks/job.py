"""The task of one benchmark (`Job`), its results (`Figure`), and their exchange with a fresh process.

Every section runs as `python -m benchmarks.SECTION JOB`: the job is JSON in its argument, the figures are JSON
on standard output, progress goes to standard error. Independent of Spark and Kafka.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

OURS = "pykafka-group"
JVM = "kafka (JVM)"
PROTOCOL = "protocol"
# Python sources that contact no broker: see `constant_source`.
CONSTANT, EMPTY = "constant rows", "no rows"
# Fetches as this source does, and decodes nothing: see `undecoded_source`.
UNDECODED = "undecoded"
# This source, without a format of values.
BINARY = "binary"

REPOSITORY = Path(__file__).resolve().parents[1]


ORDERS, EVENTS = "orders", "events"


@dataclass(frozen=True)
class Topic:
    """A topic with records, in record batches of at most `batch_bytes`.

    `values` is `ORDERS` (keys of 8 bytes, values of exactly `value_bytes`, partitions in turn) or `EVENTS` (keys and
    JSON values of varying length, `value_bytes` on average, partitions by the hash of the key).
    """

    name: str
    records: int
    value_bytes: int
    compression: str
    partitions: int
    batch_bytes: int
    linger_ms: int = 200
    values: str = ORDERS

    @property
    def label(self) -> str:
        if self.values == EVENTS:
            return f"{self.records / 1e6:g} million events, {self.compression}"
        size = f"{self.value_bytes} B" if self.value_bytes < 1024 else f"{self.value_bytes // 1024} KiB"
        return f"{size} {self.compression}"


@dataclass(frozen=True)
class Job:
    """The task of one section: the broker, the filled topics, and the amounts."""

    bootstrap_servers: str
    topics: tuple[Topic, ...] = ()
    rounds: int = 3
    warm_up_rounds: int = 3
    micro_batches: int = 5
    sink_records: int = 1_000_000
    sink_value_bytes: int = 100
    trigger_batches: int = 60
    records_per_second: int = 200
    spark_conf: dict[str, str] = field(default_factory=dict)
    secured: dict[str, str] = field(default_factory=dict)
    """Options `kafka.…` for a listener with TLS or SASL, for all contestants."""
    options: dict[str, str] = field(default_factory=dict)
    """Additional options for this project's source, for experiments."""
    only: tuple[str, ...] = ()
    """The contestants to run; all if empty."""

    def round_numbers(self, *, fresh: bool) -> range:
        """Return the numbers of rounds; those below 1 are not measured.

        A fresh session has `warm_up_rounds` of them, until Java has compiled the code of Spark's connector. Later
        topics or settings have one.
        """
        return range(1 - (self.warm_up_rounds if fresh else 1), self.rounds + 1)

    def wants(self, who: str) -> bool:
        return not self.only or any(name.lower() in who.lower() for name in self.only)


@dataclass(frozen=True)
class Figure:
    """Result of one contestant: the median of `samples`, in `unit`.

    `paired`: sample i of each contestant is from the same round, so ratios are those of pairs.
    """

    section: str
    subject: str
    measure: str
    unit: str
    who: str
    samples: tuple[float, ...]
    paired: bool = False

    @property
    def value(self) -> float:
        return statistics.median(self.samples)


def say(line: str) -> None:
    """Print one line of progress."""
    print(line, file=sys.stderr, flush=True)


def run_section(module: str, job: Job, *arguments: str) -> list[Figure]:
    """Run `benchmarks.MODULE` in a fresh process; return its figures. Raises `RuntimeError` if it failed."""
    command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(asdict(job)), *arguments]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        # Otherwise Spark starts the python3 of PATH for its workers.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(REPOSITORY / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # Compile an installed package once, instead of in every process that Spark starts.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY)
    if ended.returncode != 0:
        raise RuntimeError(f"benchmarks.{module} {' '.join(arguments)} failed, exit code {ended.returncode}")
    return [Figure(**{**row, "samples": tuple(row["samples"])}) for row in json.loads(ended.stdout.splitlines()[-1])]


def section_main(measure: Callable[[Job, Sequence[str]], list[Figure]]) -> None:
    """Counterpart of `run_section`, for the end of a section's module."""
    settings = json.loads(sys.argv[1])
    settings["topics"] = tuple(Topic(**topic) for topic in settings["topics"])
    settings["only"] = tuple(settings["only"])
    figures = measure(Job(**settings), sys.argv[2:])
    print(json.dumps([asdict(figure) for figure in figures]))
