"""The base of the data source, readers and writers, which Spark pickles for executors that may lack this package."""

from __future__ import annotations

import copyreg
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

LOG_LEVEL = "SPARK_KAFKA_SOURCE_LOG_LEVEL"


class PickledForExecutors:
    """Base class: if an executor lacks this package, unpickling fails with an error that says how to install it."""

    def __new__(cls, *_arguments: object, **_named: object) -> Any:
        """Create an object, and add levels to the format of warnings in this process."""
        _show_log_levels()
        return super().__new__(cls)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        module = sys.modules.get(kind.__module__)
        if kind.__module__ == "__main__" or getattr(module, kind.__qualname__, None) is not kind:
            # Defined in a function or a notebook: cloudpickle sends such a class by value.
            return copyreg.__newobj__, (kind,), self.__getstate__()  # type: ignore[attr-defined]
        # The state as bytes: the function imports its classes, and raises the error if it cannot.
        state: bytes = cloudpickle.dumps(self.__getstate__())  # type: ignore[no-untyped-call]
        return _restore_function(), (kind.__module__, kind.__qualname__, state)


def _show_log_levels() -> None:
    """Name level and logger in messages where no handler is configured, as in Spark's Python processes.

    Nothing else can configure logging there, so the level comes from `SPARK_KAFKA_SOURCE_LOG_LEVEL`.
    """
    handler = logging.lastResort
    if handler is None or handler.formatter is not None:
        return
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    level = os.environ.get(LOG_LEVEL, "").upper()
    if level in ("DEBUG", "INFO"):
        handler.setLevel(level)
        for name in ("spark_kafka_source", "protocol"):
            logging.getLogger(name).setLevel(level)


def _restore_function() -> Callable[[str, str, bytes], Any]:
    """Return a local function: cloudpickle sends its code; it would send only the name of a module's function."""

    def restore(module: str, name: str, state: bytes) -> Any:
        import gc
        import importlib
        import pickle
        import socket
        import sys

        collects = gc.isenabled()
        gc.disable()  # a full collection in the middle of the imports costs a sixth of their time
        try:
            kind = getattr(importlib.import_module(module), name)
            content = pickle.loads(state)  # noqa: S301  # made by __reduce__
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error}: the Python of this executor ({sys.executable} on {socket.gethostname()}) lacks the package "
                "spark-kafka-source or one that it needs. Install it on every executor, or send it along with "
                "--archives: see docs/installing.md"
            ) from error
        finally:
            if collects:
                gc.enable()
        restored = kind.__new__(kind)
        restored.__setstate__(content)
        return restored

    return restore
