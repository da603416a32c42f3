"""Run scenarios, and write a page about what no seed has reached: error codes, transitions of states, branches.

    python -m tests.simulation.coverage --seeds 50 --page docs/simulation-coverage.md

Seeds add to those of earlier runs (`--data`) until the client's code changes.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from protocol.testing.simulation import Outcome
from protocol.testing.simulation.runner import Scenario, run_all, scenario_name
from tests.simulation import SCENARIOS
from tests.simulation.coverage_page import page
from tests.simulation.same_seed import PYTHON

ROOT = Path(__file__).parents[2]
DATA = ROOT / "build" / "simulation-coverage.json"
WATCHED = (
    "protocol/fetch",
    "protocol/group",
    "protocol/consumer",
    "protocol/producer",
    "protocol/transaction",
    "spark_kafka_source/source.py",
    "spark_kafka_source/sink/exactly_once",
    "spark_kafka_source/driver",
)
"""Packages and modules of which branches are counted."""
_REACHED = "__simulation_reached__"
_SAVE_S = 30.0


def watched_files() -> list[Path]:
    """Return the files of which branches are counted."""
    paths = [ROOT / name for name in WATCHED]
    return sorted(file for path in paths for file in ([path] if path.suffix else path.rglob("*.py")))


# -- branches ---------------------------------------------------------------------------------


class Branch(NamedTuple):
    """A block of statements that a function runs, or does not run.

    Attributes
    ----------
    line : int
        Its first line; that of the condition if the block is not written: the condition was never false.
    function : str
        Qualified name.
    is_function : bool
        The block is the whole function.
    """

    line: int
    function: str
    is_function: bool


class Marks(ast.NodeTransformer):
    """Adds a statement to each block that a function may leave out: it stores 1 at an index of `_REACHED`.

    Statements of a module or class, and conditions within an expression, are left out.

    Parameters
    ----------
    first : int
        Index of the first branch.
    """

    def __init__(self, first: int = 0) -> None:
        self.branches: list[Branch] = []
        self._first = first
        self._names: list[str] = []
        self._depth = 0

    def _mark(self, block: list[ast.stmt], at: ast.AST, is_function: bool = False) -> None:
        if not self._depth:
            return
        index = ast.Constant(self._first + len(self.branches))
        target = ast.Subscript(ast.Name(_REACHED, ast.Load()), index, ast.Store())
        mark = ast.copy_location(ast.Assign([target], ast.Constant(1)), at)
        self.branches.append(Branch(mark.lineno, ".".join(self._names), is_function))
        block.insert(is_function and ast.get_docstring(at, clean=False) is not None, mark)  # type: ignore[arg-type]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._names.append(node.name)
        self._depth += 1
        if not _is_declaration(node):
            self._mark(node.body, node, is_function=True)
            self.generic_visit(node)
        self._depth -= 1
        self._names.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self._mark(node.body, node.body[0])
        self._mark(node.orelse, node.orelse[0] if node.orelse else node)
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        self._mark(node.body, node.body[0])
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self._mark(node.body, node.body[0])
        return self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        self._mark(node.body, node.body[0])
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        if not isinstance(node.test, ast.Constant):
            self._mark(node.body, node.body[0])
        return self.generic_visit(node)


def _is_declaration(node: ast.FunctionDef) -> bool:
    """Return True for a function without statements, such as an overload."""
    return all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in node.body)


def branches(file: Path) -> list[Branch]:
    """Return the branches of a file, in the order of their indexes."""
    marks = Marks()
    marks.visit(ast.parse(file.read_bytes()))
    return marks.branches


class Coverage:
    """The observer of a world; see `protocol.testing.simulation.code_cache.Observer`."""

    def __init__(self) -> None:
        self._reached = bytearray()
        self._indexes: dict[str, tuple[int, int]] = {}
        self._files = {str(file) for file in watched_files()}
        self._transitions: Counter[str] = Counter()
        self._codes: Counter[str] = Counter()
        self.names = {_REACHED: self._reached}

    def transform(self, tree: ast.Module, path: str) -> ast.Module:
        """Add marks to a watched file."""
        if path not in self._files:
            return tree
        marks = Marks(len(self._reached))
        marks.visit(tree)
        self._reached.extend(bytes(len(marks.branches)))
        self._indexes[path] = marks._first, len(self._reached)
        return tree

    def loaded(self, module: ModuleType) -> None:
        """Watch replies and transitions of a process."""
        match module.__name__:
            case "protocol.wire.frame":
                self._watch_replies(module)
            case "protocol.group.membership.member_state":
                self._watch_members(module)
            case "protocol.transaction.states":
                self._watch_transactions(module)

    def _watch_replies(self, module: Any) -> None:
        decode, parts = module.decode_response, []

        def decode_response(api: Any, version: int, frame: Any) -> Any:
            reply = decode(api, version, frame)
            if not parts:
                parts.append(importlib.import_module("protocol.wire.parts"))  # of the process
            for part in parts[0].error_parts(api, reply):
                self._codes[f"{api.name} {part.code}"] += 1
            return reply

        module.decode_response = decode_response

    def _watch_members(self, module: Any) -> None:
        transition = module.Lifecycle.transition

        def observed(lifecycle: Any, to: Any, reason: Any) -> None:
            is_classic = lifecycle._transitions is module.CLASSIC_TRANSITIONS
            before = lifecycle.state
            transition(lifecycle, to, reason)
            self._transitions[f"{'classic' if is_classic else 'consumer'} {before.name} {to.name}"] += 1

        module.Lifecycle.transition = observed

    def _watch_transactions(self, module: Any) -> None:
        lifecycle_class = module.TransactionLifecycle
        transition, failed = lifecycle_class.transition, lifecycle_class.failed

        def observed_transition(lifecycle: Any, to: Any) -> None:
            before = lifecycle.state
            transition(lifecycle, to)
            self._transitions[f"transaction {before.name} {to.name}"] += 1

        def observed_failed(lifecycle: Any, error: Any, *, fatal: bool) -> None:
            before = lifecycle.state
            failed(lifecycle, error, fatal=fatal)
            if lifecycle.state is not before:
                self._transitions[f"transaction {before.name} {lifecycle.state.name}"] += 1

        lifecycle_class.transition, lifecycle_class.failed = observed_transition, observed_failed

    def result(self) -> Any:
        """Return the branches of each file as the bits of a number, and counts of transitions and codes."""
        reached = {
            str(Path(path).relative_to(ROOT)): f"{_bits(self._reached[first:end]):x}"
            for path, (first, end) in self._indexes.items()
        }
        return {"branches": reached, "transitions": self._transitions, "codes": self._codes}


def _bits(flags: Iterable[int]) -> int:
    return sum(1 << index for index, flag in enumerate(flags) if flag)


# -- many seeds -------------------------------------------------------------------------------


@dataclass
class Reached:
    """Branches, replies and transitions that all seeds have reached together.

    Attributes
    ----------
    sources : int
        Checksum of the watched files.
    branches : dict of str to int
        The branches of each file as the bits of a number.
    transitions, codes : Counter of str
    seeds : dict of str to list of int
        By scenario.
    """

    sources: int
    branches: dict[str, int] = field(default_factory=dict)
    transitions: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    seeds: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Reached:
        """Return what earlier runs have reached with the same code."""
        sources = 0
        for file in watched_files():
            sources = zlib.crc32(file.read_bytes(), sources)
        saved = json.loads(path.read_text()) if path.exists() else {}
        if saved.get("sources") != sources:
            return cls(sources)
        return cls(sources, saved["branches"], Counter(saved["transitions"]), Counter(saved["codes"]), saved["seeds"])

    def save(self, path: Path) -> None:
        """Write it for later runs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(vars(self)))
        path.with_suffix(".new").replace(path)

    def add(self, scenario: str, outcome: Outcome) -> None:
        """Add one run."""
        self.seeds.setdefault(scenario, []).append(outcome.seed)
        if outcome.observed is None:
            return
        for path, bits in outcome.observed["branches"].items():
            self.branches[path] = self.branches.get(path, 0) | int(bits, 16)
        self.transitions.update(outcome.observed["transitions"])
        self.codes.update(outcome.observed["codes"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.coverage", description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--seeds", type=int, default=0, help="seeds of each scenario to run")
    parser.add_argument("--first", type=int, help="first seed; by default the one after those of earlier runs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that run seeds")
    parser.add_argument("--data", type=Path, default=DATA, help="what seeds have reached")
    parser.add_argument("--page", type=Path, help="write the page")
    options = parser.parse_args()
    reached = Reached.load(options.data)
    end_s = save_s = time.monotonic()
    end_s += options.minutes * 60
    failed = 0

    def runs() -> Iterable[tuple[str, int]]:
        firsts = {
            name: max(reached.seeds.get(name, [0])) + 1 if options.first is None else options.first
            for name in options.scenarios
        }
        for number in range(options.seeds):
            for name, first in firsts.items():
                if time.monotonic() < end_s:
                    yield f"tests.simulation.{name}:scenario", first + number

    def report(scenario: Scenario, outcome: Outcome) -> None:
        nonlocal failed, save_s
        name = scenario_name(scenario).removeprefix("tests.simulation.").removesuffix(":scenario")
        reached.add(name, outcome)
        if outcome.error is not None:
            failed += 1
            print(f"python -m tests.simulation {name} --seed {outcome.seed}  # {outcome.error}", flush=True)
        if time.monotonic() >= save_s + _SAVE_S:
            save_s = time.monotonic()
            reached.save(options.data)

    run_all(runs(), options.jobs, report, observer="tests.simulation.coverage:Coverage")
    reached.save(options.data)
    if options.page is not None:
        commit = subprocess.run(
            ["git", "log", "-1", "--format=%h"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
        by_file = {str(file.relative_to(ROOT)): branches(file) for file in watched_files()}
        options.page.write_text(page(reached, by_file, commit, PYTHON))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
