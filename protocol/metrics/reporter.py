"""Call a function with a client's metrics at an interval, in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from protocol.base.condition import Event
from protocol.base.interrupts import join
from protocol.errors import UsageError
from protocol.metrics.client_sensors import Metric

log = logging.getLogger(__name__)


class HasMetrics(Protocol):
    """A `Client`, a consumer or a producer."""

    def metrics(self) -> list[Metric]:
        """Return the present metrics."""
        ...


class MetricsReporter:
    """Calls `report` with the metrics of `source` at an interval until `close`. Also a context manager.

    Parameters
    ----------
    source : Client, KafkaConsumer, Consumer, ConsumerGroup or Producer
    report : callable
        Called in a thread of the reporter with a list of `Metric`. Its exceptions are logged.
    interval_ms : float

    Raises
    ------
    UsageError
        The interval is not positive.
    """

    def __init__(
        self, source: HasMetrics, report: Callable[[list[Metric]], object], interval_ms: float = 30_000
    ) -> None:
        if interval_ms <= 0:
            raise UsageError(f"interval_ms={interval_ms:g}: the interval of a report must be positive")
        self._source = source
        self._report = report
        self._interval_s = interval_ms / 1000
        self._closed = Event()
        self._thread = threading.Thread(target=self._run, name="metrics-reporter", daemon=True)
        self._thread.start()

    def __enter__(self) -> MetricsReporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Report once more, and end. Further calls have no effect."""
        if not self._closed.is_set():
            self._closed.set()
            if threading.current_thread() is not self._thread:
                join(self._thread)

    def _run(self) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(self._interval_s)
            try:
                self._report(self._source.metrics())
            except Exception:
                log.exception("a report of metrics has failed")
