"""Threads that compress the record batches of one producer.

Called by `batch_assembler`, in the callers' threads and in the sender's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

# After this time without a result, a caller compresses the record batch itself.
_COMPRESSION_S = 2.0
_MAX_COMPRESSORS = min(4, os.cpu_count() or 1)

T = TypeVar("T")
R = TypeVar("R")


class _Compression(Generic[T, R]):
    """The compression of one record batch; without a future, whose condition MemoryError may leave locked.

    Attributes
    ----------
    done : Lock
        Free when `result` or `error` is set.
    """

    def __init__(self, call: Callable[[T], R], item: T) -> None:
        self._call, self._item = call, item
        self.done = threading.Lock()
        self.done.acquire()
        self.error: BaseException | None = None
        self.result: R

    def run(self) -> None:
        """Compress, in any thread."""
        try:
            self.result = self._call(self._item)
        except BaseException as error:
            self.error = error
        self.done.release()


class Compressors:
    """At most four threads, created when needed."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_COMPRESSORS, "produce-compress")

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call in these threads, or in the caller's after the program's end or `stop`, or if they do not answer."""
        threads, results = self._threads, list[R]()
        compressions = [_Compression(call, each) for each in items]
        try:
            for each in compressions:
                threads.submit(each.run)
        except RuntimeError:
            return list(map(call, items))
        wait_s = _COMPRESSION_S
        for each, item in zip(compressions, items, strict=True):
            if not each.done.acquire(timeout=wait_s):
                wait_s = 0.0
                results.append(call(item))
            elif each.error is not None:
                raise each.error
            else:
                results.append(each.result)
        if not wait_s and threads is self._threads:  # MemoryError may have ended a thread, which counts as idle
            self._threads = ThreadPoolExecutor(_MAX_COMPRESSORS, "produce-compress")
        return results

    def stop(self) -> None:
        """Let the threads end. Does not wait."""
        self._threads.shutdown(wait=False)
