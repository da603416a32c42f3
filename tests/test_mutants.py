"""Mutants are drawn by a seed, and differ from the function in one place."""

from __future__ import annotations

import ast
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests import mutants

SOURCE = """
def compare(a, b):
    if a < b and not a == 3:
        a += 1
    return a
"""


def test_each_mutant_has_one_fault(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(SOURCE)
    positions = mutants.positions(ast.parse(SOURCE))
    labels = {}
    for position in positions:
        mutant = mutants.mutant_at(module, position)
        assert mutant.place == (str(module), "compare", 2)
        compare = type(mutants.positions)(mutant.code, {})
        labels[mutant.label.partition(" ")[2]] = [compare(1, 2), compare(2, 2), compare(3, 4)]
    assert labels == {
        "condition negated": [1, 3, 4],
        "And swapped": [2, 3, 4],
        "returns None": [None] * 3,
        "Lt swapped": [2, 3, 3],
        "not removed": [1, 2, 4],
        "statement removed": [1, 2, 3],
        "Eq swapped": [1, 2, 4],
        "3 is 4": [2, 2, 4],
        "1 is 2": [3, 2, 3],
    }


def test_same_seed_draws_same_mutants(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(SOURCE)
    first, second, third = (mutants.draw(tmp_path, 2, 3, seed) for seed in (1, 1, 2))
    assert len(first) == 6
    assert [mutant.label for mutant in first] == [mutant.label for mutant in second]
    assert [mutant.label for mutant in first] != [mutant.label for mutant in third]


def test_mutant_with_other_free_variables_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method that does not call `super()` any more has no cell of its class."""
    module = tmp_path / "module.py"
    module.write_text("class A(B):\n    def close(self):\n        super().close()\n        self.x += 1\n")
    drawn = mutants.draw(module, 1, 20, 1)
    assert [mutant.label.partition(" ")[2] for mutant in drawn] == ["statement removed", "1 is 2"]
    assert {mutant.code.co_freevars for mutant in drawn} == {("__class__",)}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("left out ")
    assert ":3 statement removed: " in line


def spin() -> bool:
    return all(True for _ in itertools.count())


def wait() -> bool:
    return not threading.Event().wait(1.5)


@pytest.mark.parametrize(
    ("run", "processor_limit_s", "limit_s", "survives"),
    [(wait, 0.5, 60, True), (wait, 60, 0.5, False), (spin, 0.5, 60, False)],
)
def test_hang_is_a_kill_and_a_wait_for_the_processor_is_none(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[], bool], processor_limit_s: float, limit_s: float, survives: bool
) -> None:
    monkeypatch.setattr(mutants, "PROCESSOR_LIMIT_S", processor_limit_s)
    monkeypatch.setattr(mutants, "LIMIT_S", limit_s)
    runner = mutants.Runner([], all_killers=False)
    monkeypatch.setattr(runner, "_run", lambda *_: run())
    unchanged = mutants.Mutant("none", ("nowhere", "f", 1), spin.__code__)
    started_s = time.monotonic()
    assert runner._survives(unchanged, Mock()) is survives
    assert time.monotonic() - started_s < 50


def test_mutant_that_cannot_be_put_in_place_is_no_kill() -> None:
    def closed() -> object:
        return runner

    runner = mutants.Runner([], all_killers=False)
    code = closed.__code__
    mutant = mutants.Mutant("wrong", (code.co_filename, code.co_name, code.co_firstlineno), spin.__code__)
    with pytest.raises(RuntimeError, match="has not run with wrong"):
        runner._survives(mutant, Mock(nodeid="t"))
