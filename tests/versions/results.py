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
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

JOBS = {
    "stream": "stream",
    "available_now": "availableNow with a limit",
    "batch": "batch",
    "sink": "sink",
    "exactly_once": "exactly once, killed",
    "member": "group member",
}


@dataclass
class Run:
    """The result of the jobs with one Spark and one Python.

    Attributes
    ----------
    packages : dict of str to str
        Installed versions of pyarrow, NumPy and pandas.
    jobs : dict
        By name: what the job observed, or its error.
    skipped : str
        The reason, if there was nothing to run.
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
    what = run.skipped or ", ".join(
        f"{name}: {job.get('error', 'ok')} ({job['seconds']} s)" for name, job in run.jobs.items()
    )
    return f"Spark {run.spark}, Python {run.python}, {run.packages}: {what or 'no job ended'}"


def page(before: str, pairs: Sequence[Run]) -> str:
    """Return docs/versions.md: the page as it was, with the rows of these runs."""
    rows = rows_of(before)
    for each in pairs:
        if not each.skipped:
            names = [each.packages.get(name, "") for name in ("pyarrow", "numpy", "pandas")]
            rows[each.spark, each.python] = [each.spark, each.python, *names, *(cell(each, job) for job in JOBS)]
    of_pairs = [rows[spark, python] for spark in SPARKS for python in PYTHONS if (spark, python) in rows]
    return f"{PREFACE}\n{table(['Spark', 'Python', 'pyarrow', 'NumPy', 'pandas', *JOBS.values()], of_pairs)}"


def rows_of(page: str) -> dict[tuple[str, str], list[str]]:
    """Return the rows of the table, by Spark and Python."""
    rows: dict[tuple[str, str], list[str]] = {}
    for line in page.splitlines():
        cells = [each.strip() for each in line.strip("| ").split("|")]
        if cells[0] in SPARKS:
            rows[cells[0], cells[1]] = cells
    return rows


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def cell(run: Run, job: str) -> str:
    """Return the cell of a job."""
    found = run.jobs.get(job)
    if found is None or "error" in found:
        return "fails"
    if job != "available_now":
        return "works"
    observed = found["observed"]
    committed = "committed at the end" if observed["committed at the end"] else "committed by the next run"
    return f"{observed['batches of the first run']} batch(es), {committed}"


PREFACE = """\
# Versions

`make versions` installs the wheel into an environment for each Spark and Python, runs six jobs there against a real
Kafka, and writes this page. The other packages are the oldest that this package, Spark and Python allow, or the
newest. Each row is the last run of its pair; the command repeats pairs whose last run was with other code. Each job
compares all rows, and the group's offsets with the ends of the logs:

* **stream**: a query reads rows while more are written; the group has the offsets of its last batch before it stops;
* **availableNow with a limit**: `maxOffsetsPerTrigger` is a sixth of the rows. Before 4.2, Spark gives a Python source
  one batch per run and does not tell it that the batch is complete;
* **batch**: from `startingOffsets` to `endingOffsets`;
* **sink**: a batch and a stream write rows;
* **exactly once, killed**: a copy in transactions that is killed four times writes each row once;
* **group member**: with `kafka.group.protocol=consumer` the query shares the topic with a client of the same group.
"""
