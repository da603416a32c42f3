"""Log warnings about the configuration, each one once per process.

Several processes may read the same options, but only one of them runs the query. The others collect their warnings
with `deferred_warnings` and drop them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from protocol.errors import rename_properties

log = logging.getLogger(__name__)

_held: ContextVar[list[str] | None] = ContextVar("held", default=None)
_rename: ContextVar[Callable[[str], str]] = ContextVar("rename", default=str)


def warn_once(message: str, *settings: str) -> None:
    """Log a warning once per process; inside of `deferred_warnings`, add it to that block's list instead.

    `*settings`: the properties in the message, which `property_names` renames.
    """
    message = rename_properties(message, settings, _rename.get())
    deferred = _held.get()
    if deferred is None:
        log_once(message)
    else:
        deferred.append(message)


@functools.cache
def log_once(message: str) -> None:
    """Log a warning, unless this process has logged the same one."""
    log.warning("%s", message)


def reset() -> None:
    """Forget the warnings that were logged, as in a new process. For tests."""
    log_once.cache_clear()


@contextmanager
def property_names(rename: Callable[[str], str]) -> Iterator[None]:
    """Use an integration's names of Kafka's properties in the warnings of the block."""
    token = _rename.set(rename)
    try:
        yield
    finally:
        _rename.reset(token)


@contextmanager
def deferred_warnings() -> Iterator[list[str]]:
    """Collect the warnings of the block instead of logging them.

    Yields the warnings so far, to pass to `log_once` or to drop.
    """
    deferred: list[str] = []
    token = _held.set(deferred)
    try:
        yield deferred
    finally:
        _held.reset(token)
