"""The module `signal` of a simulated process."""

from __future__ import annotations

import signal
from types import ModuleType
from typing import Any

from protocol.testing.simulation.host import Host


def signal_module(process: Host) -> ModuleType:
    """Return the module `signal` of a process: handlers are set by its main thread, and called there."""
    module = ModuleType("signal")
    vars(module).update({name: value for name, value in vars(signal).items() if not name.startswith("__")})

    def set_handler(number: int, handler: Any) -> Any:
        if not process.in_main_thread:
            raise ValueError("signal only works in main thread of the main interpreter")
        former = process.signal_handlers.get(number, signal.SIG_DFL)
        process.signal_handlers[number] = handler
        return former

    vars(module).update(
        _signal=module,  # that in C is the real one
        signal=set_handler,
        getsignal=lambda number: process.signal_handlers.get(number, signal.SIG_DFL),
        raise_signal=lambda number: process.interrupt(number),
        set_wakeup_fd=lambda *_, **__: -1,
        siginterrupt=lambda *_: None,
    )
    return module
