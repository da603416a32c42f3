"""Modules of a world are compiled with two changes: sets have an order, and threads may switch before a statement.

The order of a set of strings depends on PYTHONHASHSEED, that of other objects on their addresses. In a world it depends
on the elements and the seed: equal for the same seed, and another one for another seed.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from protocol.testing.simulation.code_cache import Observer

IN_ORDER = "__simulation_in_order__"
TAKE = "__simulation_take__"
BEFORE_STATEMENT = "__simulation_before_statement__"
_ITERATING_FUNCTIONS = frozenset(
    {
        "chain",
        "deque",
        "dict",
        "enumerate",
        "filter",
        "iter",
        "list",
        "map",
        "max",
        "min",
        "sorted",
        "sum",
        "tuple",
        "zip",
    }
)
_ITERATING_METHODS = frozenset({"chain", "extend", "from_iterable", "fromkeys", "join"})
_NO_SETS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr)
_FUNCTIONS_WITHOUT_SETS = frozenset(
    {"dict", "enumerate", "filter", "list", "map", "range", "reversed", "sorted", "str", "tuple", "zip"}
)
_METHODS_WITHOUT_SETS = frozenset({"encode", "items", "keys", "split", "splitlines", "to_pylist", "tolist", "values"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class SetOrder:
    """The order of sets, by a seed."""

    def __init__(self) -> None:
        self.seed = 0

    def names(self) -> dict[str, Callable[[Any], Any]]:
        """Return the functions that compiled modules call, by their global names."""

        def key(element: Any) -> int:
            return zlib.crc32(repr(element).encode(errors="replace"), self.seed & 0xFFFFFFFF)

        def order(iterable: Any) -> Any:
            kind = type(iterable)
            if (kind is set or kind is frozenset) and len(iterable) > 1:
                return sorted(iterable, key=key)
            return iterable

        def take(owner: Any) -> Any:
            """Return `owner.pop()`: of a set, the first element in order."""
            if type(owner) is set and len(owner) > 1:
                element = order(owner)[0]
                owner.remove(element)
                return element
            return owner.pop()

        return {IN_ORDER: order, TAKE: take}


def compile_ordered(source: bytes, path: str, observer: Observer | None = None) -> CodeType:
    """Compile a module in which sets have an order."""
    return _compile(source, path, _Ordered(), observer)


def compile_preemptible(source: bytes, path: str, observer: Observer | None = None) -> CodeType:
    """Compile a module in which sets have an order, and threads may switch before each statement of a function."""
    return _compile(source, path, _Preemptible(), observer)


def _compile(source: bytes, path: str, transformer: ast.NodeTransformer, observer: Observer | None) -> CodeType:
    tree = transformer.visit(ast.parse(source, path))
    if observer is not None:
        tree = observer.transform(tree, path)
    tree = ast.fix_missing_locations(tree)
    code: CodeType = compile(tree, path, "exec", dont_inherit=True)
    return code


def _call(name: str, argument: ast.expr) -> ast.expr:
    function = ast.copy_location(ast.Name(name, ast.Load()), argument)
    return ast.copy_location(ast.Call(function, [argument], []), argument)


def _ordered(iterable: ast.expr) -> ast.expr:
    """Return the expression in order, unless it cannot be a set."""
    return iterable if _is_no_set(iterable) else _call(IN_ORDER, iterable)


def _is_no_set(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Subscript):
        return isinstance(expression.slice, ast.Slice)
    if not isinstance(expression, ast.Call):
        return isinstance(expression, _NO_SETS)
    function = expression.func
    if isinstance(function, ast.Name):
        return function.id in _FUNCTIONS_WITHOUT_SETS
    return isinstance(function, ast.Attribute) and function.attr in _METHODS_WITHOUT_SETS


class _Ordered(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = _ordered(node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = _ordered(node.iter)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _ordered(node.value)
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        node.value = _ordered(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        # Without a star the code knows the number of elements, which it would not of a set.
        parts = [part for target in node.targets for part in getattr(target, "elts", ())]
        if any(isinstance(part, ast.Starred) for part in parts):
            node.value = _ordered(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "pop" and not node.args and not node.keywords:
            return _call(TAKE, function.value)
        if isinstance(function, ast.Name):
            compares = function.id in ("max", "min") and len(node.args) > 1
            iterates = function.id in _ITERATING_FUNCTIONS and not compares
        else:
            iterates = isinstance(function, ast.Attribute) and function.attr in _ITERATING_METHODS
        if iterates:
            node.args = [part if isinstance(part, ast.Starred) else _ordered(part) for part in node.args]
        return node


class _Preemptible(_Ordered):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        self._insert(node)
        return node

    def _insert(self, node: ast.stmt | ast.ExceptHandler | ast.match_case) -> None:
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, list(self._with_calls(statements, isinstance(node, _FUNCTIONS) and name == "body")))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self._insert(part)

    def _with_calls(self, statements: Iterable[ast.stmt], may_begin_with_text: bool) -> Iterable[ast.stmt]:
        for statement in statements:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (is_text and may_begin_with_text) and not isinstance(statement, (ast.Global, ast.Nonlocal)):
                function = ast.copy_location(ast.Name(BEFORE_STATEMENT, ast.Load()), statement)
                call = ast.copy_location(ast.Call(function, [], []), statement)
                yield ast.copy_location(ast.Expr(call), statement)
            may_begin_with_text = False
            if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
                self._insert(statement)
            yield statement
