"""docs/versions.md is what `make versions` writes."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.versions.__main__ import JOBS, PREFACE, PYTHONS, SPARKS


def test_versions_page_has_the_preface_and_known_versions_of_this_code() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    assert page.startswith(PREFACE)
    rows = [line.split(" | ") for line in page.removeprefix(PREFACE).strip().splitlines()[2:]]
    assert rows
    for spark, python, *cells in rows:
        assert spark.removeprefix("| ") in SPARKS
        assert python in PYTHONS
        assert len(cells) == 3 + len(JOBS)
