"""Fixtures of tests/conftest.py whose names decide the markers and the place of a test."""

from __future__ import annotations

import ast
import re

from tests.conftest import ROOT

# A test that names one of them is marked `kafka` or `spark`, and runs where its broker does.
RESERVED = {"kafka", "kafka1", "secured", "spark"}
DEFINED = re.compile(rf"def ({'|'.join(RESERVED)})\(")


def test_no_other_fixture_has_a_name_that_marks_its_tests() -> None:
    collected = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if file != ROOT / "tests" / "conftest.py" and DEFINED.search(text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name in RESERVED
        if any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert collected == [], "name a fixture of FakeKafka `fake`"
