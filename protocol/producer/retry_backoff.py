"""A retry back-off of the user's own: sarama's `Producer.Retry.BackoffFunc`. Sans-IO."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from protocol.base.clock import Backoff

log = logging.getLogger(__name__)

BackoffFunction = Callable[[int, int], float]
"""Takes the number of consecutive failures of a partition and the property `retries`; returns the wait in ms."""


@dataclass
class FunctionBackoff(Backoff):
    """Waits the ms that a function returns. If it fails or returns an invalid value, logs it and waits as `Backoff`."""

    function: BackoffFunction = lambda failures, retries: 0.0
    retries: int = 0

    def next_s(self) -> float:
        """Return the seconds to wait before the next try, and count that try."""
        default_s = super().next_s()
        try:
            wait_ms = float(self.function(self.tries, self.retries))
            if not 0 <= wait_ms < math.inf:
                raise ValueError(f"retry_backoff returned {wait_ms}; it must return milliseconds")
        except Exception as error:
            log.warning("retry_backoff has failed; the default applies: %r", error, exc_info=error)
            return default_s
        return wait_ms / 1000
