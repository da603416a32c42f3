"""The process that runs simulations: it imports what they need once, and forks for each run.

Reads one JSON object of options per line from standard input, and writes one JSON object, the `Outcome`, for each.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import logging
import os
import sys
import traceback
import warnings
from collections import deque
from typing import Any, TextIO

_foundations: dict[tuple[Any, ...], Any] = {}
_observers: dict[str, Any] = {}

_LAST_LINES = 200


def main() -> None:
    """Run simulations until the end of the input."""
    _import_what_runs_need()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of a scenario are no outcomes
    for line in sys.stdin:
        options = json.loads(line)
        with contextlib.suppress(Exception):  # the run itself reports it
            _foundation(options)
        gc.freeze()
        text = _in_child(options)
        try:
            output.write(text + "\n")
            output.flush()
        except BrokenPipeError:  # the command was stopped
            os._exit(0)  # else the interpreter flushes again
        with contextlib.suppress(Exception):
            _foundation(options).prepare(options["prepare"] and 1 + json.loads(text)["processes"])


def _import_what_runs_need() -> None:
    import numpy as np  # noqa: F401
    import pyarrow as pa
    import pyarrow.compute

    import protocol.testing.simulation.simulation  # noqa: F401

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.array([""])  # Arrow imports pandas under a lock in C++, which a killed process would keep


def _foundation(options: dict[str, Any]) -> Any:
    """Return the foundation of a scenario's worlds, which runs share: each has a copy of it, in its own process."""
    from protocol.testing.simulation.foundation import Foundation

    key = (options["scenario"], options["observer"], *options["preempt"], *options["packages"])
    if key not in _foundations:
        foundation = Foundation(options["packages"], options["preempt"], _observer(options["observer"]))
        foundation.use(_scenario(options).__module__)
        foundation.prepare(1)
        _foundations[key] = foundation
    return _foundations[key]


def _scenario(options: dict[str, Any]) -> Any:
    """Return the function of a scenario."""
    module, _, name = options["scenario"].partition(":")
    for path in reversed(options["path"]):
        if path not in sys.path:
            sys.path.insert(0, path)
    return getattr(importlib.import_module(module), name)


def _observer(name: str | None) -> Any:
    """Return the observer of this name, which is the same one in all runs of a worker."""
    if name is not None and name not in _observers:
        module, _, class_name = name.partition(":")
        _observers[name] = getattr(importlib.import_module(module), class_name)()
    return _observers.get(name or "")


def _in_child(options: dict[str, Any]) -> str:
    """Run one simulation in a forked child; return its outcome."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread is that of Arrow's allocator
        child = os.fork()
    if not child:
        os.close(reader)
        gc.disable()  # else the end of the run collects the whole world, which ends with the process
        status = 1
        try:
            faulthandler.dump_traceback_later(options["real_limit_s"], exit=True)
            with os.fdopen(writer, "w") as pipe:
                pipe.write(json.dumps(run(options)))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)  # no exit handler and no destructor of the world may run
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    error = f"the process of the run ended with wait status {status}, or ran for {options['real_limit_s']} real seconds"
    return text or json.dumps({"error": error})


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Run one simulation in this process; return its outcome as a dictionary."""
    from protocol.testing.simulation.simulation import Simulation

    lines: deque[str] = deque(maxlen=_LAST_LINES)
    stream: TextIO | None = sys.stderr if options["trace"] else None

    def report(line: str) -> None:
        lines.append(line)
        if stream is not None:
            print(line, file=stream)

    ranges = options["switches"]

    def allow(number: int) -> bool:
        return any(first <= number < end for first, end in ranges)

    world = Simulation(
        options["seed"],
        limit_s=options["limit_s"],
        faults=options["faults"],
        allow=None if ranges is None else allow,
        report=report,
        foundation=_foundation(options),
    )
    _log_to(world, options["log_level"])
    outcome: dict[str, Any] = {"seed": options["seed"], "error": None, "result": None}
    try:
        result = world.run(_scenario(options), *options["arguments"]).result
        try:
            outcome["result"] = json.loads(json.dumps(result, default=repr))
        except TypeError as error:
            raise TypeError(f"what the scenario returns is no JSON: {error}") from None
    except BaseException as error:  # also SystemExit and KeyboardInterrupt, of the scenario or of a joined process
        outcome["error"] = f"{type(error).__name__}: {error}"
        outcome["traceback"] = "".join(traceback.format_exception(error))
    outcome |= world.summary()
    outcome["processes"], outcome["kills"] = len(world.processes), world.kills
    observer = _observer(options["observer"])
    observed = None if observer is None else observer.result()
    return outcome | {"trace": list(lines), "observed": observed}


def _log_to(world: Any, level: str) -> None:
    """Add the records of loggers to the trace."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            world.trace(f"{record.levelname.lower()} {record.name}: {record.getMessage()}")

    logging.basicConfig(level=level, handlers=[Handler()], force=True)


if __name__ == "__main__":
    main()
