"""Checks in a forked child, which ends by a signal if it waits forever."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def check_in_child(check: Callable[[], object], limit_s: int = 20) -> None:
    """Call `check` in a forked child; fail if it raises there or takes longer than the limit."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's handler would end the test, not the child
            signal.alarm(limit_s)
            check()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
