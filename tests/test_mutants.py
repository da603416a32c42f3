"""Mutants are drawn by a seed, and differ from the function in one place."""

from __future__ import annotations

import ast
from pathlib import Path

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
