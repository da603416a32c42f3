"""How a test waits for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    what: Callable[[], object] = lambda: "it did not happen in time",
    timeout_s: float = 25,
    every_s: float = 0.005,
) -> None:
    """Fails, and says `what()`, when it is not so in time: before `request.timeout.ms` is over and mends something.

    `every_s`: how long to wait between two looks, more where each asks a broker.
    """
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, what()
        time.sleep(every_s)
