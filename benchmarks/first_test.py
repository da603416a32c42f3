"""Time of a pytest process with one test of a Spark pipeline: the example of docs/testing.md, and PySpark's minimum.

The minimum is the same test with a Python source that contacts no broker and a sink that discards its rows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.job import EMPTY, OURS, REPOSITORY, Figure, Job, say, section_main

_MINIMUM = """
from benchmarks.constant_source import ConstantDataSource
from benchmarks.discarding_sink import DiscardingDataSource


def test_rows_are_discarded(spark, tmp_path):
    spark.dataSource.register(ConstantDataSource)
    spark.dataSource.register(DiscardingDataSource)
    rows = spark.readStream.format("constant").options(microBatches="1", tasks="2").load()
    output = rows.selectExpr("key", "CAST(CAST(value AS STRING) AS BINARY) AS value").writeStream.format("discarding")
    query = output.option("checkpointLocation", str(tmp_path)).start()
    while not query.lastProgress:
        query.awaitTermination(0.01)
    query.stop()
"""


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    """Return the seconds of each process."""
    tests = {OURS: _example(), EMPTY: _example().partition("def test_")[0] + _MINIMUM}
    samples: dict[str, tuple[float, ...]] = {}
    contestants = [who for who in tests if job.wants(who)]
    for number in range(job.rounds):
        for who in contestants if number % 2 == 0 else contestants[::-1]:
            samples[who] = (*samples.get(who, ()), _seconds(tests[who]))
            say(f"  {who:>14}: {samples[who][-1]:.1f} s")
    return [Figure("first test", "one process", "pytest", "s", who, sample) for who, sample in samples.items()]


def _example() -> str:
    page = (REPOSITORY / "docs" / "testing.md").read_text()
    (example,) = (match for match in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def doubled(" in match)
    return str(example)


def _seconds(test: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_it.py").write_text(test)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
        started_s = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "test_it.py"]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)
        return time.monotonic() - started_s


if __name__ == "__main__":
    section_main(measure)
