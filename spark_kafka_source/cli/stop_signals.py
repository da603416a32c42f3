"""Ctrl-C and SIGTERM as a request to finish: output is completed, offsets are committed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Longest wait of a command between two checks of the request.
CHECK_MS = 200


class StopRequest:
    """True after the first signal. The second one raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self._stopped = False

    def __bool__(self) -> bool:
        return self._stopped

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM in the block, if it runs in the main thread."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
