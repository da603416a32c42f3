"""Stages of `make soak` and `make matrix`: a table at the end, and no stage that has passed runs again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stages import main


def test_run_continues_with_stages_that_have_not_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, present = tmp_path / "log", tmp_path / "present"
    stages = [f"first: echo 1 >> {log}\n", f"second: echo 2 >> {log}; test -e {present}\n", f"third: echo 3 >> {log}\n"]
    folder = tmp_path / "build"
    assert main("trial", stages, folder) == 1
    assert log.read_text().split() == ["1", "2", "3"], "a failure does not end the run"
    *_, first, second, third = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[1] for row in (first, second, third)] == ["passed", "failed", "passed"]
    present.touch()
    assert main("trial", stages, folder) == 0
    assert log.read_text().split() == ["1", "2", "3", "2"]
    assert capsys.readouterr().out.count("| passed |") == 3
