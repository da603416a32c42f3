"""Wait for a condition that other threads or processes fulfil."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    what: Callable[[], object] = lambda: "it did not happen in time",
    timeout_s: float = 25,
    every_s: float = 0.005,
) -> None:
    """Fail with the text of `what()` if the condition is not true in time.

    The default is below `request.timeout.ms`, after which a retry might hide a fault.

    `every_s` is the interval between two checks; use a longer one if each check sends a request.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, what()
        time.sleep(every_s)
