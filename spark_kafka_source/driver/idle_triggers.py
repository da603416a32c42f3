"""Warn if triggers without new records keep the driver busy, as in queries with very many partitions."""

from __future__ import annotations

from protocol.once import log_once

# A trigger is busy from this processor time on, and from this share of the time since the previous trigger's end.
_BUSY_CPU_S = 0.05
_BUSY_SHARE = 0.25
_WARN_AFTER_TRIGGERS = 50


class IdleTriggers:
    """Counts triggers without new records that keep the driver busy, and warns once."""

    def __init__(self) -> None:
        self._busy = 0
        self._ended_s = float("-inf")

    def ended(self, *, idle: bool, ended_s: float, cpu_s: float, partitions: int) -> None:
        """Record a trigger.

        Parameters
        ----------
        idle : bool
            True if it found no new records.
        ended_s : float
            Monotonic time of its end.
        cpu_s : float
            Processor time of its thread.
        partitions : int
            For the warning.
        """
        busy = cpu_s >= max(_BUSY_CPU_S, _BUSY_SHARE * (ended_s - self._ended_s))
        self._ended_s = ended_s
        # One slow reply does not reset the count.
        self._busy = max(0, self._busy + (1 if busy else -1)) if idle else 0
        if self._busy == _WARN_AFTER_TRIGGERS:
            log_once(
                f"this query checks {partitions} partitions for new records without a pause, and each check takes "
                f"{cpu_s * 1000:.0f} ms of processor time on the driver: set an interval, as in "
                "trigger(processingTime='1 second')"
            )
