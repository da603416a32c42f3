"""Close resources at SIGTERM: Spark stops a query's process this way, without a call of the reader's `stop()`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

# Spark kills the process soon afterwards.
_MAX_CLOSE_S = 2.0


def at_sigterm(close: Callable[[], None]) -> None:
    """Call `close` before SIGTERM ends this process. Has no effect outside of the main thread.

    `close` runs in a separate thread: the interrupted main thread may hold a lock that `close` needs.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # Spark sends it twice
        closing = threading.Thread(target=close, name="at-sigterm", daemon=True)
        closing.start()
        closing.join(_MAX_CLOSE_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
