"""A hint for wide queries, whose triggers cost processor time even when they find nothing new."""

from __future__ import annotations

from protocol.once import log_once

# Below that an idle query takes little, however often it looks.
_COSTLY_S = 0.05
_PAUSE_S = 0.1
_IN_A_ROW = 50


class IdleTriggers:
    """Counts costly triggers without new records and without a pause between them, and warns once."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._ended_s = float("-inf")

    def ended(self, *, idle: bool, began_s: float, ended_s: float, cpu_s: float, partitions: int) -> None:
        """Take in one trigger: its times on a monotonic clock, and the processor time of its thread."""
        at_once = began_s - self._ended_s < _PAUSE_S
        self._ended_s = ended_s
        self._in_a_row = self._in_a_row + 1 if idle and at_once and cpu_s >= _COSTLY_S else 0
        if self._in_a_row == _IN_A_ROW:
            log_once(
                f"this query looks for new records in {partitions} partitions without a pause, and each look takes "
                f"{cpu_s * 1000:.0f} ms of processor time on the driver: set an interval, as in "
                "trigger(processingTime='1 second')"
            )
