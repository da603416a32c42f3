"""Modules of simulated processes: each process has its own copies, so that no state of a module is shared.

`sys.modules` always belongs to one process. It is exchanged when the next import happens in another process, so that a
switch of threads costs nothing.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from protocol.testing.simulation.code_cache import CachedFinder, Compile, Observer, execute
from protocol.testing.simulation.rewrite import (
    BEFORE_STATEMENT,
    SetOrder,
    compile_ordered,
    compile_preemptible,
)
from protocol.testing.simulation.scheduler import Scheduler

OWN_STANDARD_MODULES = frozenset(
    {
        "_queue",
        "_thread",
        "concurrent",
        "http",
        "queue",
        "sched",
        "select",
        "selectors",
        "signal",
        "socket",
        "socketserver",
        "threading",
        "time",
    }
)
"""Modules of the standard library that read the time, wait or start threads: replaced, or executed again."""
SHARED = "protocol.testing.simulation"
"""This package is the outside of the world, the same for all processes."""


class ModuleTables:
    """The modules of all processes of a world.

    Each process has a copy of the top-level `packages`. `preempt`: modules and packages in which threads may switch
    before any statement. `order` is the order of sets in these packages.
    """

    def __init__(
        self, scheduler: Scheduler, packages: set[str], preempt: Sequence[str], observer: Observer | None = None
    ) -> None:
        self._scheduler = scheduler
        self._names = OWN_STANDARD_MODULES | packages
        self._packages = packages
        self._preempt = tuple(preempt)
        self.order = SetOrder()
        names = {**self.order.names(), BEFORE_STATEMENT: scheduler.before_statement}
        names |= {} if observer is None else observer.names
        self._finder = CachedFinder(self.is_own, self._compiled, names, observer)
        self._outside: dict[str, ModuleType | None] = {}
        # The table of which `sys.modules` now shows the modules.
        self._shown = self._outside
        self._import: Callable[..., Any] = builtins.__import__
        self._import_module = importlib.import_module

    def add_package(self, name: str) -> None:
        """Give each process its own copy of another top-level package."""
        self._packages.add(name)
        self._names |= {name}

    def is_own(self, name: str) -> bool:
        """Return True if each process has its own copy of a module."""
        return name.partition(".")[0] in self._names and not (name == SHARED or name.startswith(SHARED + "."))

    def _compiled(self, name: str) -> Compile | None:
        """Return the function that compiles a module of a package; None for the standard library."""
        if name.partition(".")[0] not in self._packages:
            return None
        chosen = any(name == module or name.startswith(module + ".") for module in self._preempt)
        return compile_preemptible if chosen else compile_ordered

    def install(self) -> None:
        """Make imports in threads of the world find the modules of their process."""
        builtins.__import__ = self._import_for_process
        sys.meta_path.insert(0, self._finder)
        importlib.import_module = self._import_module_for_process
        vars(dataclasses)["exec"] = execute

    def uninstall(self) -> None:
        """Undo `install`."""
        builtins.__import__ = self._import
        sys.meta_path.remove(self._finder)
        importlib.import_module = self._import_module
        del vars(dataclasses)["exec"]
        self._show(self._outside)

    def show_current(self) -> None:
        """Make `sys.modules` show the modules of the current thread's process."""
        thread = self._scheduler.current
        table = self._outside if thread is None else thread.process.modules
        if table is not self._shown:
            self._show(table)

    def _show(self, table: dict[str, ModuleType | None]) -> None:
        former = self._shown
        former.clear()
        for name in [name for name in sys.modules if self.is_own(name)]:
            former[name] = sys.modules.pop(name)
        sys.modules.update(table)  # type: ignore[arg-type]  # None: the import fails
        self._shown = table

    def load(self, name: str) -> ModuleType:
        """Return a module of the current thread's process."""
        return self._import_module_for_process(name)

    def _import_for_process(self, *arguments: Any, **options: Any) -> Any:
        self.show_current()
        with self._scheduler.without_switches():
            if arguments[0].startswith(SHARED) and self._scheduler.current is not None:
                self._bind_shared()
            return self._import(*arguments, **options)

    def _import_module_for_process(self, name: str, package: str | None = None) -> ModuleType:
        self.show_current()
        with self._scheduler.without_switches():
            return self._import_module(name, package)

    def _bind_shared(self) -> None:
        """Import the package around `SHARED` in the process, too: `import a.b as c` goes through its attributes."""
        parent, _, name = SHARED.rpartition(".")
        if parent not in sys.modules:
            setattr(self._import_module(parent), name, sys.modules[SHARED])
