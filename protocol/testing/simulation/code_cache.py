"""Compiled modules, kept for all processes of a world and all worlds of a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

Compile = Callable[[bytes, str], CodeType]
_CODE: dict[tuple[str, Compile | None], CodeType] = {}
_PLACES: dict[str, tuple[str, list[str] | None]] = {}


class CachedLoader(SourceFileLoader):
    """Loads a module from code that was compiled before.

    Parameters
    ----------
    name, path : str
    compiled : callable, optional
        Compiles the source in another way.
    names : mapping of str to object
        Global names of the module that this other way uses.
    """

    def __init__(self, name: str, path: str, compiled: Compile | None, names: Mapping[str, Any]) -> None:
        super().__init__(name, path)
        self._compiled = compiled
        self._names = names

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the compiled module."""
        key = (self.path, self._compiled)
        code = _CODE.get(key)
        if code is None:
            compiled = self._compiled
            code = super().get_code(fullname) if compiled is None else compiled(self.get_data(self.path), self.path)
            assert code is not None
            _CODE[key] = code
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        vars(module).update(self._names)
        super().exec_module(module)


class CachedFinder:
    """Finds modules of which each process has its own copy.

    Parameters
    ----------
    is_own : callable
        Returns True for names of such modules.
    compiled : callable
        Returns the function that compiles a module in another way, or None.
    names : mapping of str to object
        Global names for modules that are compiled in another way.
    """

    def __init__(
        self, is_own: Callable[[str], bool], compiled: Callable[[str], Compile | None], names: Mapping[str, Any]
    ) -> None:
        self._is_own = is_own
        self._compiled = compiled
        self._names = names

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
        loader = CachedLoader(fullname, origin, compiled, {} if compiled is None else self._names)
        return spec_from_file_location(fullname, origin, loader=loader, submodule_search_locations=folders)
