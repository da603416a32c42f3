"""A failed test of the whole run has a second try, is named, and many failures have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import second_try

# A test that passes the second time, one that never does, and any number of further ones.
TESTS = """
import pathlib
import pytest

def test_passes_the_second_time():
    tried = pathlib.Path("tried")
    if not tried.exists():
        tried.touch()
        raise AssertionError

@pytest.mark.parametrize("n", range({failing}))
def test_never_passes(n):
    raise AssertionError

def test_passes():
    pathlib.Path("count").open("a").write("x")
"""


@pytest.mark.parametrize(("failing", "code", "named"), [(0, 0, True), (1, 1, False), (3, 1, False)])
def test_second_try(failing: int, code: int, named: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.format(failing=failing))
    assert second_try.main(["-q"], tmp_path) == code
    output = capfd.readouterr().out
    assert ("Passed only the second time:\n  test_it.py::test_passes_the_second_time\n" in output) == named
    assert output.count("short test summary info") == {0: 1, 1: 2, 3: 1}[failing]
    assert (tmp_path / "count").read_text() == "x"  # what has passed is not repeated
