"""Wait for a condition that other threads or processes fulfil."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

# Below `request.timeout.ms`, after which a retry might hide a fault.
TIMEOUT_S = 25
_EVERY_S = 0.005


def wait_until(
    condition: Callable[[], object],
    describe: Callable[[], object] = lambda: "it did not happen in time",
    timeout_s: float = TIMEOUT_S,
    every_s: float = _EVERY_S,
) -> None:
    """Return as soon as the condition is true; fail with the text of `describe()` if it is too late.

    `every_s` is the interval between two checks; use a longer one if each check sends a request.
    """
    for _ in attempts(timeout_s, every_s):
        if condition():
            return
    raise AssertionError(describe())


def comes_true(condition: Callable[[], object], timeout_s: float) -> bool:
    """Return whether the condition becomes true in time."""
    return any(condition() for _ in attempts(timeout_s))


def attempts(timeout_s: float = TIMEOUT_S, every_s: float = _EVERY_S) -> Iterator[None]:
    """Yield at this interval, at least once, until the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        yield
        if time.monotonic() > deadline_s:
            return
        time.sleep(every_s)
