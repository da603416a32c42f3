"""Fixtures of tests/conftest.py whose names decide the markers and the place of a test."""

from __future__ import annotations

import ast

from tests.conftest import ROOT

# A test that names one of them is marked `kafka` or `spark`, and runs where its broker does.
RESERVED = {"kafka", "kafka1", "secured", "spark"}


def test_no_other_fixture_has_a_name_that_marks_its_tests() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if file != ROOT / "tests" / "conftest.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in RESERVED
        if any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert found == [], "name a fixture of FakeKafka `fake`"
