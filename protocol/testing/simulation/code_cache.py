"""Compiled modules, kept for all processes of a world and all worlds of a worker."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any, Protocol


class Observer(Protocol):
    """Sees the modules of a world, which it may also change: `Simulation(observer=…)`. It lives outside of the world.

    `names` are global names for the code that `transform` adds.
    """

    names: Mapping[str, Any]

    def transform(self, tree: ast.Module, path: str) -> ast.Module:
        """Return the tree of a module of a package; called once for each file."""

    def loaded(self, module: ModuleType) -> None:
        """Take note of a module that a process has imported."""

    def result(self) -> Any:
        """Return what was seen, as JSON, at the end of a run."""


Compile = Callable[[bytes, str, Observer | None], CodeType]
_CODE: dict[tuple[str, Compile | None, Observer | None], CodeType] = {}
_PLACES: dict[str, tuple[str, list[str] | None]] = {}
_TEXTS: dict[str, CodeType] = {}


def execute(text: str, names: dict[str, Any], local_names: dict[str, Any]) -> None:
    """Run `exec(text, …)` with cached code: in each process, `dataclasses` generates the same methods as text."""
    code = _TEXTS.get(text)
    if code is None:
        code = _TEXTS[text] = compile(text, "<string>", "exec")
    exec(code, names, local_names)  # noqa: S102 - the text is that of `dataclasses`


class CachedLoader(SourceFileLoader):
    """Loads a module from code that was compiled before.

    `compiled` compiles the source in another way; `names` are global names of the module that this other way uses.
    """

    def __init__(
        self, name: str, path: str, compiled: Compile | None, names: Mapping[str, Any], observer: Observer | None
    ) -> None:
        super().__init__(name, path)
        self._compiled = compiled
        self._names = names
        self._observer = observer

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the compiled module."""
        key = (self.path, self._compiled, self._observer)
        code = _CODE.get(key)
        if code is None:
            if self._compiled is None:
                code = super().get_code(fullname)
            else:
                code = self._compiled(self.get_data(self.path), self.path, self._observer)
            assert code is not None
            _CODE[key] = code
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        vars(module).update(self._names)
        super().exec_module(module)
        if self._observer is not None:
            self._observer.loaded(module)


class CachedFinder:
    """Finds modules of which each process has its own copy: those for whose names `is_own` returns True.

    `compiled` returns the function that compiles a module in another way, or None; `names` are global names for modules
    that are compiled in another way.
    """

    def __init__(
        self,
        is_own: Callable[[str], bool],
        compiled: Callable[[str], Compile | None],
        names: Mapping[str, Any],
        observer: Observer | None = None,
    ) -> None:
        self._is_own = is_own
        self._compiled = compiled
        self._names = names
        self._observer = observer

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module; None for others, which Python's own finders find."""
        if not self._is_own(fullname):
            return None
        place = _PLACES.get(fullname)
        if place is None:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                return spec
            locations = spec.submodule_search_locations
            place = _PLACES[fullname] = spec.origin, None if locations is None else list(locations)
        origin, folders = place
        compiled = self._compiled(fullname)
        names = {} if compiled is None else self._names
        loader = CachedLoader(fullname, origin, compiled, names, self._observer)
        return spec_from_file_location(fullname, origin, loader=loader, submodule_search_locations=folders)
