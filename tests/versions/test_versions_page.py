"""docs/versions.md is what `make versions` writes."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.versions.results import JOBS, PYTHONS, SPARKS, Run, page, rows_of

PAGE = (ROOT / "docs" / "versions.md").read_text()


def test_versions_page_has_the_text_of_this_code_and_rows_of_known_versions() -> None:
    assert page(PAGE, []) == PAGE
    rows = rows_of(PAGE)
    assert {spark for spark, _ in rows} == set(SPARKS)
    assert {len(cells) for cells in rows.values()} == {5 + len(JOBS)}


def test_run_replaces_its_row_and_skipped_run_none() -> None:
    after = rows_of(page(PAGE, [Run(SPARKS[1], PYTHONS[1]), Run(SPARKS[1], PYTHONS[0], skipped="no Python")]))
    expected = rows_of(PAGE)
    expected[SPARKS[1], PYTHONS[1]] = [SPARKS[1], PYTHONS[1], "", "", "", *["fails"] * len(JOBS)]
    assert after == expected
