"""Warnings about what was configured: each once in a process, and by whoever acts on it.

The same options may be read in several processes, and only one of them runs the query: the others hold back what
there is to say. Used by whoever reads configuration.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

log = logging.getLogger(__name__)

_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def warn_once(message: str) -> None:
    """Logs a warning, the same one only once in a process; or puts it aside, inside of `held_back`."""
    held = _held.get()
    if held is None:
        log_once(message)
    else:
        held.append(message)


@functools.cache
def log_once(message: str) -> None:
    log.warning("%s", message)


@contextmanager
def held_back() -> Iterator[list[str]]:
    """The warnings of this block, in place of their being logged; for `log_once` later, or never."""
    held: list[str] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)
