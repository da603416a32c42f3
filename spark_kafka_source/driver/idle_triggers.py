"""A hint for wide queries, whose triggers cost processor time even when they find nothing new."""

from __future__ import annotations

from protocol.once import log_once

# Below these an idle query takes little: per trigger, and of the time between two ends of triggers.
_COSTLY_S = 0.05
_SHARE = 0.25
_BUSY_TRIGGERS = 50


class IdleTriggers:
    """Counts triggers without new records that keep the driver busy, and warns once."""

    def __init__(self) -> None:
        self._busy = 0
        self._ended_s = float("-inf")

    def ended(self, *, idle: bool, ended_s: float, cpu_s: float, partitions: int) -> None:
        """Take in one trigger: when it ended on a monotonic clock, and the processor time of its thread."""
        busy = cpu_s >= max(_COSTLY_S, _SHARE * (ended_s - self._ended_s))
        self._ended_s = ended_s
        # One slow reply in between does not start the count anew.
        self._busy = max(0, self._busy + (1 if busy else -1)) if idle else 0
        if self._busy == _BUSY_TRIGGERS:
            log_once(
                f"this query looks for new records in {partitions} partitions without a pause, and each look takes "
                f"{cpu_s * 1000:.0f} ms of processor time on the driver: set an interval, as in "
                "trigger(processingTime='1 second')"
            )
