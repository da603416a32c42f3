"""Run the jobs of `jobs.py` with one Spark and one Python."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path

from tests.versions import environments
from tests.versions.results import Run

JOBS = Path(__file__).with_name("jobs.py")
LIMIT_S = 3_600


def run(wheel: Path, spark: str, python: str, folder: Path, bootstrap: str, *, oldest: bool) -> Run:
    """Run the jobs with one Spark and one Python, and kill them after an hour; return the result of each that ended.

    `folder`: has the environment, the jobs' files, `stdout.log` and `stderr.log`.
    `oldest`: install the oldest allowed versions of other packages, not the newest.
    """
    interpreter = environments.interpreter(python)
    if interpreter is None:
        return Run(spark, python, skipped=f"no Python {python} on the PATH")
    home = environments.spark_home(spark)
    (metadata,) = home.glob("pyspark-*.dist-info/METADATA")
    if f"Classifier: Programming Language :: Python :: {python}\n" not in metadata.read_text():
        return Run(spark, python, skipped=f"Spark {spark} does not declare Python {python}")
    requirements = environments.packages(spark, python, oldest=oldest)
    binary = environments.make_environment(folder, interpreter, home, requirements, wheel)
    result = Run(spark, python, environments.versions(binary))
    work = folder / f"v{spark}-{python}-{int(time.time())}"
    work.mkdir()
    command = [str(binary), str(JOBS), bootstrap, str(work)]
    with (folder / "stderr.log").open("wb") as log, (folder / "stdout.log").open("wb+") as out:
        running = environments.process(command, environments.variables(binary), work, out, log)
        with running as process, contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_S)
        out.seek(0)
        for line in out.read().decode().splitlines():
            if line.startswith('{"job"'):
                job = json.loads(line)
                result.jobs[job.pop("job")] = job
    shutil.rmtree(work, ignore_errors=True)
    return result
