"""The coverage of simulations: marks in code, what an observer sees of a world, and the page."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

pytest.importorskip("greenlet")

from protocol.testing.simulation import Worker
from tests.simulation.coverage import _REACHED, Branch, Marks, Reached
from tests.simulation.coverage_page import page

SOURCE = '''
def choose(number):
    """Text."""
    if number > 1:
        return "many"
    try:
        return 1 // number
    except ZeroDivisionError:
        return "none"

def unused():
    for _ in range(3):
        pass
'''
BRANCHES = [
    Branch(2, "choose", True),
    Branch(5, "choose", False),
    Branch(4, "choose", False),
    Branch(9, "choose", False),
    Branch(11, "unused", True),
    Branch(13, "unused", False),
]


def reached_by(*numbers: int) -> list[int]:
    marks = Marks()
    tree = ast.fix_missing_locations(marks.visit(ast.parse(SOURCE)))
    assert marks.branches == BRANCHES
    names = {_REACHED: bytearray(len(BRANCHES))}
    exec(compile(tree, "source", "exec"), names)
    assert names["choose"].__doc__ == "Text."
    for number in numbers:
        names["choose"](number)
    return [index for index, flag in enumerate(names[_REACHED]) if flag]


def test_marks_tell_which_branches_ran() -> None:
    assert reached_by() == []
    assert reached_by(1) == [0, 2]
    assert reached_by(2) == [0, 1]
    assert reached_by(0, 2) == [0, 1, 2, 3]


def test_observer_sees_codes_and_branches_and_changes_no_digest() -> None:
    """Slow: the observer finds the branches of each file of the core."""
    scenario = "tests.simulation.probes:faulty_network"
    with Worker() as worker:
        plain = worker.run(scenario, 1, "cut")
        observed = worker.run(scenario, 1, "cut", observer="tests.simulation.coverage:Coverage")
    assert plain.observed is None
    assert observed.digest == plain.digest
    assert observed.observed["codes"]["Produce 0"] >= 20
    assert int(observed.observed["branches"]["protocol/producer/sender.py"], 16).bit_count() > 5


def test_page_names_what_no_seed_has_reached() -> None:
    transitions = Counter({"classic UNJOINED JOINING": 3})
    codes = Counter({"Produce 0": 9, "Produce 6": 2, "Fetch 74": 1})
    reached = Reached(0, {"protocol/base/once.py": 0b000111}, transitions, codes, {"writes": [3, 1, 2, 7]})
    text = page(reached, {"protocol/base/once.py": BRANCHES}, "c0ffee", "3.11")
    assert "| `writes` | 1–3, 7 |" in text
    assert "| Produce | NOT_LEADER_OR_FOLLOWER 2 | FENCED_LEADER_EPOCH |" in text
    assert "| `protocol/base/once.py` | 3 of 6 | `unused` | 9 |" in text
    assert "UNJOINED → FAILED, LEAVING, LEFT |" in text
    assert "| NOT_COORDINATOR |" in text
