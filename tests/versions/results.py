"""Results of runs, as kept in build/versions and as shown in docs/versions.md."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

JOBS = {
    "stream": "stream",
    "available_now": "availableNow with a limit",
    "batch": "batch",
    "sink": "sink",
    "exactly_once": "exactly once, killed",
    "member": "group member",
    "named_sources": "named sources",
}
DEPLOYMENTS = {
    "connect": "Connect",
    "standalone": "standalone, 2 workers",
    "local_cluster": "local-cluster",
    "pipelines": "pipelines",
}


@dataclass
class Run:
    """The result of the jobs with one Spark and one Python.

    `packages`: installed versions of pyarrow, NumPy and pandas.
    `jobs`: by name, what the job observed, its error, or why this Spark does not have it.
    `skipped`: the reason, if there was nothing to run.
    """

    spark: str
    python: str
    packages: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: str = ""

    def green(self, jobs: dict[str, str]) -> bool:
        """Return True if all these jobs have run without an error, or there was nothing to run."""
        failed = any("error" in job for job in self.jobs.values())
        return bool(self.skipped) or (set(self.jobs) == set(jobs) and not failed)


def digest_of(wheel: Path, *jobs: Path) -> str:
    """Return a digest of the code that runs: that of the wheel, without its metadata, and the jobs."""
    digest = hashlib.sha256()
    for job in jobs:
        digest.update(job.read_bytes())
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            if ".dist-info/" not in name:
                digest.update(name.encode() + files.read(name))
    return digest.hexdigest()


def earlier_run(folder: Path, digest: str) -> Run | None:
    """Return the last green result of an environment, if it is of the same wheel and jobs."""
    result = folder / "result.json"
    if not result.exists():
        return None
    earlier = json.loads(result.read_text())
    return Run(**earlier["run"]) if digest == earlier["digest"] else None


def keep(run: Run, folder: Path, digest: str) -> None:
    """Write a green result into the folder of its environment."""
    (folder / "result.json").write_text(json.dumps({"digest": digest, "run": asdict(run)}))


def summary(run: Run) -> str:
    """Return one line for a terminal."""
    label = run.skipped or ", ".join(
        f"{name}: {job.get('error') or job.get('missing', 'ok')} ({job['seconds']} s)" for name, job in run.jobs.items()
    )
    return f"Spark {run.spark}, Python {run.python}, {run.packages}: {label or 'no job ended'}"


def page(before: str, pairs: Sequence[Run], deployed: Sequence[Run]) -> str:
    """Return docs/versions.md: the page as it was, with the rows of these runs."""
    rows = rows_of(before)
    for pair in pairs:
        if not pair.skipped:
            names = [pair.packages.get(name, "") for name in ("pyarrow", "numpy", "pandas")]
            rows[pair.spark, pair.python] = [pair.spark, pair.python, *names, *(cell(pair, job) for job in JOBS)]
    for run in deployed:
        if not run.skipped:
            rows[run.spark,] = [run.spark, *(cell(run, job) for job in DEPLOYMENTS)]
    of_pairs = [rows[spark, python] for spark in SPARKS for python in PYTHONS if (spark, python) in rows]
    of_sparks = [rows[spark,] for spark in SPARKS if (spark,) in rows]
    first = table(["Spark", "Python", "pyarrow", "NumPy", "pandas", *JOBS.values()], of_pairs)
    second = table(["Spark", *DEPLOYMENTS.values()], of_sparks)
    brokers = "".join(before.partition(BROKERS)[1:])
    return f"{PREFACE}\n{first}\n{DEPLOYED}\n{second}\n{FREE_THREADED}{brokers}"


def rows_of(page: str) -> dict[tuple[str, ...], list[str]]:
    """Return the rows of both tables by Spark and Python, or by Spark; newer jobs than a row are not run in it."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for line in page.splitlines():
        cells = [text.strip() for text in line.strip("| ").split("|")]
        if cells[0] in SPARKS:
            key, width = (cells[:2], 5 + len(JOBS)) if cells[1] in PYTHONS else (cells[:1], 1 + len(DEPLOYMENTS))
            rows[tuple(key)] = cells + ["not run"] * (width - len(cells))
    return rows


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def cell(run: Run, job: str) -> str:
    """Return the cell of a job."""
    result = run.jobs.get(job)
    if result is None or "error" in result:
        return "fails"
    if "missing" in result:
        return str(result["missing"])
    observed = result["observed"]
    if "committed at the end" not in observed:
        return "works"
    committed = "committed at the end" if observed["committed at the end"] else "committed by the next run"
    return f"{observed['batches of the first run']} batch(es), {committed}" if job in JOBS else f"works, {committed}"


# The first line of a section that `make matrix` is the source of.
BROKERS = "\n## Brokers\n"

PREFACE = """\
# Versions

`make versions` installs the wheel into an environment for each Spark and Python, runs seven jobs there against a real
Kafka, and writes this page. The other packages are the oldest that this package, Spark and Python allow, or the
newest. Each row is the last run with its Spark and Python; the command repeats a run if the code has changed since.
Each job compares all rows, and the group's offsets with the log end offsets:

* **stream**: a query reads rows while more are written; the group has the offsets of its last batch before it stops;
* **availableNow with a limit**: `maxOffsetsPerTrigger` is a sixth of the rows. The share of each partition is rounded
  down, so that seven batches read all rows. Before 4.2, Spark gives a Python source one batch per run and does not tell
  it that the batch is complete;
* **batch**: from `startingOffsets` to `endingOffsets`;
* **sink**: a batch and a stream write rows;
* **exactly once, killed**: a copy in transactions that is killed four times writes each row once;
* **group member**: with `kafka.group.protocol=consumer` the query shares the topic with a client of the same group;
* **named sources**: sources with `readStream.name()` are reordered, added and removed between runs of a query.
"""

FREE_THREADED = """\
## Free-threaded Python

Not supported yet; a free-threaded Python 3.14 has not been tried. With that of 3.13, for which pyarrow 24, NumPy 2.4,
lz4 4.4 and crc32c 2.8 have wheels, the GIL stays off. Against `FakeKafka`, four times: eight threads shared a producer,
and the log had all rows in order; a consumer group with eight claims, eight members of another group, and a processor
with eight threads read all of them. The client's tests were not run with it.
"""

DEPLOYED = """\
## Deployments

For each Spark, with Python 3.12 and the newest packages, `make versions` also starts these deployments from the PySpark
of the package index. In each, a stream with `availableNow` copies a topic to another topic. All rows are compared, and
the group's offsets with the log end offsets. Before 4.2, the query's next run commits its last batch.

* **Connect**: a Spark Connect server in a separate process;
* **standalone**: a master and two workers, with one executor each;
* **local-cluster**: `local-cluster[2,1,1024]`, with two executors;
* **pipelines**: `spark-pipelines run --remote`, with a flow from the topic to a sink.
"""
