"""docs/versions.md is what `make versions` writes."""

from __future__ import annotations

import ast
import sys

import pytest

from tests.conftest import ROOT
from tests.versions.results import DEPLOYMENTS, JOBS, PYTHONS, SPARKS, Run, page, rows_of

PAGE = (ROOT / "docs" / "versions.md").read_text()


def test_versions_page_has_the_text_of_this_code_and_rows_of_known_versions() -> None:
    assert page(PAGE, [], []) == PAGE
    rows = rows_of(PAGE)
    assert {key[0] for key in rows if len(key) == 2} == set(SPARKS)
    assert [key[0] for key in rows if len(key) == 1] == list(SPARKS)
    for key, cells in rows.items():
        assert len(cells) == (5 + len(JOBS) if len(key) == 2 else 1 + len(DEPLOYMENTS))


@pytest.mark.parametrize("job", ["jobs.py", "deployed_job.py"])
def test_job_needs_nothing_of_this_checkout(job: str) -> None:
    """It runs where only the wheel and Spark are installed."""
    nodes = list(ast.walk(ast.parse((ROOT / "tests" / "versions" / job).read_text())))
    modules = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    packages = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    assert packages <= {"protocol", "spark_kafka_source", "pyspark", "pyarrow"}


def test_job_added_after_a_row_was_written_is_not_run_in_it() -> None:
    row = [SPARKS[0], PYTHONS[0], "16.0.0", "1.26.0", "2.2.0", *["works"] * (len(JOBS) - 1)]
    assert rows_of(f"| {' | '.join(row)} |") == {(SPARKS[0], PYTHONS[0]): [*row, "not run"]}


def test_run_replaces_its_row_and_skipped_run_none() -> None:
    deployed = Run(
        SPARKS[0],
        "3.12",
        jobs={"connect": {"observed": {"committed at the end": False}}, "pipelines": {"missing": "none"}},
    )
    after = rows_of(
        page(PAGE, [Run(SPARKS[1], PYTHONS[1]), Run(SPARKS[1], PYTHONS[0], skipped="no Python")], [deployed])
    )
    expected = rows_of(PAGE)
    expected[SPARKS[1], PYTHONS[1]] = [SPARKS[1], PYTHONS[1], "", "", "", *["fails"] * len(JOBS)]
    expected[SPARKS[0],] = [SPARKS[0], "works, committed by the next run", "fails", "fails", "none"]
    assert after == expected
