"""Threads that compress the record batches of one producer.

Called by `batch_assembler`, in the callers' threads and in the sender's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_MAX_COMPRESSORS = min(4, os.cpu_count() or 1)

T = TypeVar("T")
R = TypeVar("R")


class Compressors:
    """At most four threads, created when needed."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_COMPRESSORS, "produce-compress")

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call in these threads, or in the caller's after the program's end or `stop`."""
        try:
            results = self._threads.map(call, items)
        except RuntimeError:
            return list(map(call, items))
        return list(results)

    def stop(self) -> None:
        """Let the threads end. Does not wait."""
        self._threads.shutdown(wait=False)
