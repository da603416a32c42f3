"""Compiled modules, kept for all processes of a world and all worlds of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

_CODE: dict[tuple[str, bool], CodeType] = {}
_PLACES: dict[str, tuple[str, list[str] | None]] = {}


class CachedLoader(SourceFileLoader):
    """Loads a module from code that was compiled before, changed by `transform` if it is given."""

    def __init__(self, name: str, path: str, transform: Callable[[bytes, str], CodeType] | None) -> None:
        super().__init__(name, path)
        self._transform = transform

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the compiled module."""
        key = (self.path, self._transform is not None)
        code = _CODE.get(key)
        if code is None:
            if self._transform is not None:
                code = self._transform(self.get_data(self.path), self.path)
            else:
                code = super().get_code(fullname)
                assert code is not None
            _CODE[key] = code
        return code


class CachedFinder:
    """Finds modules of which each process has its own copy.

    Parameters
    ----------
    is_own : callable
        Returns True for names of such modules.
    transform : callable
        Returns the function that compiles a module in another way, or None.
    """

    def __init__(
        self, is_own: Callable[[str], bool], transform: Callable[[str], Callable[[bytes, str], CodeType] | None]
    ) -> None:
        self._is_own = is_own
        self._transform = transform

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
        loader = CachedLoader(fullname, origin, self._transform(fullname))
        return spec_from_file_location(fullname, origin, loader=loader, submodule_search_locations=folders)


def preload(names_and_paths: Sequence[tuple[str, str]]) -> None:
    """Compile modules before they are needed."""
    for name, path in names_and_paths:
        CachedLoader(name, path, None).get_code(name)


def loaded() -> list[tuple[str, str]]:
    """Return the names and paths of the modules compiled so far, unchanged ones only."""
    compiled = {path for path, changed in _CODE if not changed}
    return [(name, place[0]) for name, place in _PLACES.items() if place[0] in compiled]
