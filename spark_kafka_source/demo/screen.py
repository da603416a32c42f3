"""Print the demo's output: lines with the time since the start, aligned tables, and a row for each micro-batch.

A row is made from the query's progress, the group's committed offsets and the log end offsets; nothing is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from protocol.base.clock import SYSTEM_CLOCK
from protocol.cluster.client import Client
from protocol.errors import KafkaError
from protocol.fetch.list_offsets import list_offsets
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.kafka_terms import LATEST
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.watching import QueryHistory

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


class Screen:
    """Writes lines to a terminal; thread-safe."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._began_s = SYSTEM_CLOCK.now_s()

    def print_timed(self, line: str) -> None:
        """Print a line with the time."""
        self._write(f"{SYSTEM_CLOCK.now_s() - self._began_s:6.1f} s  {line}")

    def print_line(self, line: str = "") -> None:
        """Print a line that continues the previous one, without a time."""
        self._write(f"{'':10}{line}".rstrip())

    def print_verbatim(self, text: str) -> None:
        """Print the output of another program unchanged."""
        self._write(text)

    def _write(self, line: str) -> None:
        print(line, file=self._out, flush=True)


@dataclass(frozen=True)
class Table:
    """Prints rows under a header. `columns` maps names to widths; a negative width aligns the column to the left."""

    screen: Screen
    columns: Mapping[str, int]

    def header(self) -> None:
        """Print an empty line and the names of the columns."""
        self.screen.print_line()
        self.screen.print_line(self._line(*self.columns))

    def row(self, *cells: object) -> None:
        """Print a row; integers get thousands separators."""
        self.screen.print_line(self._line(*cells))

    def timed_row(self, *cells: object) -> None:
        """Print a row with the time."""
        self.screen.print_timed(self._line(*cells))

    def _line(self, *cells: object) -> str:
        texts = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
        return "  ".join(
            f"{text:>{width}}" if width > 0 else f"{text:<{-width}}"
            for text, width in zip(texts, self.columns.values(), strict=True)
        )


class Watch:
    """Follows a query that reads one topic with one group; offsets are shown as sums over the topic's partitions."""

    def __init__(
        self, query: StreamingQuery, client: Client, options: Mapping[str, str], group: str, topic: str, screen: Screen
    ) -> None:
        self.late_rows = 0
        self.history = QueryHistory(query, options={**options, "kafka.group.id": group})
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

        `what`: the missing event, for the error message.
        Raises `KafkaError`: the condition is not met within `timeout_s`. `StreamingQueryException`: the query failed.
        """
        deadline_s = SYSTEM_CLOCK.now_s() + timeout_s
        while not done():
            self.show_new_batches()
            failure = self._query.exception()
            if failure is not None:
                raise failure
            if SYSTEM_CLOCK.now_s() > deadline_s:
                raise KafkaError(f"after {timeout_s:g} s {what}; is this machine busy with something else?")
            SYSTEM_CLOCK.sleep_s(_POLL_INTERVAL_S)
        self.show_new_batches()

    def show_new_batches(self) -> None:
        """Print the batches that completed since the last call, and add them to the history."""
        self.history.poll()
        for progress in self._query.recentProgress:
            if progress.batchId > self._last_batch:
                self._last_batch = progress.batchId
                self.late_rows += sum(int(operator.numRowsDroppedByWatermark) for operator in progress.stateOperators)
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
