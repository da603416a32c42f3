"""Run the jobs of `jobs.py` with each Spark and each Python, and write docs/versions.md.

    python -m tests.versions [--spark 4.2.1] [--python 3.12] [--table docs/versions.md]

The wheel is built once and installed into an environment per Spark and Python. The other packages alternate: the
oldest that this package, Spark and Python allow, or the newest. Environments and results stay in build/versions; a run
whose wheel and environment have not changed is not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spark_kafka_source.local_kafka import LocalKafka

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "versions"
SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LIMIT_S = 3_600

# The oldest releases with wheels for the Python, that this package (pyarrow 16, NumPy 1.26) and Spark admit.
OLDEST_PYARROW = {"4.0": 16, "4.1": 16, "4.2": 18, "4.3": 18}
OLDEST_PYARROW_OF_PYTHON = {"3.13": 18}
OLDEST_NUMPY = {"3.13": "2.1.0"}
OLDEST_PANDAS = {"3.13": "2.2.3"}

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

    @property
    def green(self) -> bool:
        return bool(self.skipped) or (
            set(self.jobs) == set(JOBS) and not any("error" in job for job in self.jobs.values())
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; return 1 if a job has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spark", action="append", choices=SPARKS, help="only this Spark; repeatable")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this Python; repeatable")
    parser.add_argument("--table", type=Path, help="file for the table of the last result of each pair")
    given = parser.parse_args(arguments)
    wheel = build_wheel()
    digest = digest_of(wheel)
    runs = []
    with LocalKafka() as kafka:
        for row, spark in enumerate(SPARKS):
            for column, python in enumerate(PYTHONS):
                wanted = spark in (given.spark or SPARKS) and python in (given.python or PYTHONS)
                found = earlier_run(spark, python, digest if wanted else None)
                if found is None and wanted:
                    found = run(wheel, spark, python, kafka.bootstrap_servers, oldest=(row + column) % 2 == 0)
                    if found.green and not found.skipped:
                        result_file(spark, python).write_text(json.dumps({"digest": digest, "run": asdict(found)}))
                if found is not None:
                    runs.append(found)
                    print(summary(found), flush=True)
    if given.table is not None:
        given.table.write_text(page(runs))
    return 0 if all(each.green for each in runs) else 1


def build_wheel() -> Path:
    """Build the wheel of this checkout; return its path."""
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    pip(tools(), "wheel", "--no-deps", "--wheel-dir", str(BUILD / "wheel"), str(ROOT))
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    return wheel


def digest_of(wheel: Path) -> str:
    """Return a digest of the code that runs: that of the wheel, without its metadata, and the jobs."""
    digest = hashlib.sha256(Path(__file__).with_name("jobs.py").read_bytes())
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            if ".dist-info/" not in name:
                digest.update(name.encode() + files.read(name))
    return digest.hexdigest()


def folder_of(spark: str, python: str) -> Path:
    """Return the folder of the environment."""
    return BUILD / f"spark-{spark}-python-{python}"


def result_file(spark: str, python: str) -> Path:
    """Return the file with the last green result."""
    return folder_of(spark, python) / "result.json"


def earlier_run(spark: str, python: str, digest: str | None) -> Run | None:
    """Return the result of an earlier run with the same wheel and jobs; with any, if `digest` is None."""
    result = result_file(spark, python)
    if not result.exists():
        return None
    earlier = json.loads(result.read_text())
    return Run(**earlier["run"]) if digest in (None, earlier["digest"]) else None


def run(wheel: Path, spark: str, python: str, bootstrap: str, *, oldest: bool) -> Run:
    """Run the jobs with one Spark and one Python."""
    interpreter = shutil.which(f"python{python}")
    if interpreter is None or not works(interpreter):
        return Run(spark, python, skipped=f"no Python {python} on the PATH")
    home = spark_home(spark)
    (metadata,) = home.glob("pyspark-*.dist-info/METADATA")
    lowest = re.search(r"^Requires-Python: *>= *3\.(\d+)", metadata.read_text(), re.MULTILINE)
    if lowest is not None and int(python.split(".")[1]) < int(lowest[1]):
        return Run(spark, python, skipped=f"Spark {spark} needs Python 3.{lowest[1]}")
    folder = folder_of(spark, python)
    binary = make_environment(folder, interpreter, home, packages(spark, python, oldest=oldest))
    pip(binary, "install", "--force-reinstall", "--no-deps", str(wheel))
    found = Run(spark, python, versions(binary))
    work = folder / f"v{spark}-{python}-{int(time.time())}"
    work.mkdir()
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(binary),
        "PYSPARK_DRIVER_PYTHON": str(binary),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for name in ("PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR"):
        environment.pop(name, None)
    command = [str(binary), str(Path(__file__).with_name("jobs.py")), bootstrap, str(work)]
    with (folder / "stderr.log").open("wb") as log, (folder / "stdout.log").open("wb+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=log, env=environment, cwd=work, start_new_session=True)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        for line in out.read().decode().splitlines():
            if line.startswith('{"job"'):
                job = json.loads(line)
                found.jobs[job.pop("job")] = job
    shutil.rmtree(work, ignore_errors=True)
    return found


def works(interpreter: str) -> bool:
    """Return True if it starts: a pyenv shim may have no Python behind it."""
    return subprocess.run([interpreter, "-c", ""], capture_output=True, check=False).returncode == 0


def spark_home(spark: str) -> Path:
    """Unpack PySpark once, for all Pythons."""
    home = BUILD / f"pyspark-{spark}"
    if not (home / "pyspark").exists():
        pip(tools(), "install", "--no-deps", "--no-compile", "--target", str(home), f"pyspark=={spark}")
    return home


def packages(spark: str, python: str, *, oldest: bool) -> list[str]:
    """Return the requirements beside the wheel."""
    minor = spark.rsplit(".", 1)[0]
    always = ["crc32c", "lz4", "py4j<0.10.9.10,>=0.10.9.7"]
    if not oldest:
        # Spark 4.0 and 4.1 were released before pandas 3.
        return [*always, "pyarrow", "numpy", "pandas<3" if minor in ("4.0", "4.1") else "pandas"]
    pyarrow = max(OLDEST_PYARROW[minor], OLDEST_PYARROW_OF_PYTHON.get(python, 0))
    numpy = OLDEST_NUMPY.get(python, "1.26.0")
    return [*always, f"pyarrow=={pyarrow}.0.0", f"numpy=={numpy}", f"pandas=={OLDEST_PANDAS.get(python, '2.2.0')}"]


def make_environment(folder: Path, interpreter: str, spark: Path, requirements: list[str]) -> Path:
    """Make an environment with these packages and an unpacked PySpark, if it is not there; return its Python."""
    binary, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if stamp.exists() and stamp.read_text() == "\n".join(requirements):
        return binary
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    pip(binary, "install", "--only-binary", ":all:", *requirements)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "spark.pth").write_text(f"{spark}\n")
    stamp.write_text("\n".join(requirements))
    return binary


def versions(binary: Path) -> dict[str, str]:
    """Return the installed versions of the packages that the table names."""
    text = "import json, numpy, pandas, pyarrow; print(json.dumps([m.__version__ for m in (pyarrow, numpy, pandas)]))"
    out = subprocess.run([str(binary), "-c", text], check=True, capture_output=True, text=True).stdout
    return dict(zip(("pyarrow", "numpy", "pandas"), json.loads(out), strict=True))


def tools() -> Path:
    """Return a Python with pip: an environment that uv has made has none."""
    binary = BUILD / "tools" / "bin" / "python"
    if not binary.exists():
        subprocess.run([sys.executable, "-m", "venv", str(BUILD / "tools")], check=True)
    return binary


def pip(python: Path, *arguments: str) -> None:
    """Run pip, quietly."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def summary(run: Run) -> str:
    """Return one line for a terminal."""
    what = run.skipped or ", ".join(
        f"{name}: {job.get('error', 'ok')} ({job['seconds']} s)" for name, job in run.jobs.items()
    )
    return f"Spark {run.spark}, Python {run.python}, {run.packages}: {what or 'no job ended'}"


def page(runs: Sequence[Run]) -> str:
    """Return docs/versions.md."""
    head = ["Spark", "Python", "pyarrow", "NumPy", "pandas", *JOBS.values()]
    lines = [PREFACE, "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for each in runs:
        names = [each.packages.get(name, "") for name in ("pyarrow", "numpy", "pandas")]
        cells = [each.skipped or "-"] * len(JOBS) if each.skipped else [cell(each, job) for job in JOBS]
        lines.append("| " + " | ".join([each.spark, each.python, *names, *cells]) + " |")
    return "\n".join(lines) + "\n"


def cell(run: Run, job: str) -> str:
    """Return what the table says of a job."""
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


if __name__ == "__main__":
    sys.exit(main())
