"""docs/locks.md names each lock of the product, and its order has no cycle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import chain

from tests.support.documents import ROOT

PAGE = (ROOT / "docs" / "locks.md").read_text()
CLASSES = {"Lock", "RLock", "Condition"}


def locks_in(node: ast.AST, owner: str) -> Iterator[str]:
    """Yield names such as `Client._lock` of the locks that a tree makes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None:
            calls = [call.func for call in ast.walk(child.value) if isinstance(call, ast.Call)]
            if any(CLASSES & {getattr(function, "id", ""), getattr(function, "attr", "")} for function in calls):
                target = child.targets[0] if isinstance(child, ast.Assign) else child.target
                yield owner + ast.unparse(target).removeprefix("self.")
        yield from locks_in(child, f"{child.name}." if isinstance(child, ast.ClassDef) else owner)


def locks_of_the_product() -> set[tuple[str, str]]:
    return {
        (str(path.relative_to(ROOT)).removeprefix("protocol/"), name)
        for package in ("protocol", "spark_kafka_source")
        for path in (ROOT / package).rglob("*.py")
        if "simulation" not in path.parts and path.name != "condition.py"
        for name in locks_in(ast.parse(path.read_text()), f"{path.stem}.")
    }


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_page_names_each_lock_in_its_file() -> None:
    """Slow: parses each file of the product."""
    named = {
        (path, name)
        for first, *_ in rows("Locks")
        for path in re.findall(r"`([\w/]+\.py)`", first)
        for name in re.findall(r"`([\w.]+)`", first.split(".py`: ")[1])
    }
    assert named == locks_of_the_product()


def test_order_of_locks_names_locks_and_has_no_cycle() -> None:
    """Slow: parses each file of the product."""
    graph = {re.findall(r"`([\w.]+)`", first)[0]: re.findall(r"`([\w.]+)`", then) for first, then in rows("Order")}
    assert {*graph, *chain(*graph.values())} <= {name for _, name in locks_of_the_product()}
    assert list(TopologicalSorter(graph).static_order())
