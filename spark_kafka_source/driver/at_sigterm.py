"""What this process does when Spark stops its query: it gets SIGTERM then, and `stop()` of the reader is not called."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

# Spark waits for nobody: what takes longer does not happen.
_LONGEST_S = 2.0


def at_sigterm(close: Callable[[], None]) -> None:
    """Has `close` called before SIGTERM ends this process. Only in the main thread; elsewhere nothing happens.

    It runs in a thread of its own: the main thread may have been stopped while it holds a lock that `close` needs.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # it comes twice
        closing = threading.Thread(target=close, name="at-sigterm", daemon=True)
        closing.start()
        closing.join(_LONGEST_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
