"""Run the jobs with each Spark and each Python, and in each deployment of each Spark; write docs/versions.md.

    python -m tests.versions [--spark 4.2.1] [--python 3.12] [--only deployments] [--table docs/versions.md]

The wheel is built once and installed into an environment per Spark and Python. The other packages alternate: the
oldest that this package, Spark and Python allow, or the newest. Environments and results stay in build/versions; a run
whose wheel and environment have not changed is not repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from spark_kafka_source.local_kafka import LocalKafka
from tests.versions import deployments, pairs
from tests.versions.environments import BUILD, build_wheel
from tests.versions.results import DEPLOYMENTS, JOBS, PYTHONS, SPARKS, Run, digest_of, earlier_run, keep, page, summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix and the deployments; return 1 if a job has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spark", action="append", choices=SPARKS, help="only this Spark; repeatable")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="pairs only with this Python; repeatable")
    parser.add_argument("--only", choices=("pairs", "deployments"), help="only the pairs, or only the deployments")
    parser.add_argument("--table", type=Path, help="file for the tables; rows of other runs in it are kept")
    namespace = parser.parse_args(arguments)
    wheel = build_wheel()
    sparks = [spark for spark in SPARKS if spark in (namespace.spark or SPARKS)]
    pythons = [python for python in PYTHONS if python in (namespace.python or PYTHONS)]
    of_pairs, deployed = [], []
    with LocalKafka() as kafka:
        if namespace.only != "deployments":
            code = digest_of(wheel, pairs.JOBS)
            for spark, python in product(sparks, pythons):
                oldest = (SPARKS.index(spark) + PYTHONS.index(python)) % 2 == 0
                start = partial(pairs.run, wheel, spark, python, bootstrap=kafka.bootstrap_servers, oldest=oldest)
                of_pairs.append(run_once(BUILD / f"spark-{spark}-python-{python}", code, JOBS, start))
        if namespace.only != "pairs":
            code = digest_of(wheel, *deployments.CODE)
            for spark in sparks:
                start = partial(deployments.run, wheel, spark, bootstrap=kafka.bootstrap_servers)
                deployed.append(run_once(BUILD / f"spark-{spark}-deployments", code, DEPLOYMENTS, start))
    if namespace.table is not None:
        before = namespace.table.read_text() if namespace.table.exists() else ""
        namespace.table.write_text(page(before, of_pairs, deployed))
    return 0 if all(pair.green(JOBS) for pair in of_pairs) and all(run.green(DEPLOYMENTS) for run in deployed) else 1


def run_once(folder: Path, code: str, jobs: dict[str, str], start: Callable[..., Run]) -> Run:
    """Run the jobs in an environment, unless its last run was green and had the same code."""
    run = earlier_run(folder, code)
    if run is None:
        run = start(folder=folder)
        if run.green(jobs) and not run.skipped:
            keep(run, folder, code)
    print(summary(run), flush=True)
    return run


if __name__ == "__main__":
    sys.exit(main())
