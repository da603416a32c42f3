"""Which tests would be missed: `python -m tests.mutants tests/cli --of spark_kafka_source/cli --modules 10 --seed 1`.

Draws modules of the product by a seed, and small faults (mutants) in each. Every test that ran the changed function
runs again with the fault, in a forked process. A mutant is killed if one fails. The same arguments draw the same
mutants, whatever the tests, so two runs compare the tests before and after a change:

    python -m tests.mutants tests/cli --of spark_kafka_source/cli --log before.json
    python -m tests.mutants tests/cli --of spark_kafka_source/cli --log after.json --before before.json

`--log` has the first test that kills each mutant; with `--unneeded` all of them, and the end of the output has the
tests that are the only killers of none.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import json
import os
import random
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# For each test with a mutant; a hang is a kill. Other work on the machine spends no processor time of the test.
PROCESSOR_LIMIT_S, LIMIT_S = 20, 120
_PAIRS = "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, And Or, Add Sub, Mult FloorDiv"
_SWAPS = {
    getattr(ast, name): getattr(ast, opposite)
    for pair in _PAIRS.split(", ")
    for name, opposite in (pair.split(), pair.split()[::-1])
}
NOT_STARTED = 3  # exit code of a process that could not begin its test

# Path, name and first line of a function.
Place = tuple[str, str, int]


class Mutant(NamedTuple):
    """A changed function."""

    label: str
    place: Place
    code: CodeType


# Number of the function in its module, of the node in the function, and of the change of the node.
Position = tuple[int, int, int]


def positions(tree: ast.Module) -> list[Position]:
    """Return where a module can have a fault."""
    return [
        (number, node_number, change)
        for number, function in enumerate(_functions(tree))
        for node_number, node in enumerate(ast.walk(function))
        for change in range(len(_changes(node)))
    ]


def mutant_at(path: Path, position: Position) -> Mutant:
    """Return the function of a module with the fault at this position.

    Raises ValueError if the function has other free variables then, since it cannot get the code: a method without its
    only `super()` does not refer to its class any more.
    """
    tree = ast.parse(path.read_text(), str(path))
    function = _functions(tree)[position[0]]
    node = list(ast.walk(function))[position[1]]
    label, replacement = _changes(node)[position[2]]
    first_line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    place = (str(path), function.name, first_line)
    unchanged = _code_at(place, tree)
    _replace(function, node, replacement)
    code = _code_at(place, ast.fix_missing_locations(tree))
    label = f"{os.path.relpath(path, ROOT)}:{getattr(node, 'lineno', function.lineno)} {label}"
    if code.co_freevars != unchanged.co_freevars:
        raise ValueError(f"{label}: free variables {code.co_freevars}, not {unchanged.co_freevars}")
    return Mutant(label, place, code)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the outermost functions, and methods of the outermost classes."""
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]


def _code_at(place: Place, tree: ast.Module) -> CodeType:
    codes = _codes(compile(tree, place[0], "exec"))
    return next(code for code in codes if (code.co_name, code.co_firstlineno) == place[1:])


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _changes(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return the faults that a node can have, with their labels."""
    match node:
        case ast.Compare(ops=[operator, *others]) if type(operator) in _SWAPS:
            return [(f"{type(operator).__name__} swapped", _with(node, ops=[_SWAPS[type(operator)](), *others]))]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _SWAPS:
            return [(f"{type(operator).__name__} swapped", _with(node, op=_SWAPS[type(operator)]()))]
        case ast.Constant(value=bool(value)):
            return [(f"{value} is {not value}", _with(node, value=not value))]
        case ast.Constant(value=int(value)):
            return [(f"{value} is {value + 1}", _with(node, value=value + 1))]
        case ast.UnaryOp(op=ast.Not()):
            return [("not removed", node.operand)]
        case ast.If(test=test) | ast.IfExp(test=test):
            return [("condition negated", _with(node, test=ast.UnaryOp(ast.Not(), test)))]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return [("returns None", _with(node, value=ast.Constant(None)))]
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            return [("statement removed", ast.copy_location(ast.Pass(), node))]
    return []


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _replace(tree: ast.AST, target: ast.AST, replacement: ast.AST) -> None:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, field, replacement)
            elif isinstance(value, list) and any(element is target for element in value):
                value[[element is target for element in value].index(True)] = replacement


class Runner:
    """Plugin of pytest that runs all tests once, and then those of each mutant."""

    def __init__(self, mutants: list[Mutant], all_killers: bool) -> None:
        self._mutants = mutants
        self._most = None if all_killers else 1
        self._tests: dict[Place, set[int]] = defaultdict(set)
        self._failed = False
        self.killers: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items
        passing = [number for number, item in enumerate(items) if self._passes(number, item, items)]
        for mutant in self._mutants:
            numbers = self._tests[mutant.place].intersection(passing)
            killers = (items[number].nodeid for number in sorted(numbers) if not self._survives(mutant, items[number]))
            failed = list(islice(killers, self._most))
            self.killers[mutant.label] = failed
            print(f"\n{'killed  ' if failed else 'survived'} {len(failed)}/{len(numbers)} {mutant.label}", flush=True)
        return True

    def _passes(self, number: int, item: pytest.Item, items: list[pytest.Item]) -> bool:
        def record(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
                code = frame.f_code
                self._tests[code.co_filename, code.co_name, code.co_firstlineno].add(number)

        threading.setprofile(record)
        sys.setprofile(record)
        try:
            return self._run(item, items[number + 1] if number + 1 < len(items) else None)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _run(self, item: pytest.Item, next_item: pytest.Item | None) -> bool:
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        return not self._failed

    def _survives(self, mutant: Mutant, item: pytest.Item) -> bool:
        child = os.fork()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status == NOT_STARTED:
                raise RuntimeError(f"the test has not run with {mutant.label}: {item.nodeid}")
            return status == 0
        code = NOT_STARTED
        try:
            for number, timer, limit_s in (
                (signal.SIGPROF, signal.ITIMER_PROF, PROCESSOR_LIMIT_S),
                (signal.SIGALRM, signal.ITIMER_REAL, LIMIT_S),
            ):
                signal.signal(number, signal.SIG_DFL)
                signal.setitimer(timer, limit_s)
            item.add_marker(pytest.mark.timeout(0))  # its timer would replace the alarm
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1), os.dup2(nowhere, 2)
            _put_in_place(mutant)
            code = 1
            code = 0 if self._run(item, None) else 1
        finally:
            os._exit(code)
        raise AssertionError


def _put_in_place(mutant: Mutant) -> None:
    gc.unfreeze()  # `conftest.py` has frozen what was collected
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            code = function.__code__
            if (code.co_filename, code.co_name, code.co_firstlineno) == mutant.place:
                function.__code__ = mutant.code


def draw(folder: Path, modules: int, mutants: int, seed: int) -> list[Mutant]:
    """Return at most this number of mutants of each of the modules that the seed draws.

    Those that cannot take the place of their function are left out, with a line of output.
    """
    rng = random.Random(seed)
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    possible = {file: positions(ast.parse(file.read_text())) for file in files}
    possible = {file: places for file, places in possible.items() if places}
    drawn = rng.sample(list(possible), min(modules, len(possible)))
    chosen = {file: rng.sample(possible[file], min(mutants, len(possible[file]))) for file in drawn}
    result = []
    for file in drawn:
        for position in sorted(chosen[file]):
            try:
                result.append(mutant_at(file, position))
            except ValueError as error:
                print(f"left out {error}", flush=True)
    return result


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("tests", nargs="+", help="tests to run")
    parser.add_argument("--of", type=Path, required=True, help="folder or module of the product")
    parser.add_argument("--modules", type=int, default=10)
    parser.add_argument("--mutants", type=int, default=20, help="of each module, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="file for the killers of each mutant, as JSON")
    parser.add_argument("--before", type=Path, help="log of a run with other tests, to compare with")
    parser.add_argument("--unneeded", action="store_true", help="list tests that alone kill no mutant")
    options = parser.parse_args(arguments)
    mutants = draw((ROOT / options.of).resolve(), options.modules, options.mutants, options.seed)
    runner = Runner(mutants, all_killers=options.unneeded)
    settings = ["-q", "-o", "faulthandler_timeout=0", "-m", "not kafka and not spark"]
    pytest.main([*settings, *options.tests], plugins=[runner])
    killed = {label for label, tests in runner.killers.items() if tests}
    print(f"seed {options.seed}: {len(killed)} of {len(runner.killers)} mutants are killed")
    if options.unneeded:
        needed = {tests[0] for tests in runner.killers.values() if len(tests) == 1}
        killers = {test for tests in runner.killers.values() for test in tests}
        print("alone kill no mutant:", *sorted(killers - needed), sep="\n  ")
    if options.log:
        options.log.write_text(json.dumps(runner.killers, indent=1))
    if not options.before:
        return 0
    before = json.loads(options.before.read_text())
    lost = [label for label, tests in before.items() if tests and label not in killed]
    print(f"{sum(map(bool, before.values()))} were killed before; killed only before:", *lost, sep="\n  ")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
