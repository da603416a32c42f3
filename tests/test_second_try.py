"""Failed tests with real brokers or Spark have a second try, are named, and many failures have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import second_try

# In a folder named as a mark: one test that passes the second time, and any number that never do.
TESTS = """
import pathlib
import pytest

{mark}
def test_passes_the_second_time():
    tried = pathlib.Path("tried")
    if not tried.exists():
        tried.touch()
        print("said before")
        raise AssertionError("the first time")

@pytest.mark.spark
@pytest.mark.parametrize("n", range({failing}))
def test_never_passes(n):
    raise AssertionError

def test_passes():
    pathlib.Path("count").open("a").write("x")
"""
FLAKY = "spark/test_it.py::test_passes_the_second_time"
MARKED = "@pytest.mark.kafka"


@pytest.mark.parametrize(
    ("mark", "failing", "code", "flaky", "runs"),
    [(MARKED, 0, 0, [FLAKY], 2), (MARKED, 1, 1, [FLAKY], 2), (MARKED, 2, 1, [], 1), ("", 0, 1, [], 1)],
    ids=["flaky", "and a failing one", "and two failing ones", "flaky without a mark"],
)
def test_second_try_is_for_two_marked_tests(
    mark: str, failing: int, code: int, flaky: list[str], runs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    workers = ("-n", "1") if code == 0 else ()
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "test_it.py").write_text(TESTS.format(mark=mark, failing=failing))
    assert second_try.main(["-q", *workers], tmp_path) == code
    output = capfd.readouterr().out
    assert output.endswith("".join(f":\n  {test}\n" for test in flaky))
    assert output.count("short test summary info") == runs - (code == 0)
    first_failures = json.loads((tmp_path / second_try.FLAKY).read_text())
    assert list(first_failures) == flaky
    assert all("the first time" in text and "said before" in text for text in first_failures.values())
    assert (tmp_path / "count").read_text() == "x"  # what has passed is not repeated
