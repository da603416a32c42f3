"""Print one row for each micro-batch of the demo's query, from Spark's progress and the group's offsets.

Called by the demo's `__main__`. Reads the query's progress, the group's committed offsets and the log end offsets, and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.clock import SYSTEM_CLOCK
from protocol.cluster.client import Client
from protocol.consumer.list_offsets import list_offsets
from protocol.errors import KafkaError
from protocol.group.committed_offsets import fetch_offsets
from protocol.kafka_terms import LATEST
from spark_kafka_source.demo.screen import Screen, Table
from spark_kafka_source.plan.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_INTERVAL_S = 0.2
_COLUMNS = {
    "batch": 5,
    "orders": 8,
    "orders/s": 8,
    "read up to": 11,
    "committed": 11,
    "log end": 11,
    "lag": 8,
    "results": 7,
}


class Watch:
    """Follows a query that reads one topic with one group; offsets are shown as sums over the topic's partitions."""

    def __init__(self, query: StreamingQuery, client: Client, group: str, topic: str, screen: Screen) -> None:
        self.late_rows = 0
        self._query = query
        self._client = client
        self._group = group
        self._partitions = [(topic, number) for number in client.topic(topic).partitions]
        self._table = Table(screen, _COLUMNS)
        self._last_batch = -1

    def header(self) -> None:
        """Print the table's header."""
        self._table.header()

    @property
    def began(self) -> bool:
        """True if a batch has completed."""
        return self._last_batch >= 0

    def caught_up(self) -> bool:
        """Return True if the committed offsets equal the log end offsets."""
        return self._committed() == self._log_end()

    def wait_until(self, done: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Print batches until `done` returns True.

        Parameters
        ----------
        done
            The condition.
        what
            The missing event, for the error message.
        timeout_s
            Maximum time in seconds.

        Raises
        ------
        KafkaError
            The condition is not met within `timeout_s`.
        StreamingQueryException
            The query failed.
        """
        give_up_s = SYSTEM_CLOCK.now_s() + timeout_s
        while not done():
            self.show_new_batches()
            failure = self._query.exception()
            if failure is not None:
                raise failure
            if SYSTEM_CLOCK.now_s() > give_up_s:
                raise KafkaError(f"after {timeout_s:g} s {what}; is this machine busy with something else?")
            SYSTEM_CLOCK.sleep_s(_POLL_INTERVAL_S)
        self.show_new_batches()

    def show_new_batches(self) -> None:
        """Print the batches that completed since the last call."""
        for progress in self._query.recentProgress:
            if progress.batchId > self._last_batch:
                self._last_batch = progress.batchId
                self.late_rows += sum(int(each.numRowsDroppedByWatermark) for each in progress.stateOperators)
                self._show(progress)

    def _show(self, progress: StreamingQueryProgress) -> None:
        read_up_to = sum(Offsets.from_progress(progress.sources[0].endOffset).ends.values())
        committed, log_end = self._committed(), self._log_end()
        self._table.timed_row(
            progress.batchId,
            int(progress.numInputRows),
            round(progress.processedRowsPerSecond),
            read_up_to,
            committed,
            log_end,
            log_end - committed,
            int(progress.sink.numOutputRows),
        )

    def _committed(self) -> int:
        offsets = fetch_offsets(self._client, self._group, self._partitions, self._client.deadline())
        return sum(entry.offset for entry in offsets.values())

    def _log_end(self) -> int:
        listed = list_offsets(self._client, dict.fromkeys(self._partitions, LATEST))
        return sum(entry.offset for entry in listed.values())
