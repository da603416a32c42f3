"""Run the jobs of `jobs.py` with each Spark and each Python, and write docs/versions.md.

    python -m tests.versions [--spark 4.2.1] [--python 3.12] [--table docs/versions.md]

The wheel is built once and installed into an environment per Spark and Python. The other packages alternate: the
oldest that this package, Spark and Python allow, or the newest. Environments and results stay in build/versions; a run
whose wheel and environment have not changed is not repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from spark_kafka_source.local_kafka import LocalKafka
from tests.versions import pairs
from tests.versions.environments import BUILD, build_wheel
from tests.versions.results import JOBS, PYTHONS, SPARKS, digest_of, earlier_run, keep, page, summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; return 1 if a job has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spark", action="append", choices=SPARKS, help="only this Spark; repeatable")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this Python; repeatable")
    parser.add_argument("--table", type=Path, help="file for the table; rows of other pairs in it are kept")
    given = parser.parse_args(arguments)
    wheel = build_wheel()
    code = digest_of(wheel, pairs.JOBS)
    sparks = [spark for spark in SPARKS if spark in (given.spark or SPARKS)]
    pythons = [python for python in PYTHONS if python in (given.python or PYTHONS)]
    runs = []
    with LocalKafka() as kafka:
        for spark, python in product(sparks, pythons):
            folder = BUILD / f"spark-{spark}-python-{python}"
            found = earlier_run(folder, code)
            if found is None:
                oldest = (SPARKS.index(spark) + PYTHONS.index(python)) % 2 == 0
                found = pairs.run(wheel, spark, python, folder, kafka.bootstrap_servers, oldest=oldest)
                if found.green(JOBS) and not found.skipped:
                    keep(found, folder, code)
            runs.append(found)
            print(summary(found), flush=True)
    if given.table is not None:
        before = given.table.read_text() if given.table.exists() else ""
        given.table.write_text(page(before, runs))
    return 0 if all(each.green(JOBS) for each in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
