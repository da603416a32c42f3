"""The lag of partitions as a table: text, HTML, Arrow and pandas. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from protocol.errors import UsageError
from spark_kafka_source.lag.plot import bars

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("committed", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("offsets_behind", pa.int64()),
        pa.field("seconds_behind", pa.float64()),
        pa.field("skipped", pa.int64()),
        pa.field("source", pa.int32()),
    ]
)
_HEADERS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "committed": "CURRENT-OFFSET",
    "end": "LOG-END-OFFSET",
    "offsets_behind": "LAG",
    "seconds_behind": "LAG-SECONDS",
    "skipped": "SKIPPED",
    "source": "SOURCE",
}


class PartitionLag(NamedTuple):
    """The lag of one partition; unknown values are None.

    Attributes
    ----------
    topic : str
    partition : int
    committed : int or None
        The next offset to read: the group's committed offset, or the end of the query's last batch.
    end : int or None
        The log end: the high watermark, or with `read_committed` the last stable offset.
    seconds_behind : float or None
        The age of the first record that is not committed; 0.0 if there is none. None if it was not requested, if the
        broker did not reply in time, and for records without a timestamp.
    skipped : int or None
        For a query with `failOnDataLoss=false`: the number of offsets that were no longer in the log when their batch
        was planned. Records lost between planning and reading are not counted. The only value of a deleted partition.
    source : int or None
        For a query: the index of the source in the progress; two sources may read the same partition.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    seconds_behind: float | None = None
    skipped: int | None = None
    source: int | None = None

    @property
    def offsets_behind(self) -> int | None:
        """Lag in offsets, as in Kafka's tools; compaction and transactions leave offsets without a record.

        Negative if the log ends before the committed offset: it was truncated, or its topic was recreated.
        """
        return None if self.committed is None or self.end is None else self.end - self.committed


@dataclass(frozen=True)
class Lag:
    """The lag of some partitions, sorted by topic, partition and source."""

    partitions: tuple[PartitionLag, ...]

    def __iter__(self) -> Iterator[PartitionLag]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    @property
    def offsets_behind(self) -> int:
        """The sum of all known lags in offsets."""
        return sum(self._known())

    @property
    def seconds_behind(self) -> float | None:
        """The largest known lag in seconds; None if none is known."""
        return max((row.seconds_behind for row in self if row.seconds_behind is not None), default=None)

    @property
    def skipped(self) -> int:
        """The sum of all known skipped offsets."""
        return sum(row.skipped or 0 for row in self)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that Spark's own connector reports; empty if no lag is known."""
        names = self._known()
        if not names:
            return {}
        return {
            "minOffsetsBehindLatest": min(names),
            "maxOffsetsBehindLatest": max(names),
            "avgOffsetsBehindLatest": sum(names) / len(names),
        }

    def to_arrow(self) -> pa.Table:
        """Return one row per partition, with the columns of `SCHEMA`."""
        columns = {name: [getattr(row, name) for row in self] for name in SCHEMA.names}
        return pa.table(columns, schema=SCHEMA)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Lag:
        """Convert a table of `to_arrow` back."""
        columns = [table[name].to_pylist() for name in PartitionLag._fields]
        return cls(tuple(PartitionLag(*row) for row in zip(*columns, strict=True)))

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows of `to_arrow`. Needs pandas: `pip install 'spark-kafka-source[notebook]'`."""
        return to_pandas(self.to_arrow())

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot a bar per partition. Needs matplotlib: `pip install 'spark-kafka-source[notebook]'`."""
        return bars({f"{row.topic}-{row.partition}": row.offsets_behind or 0 for row in smallest_first(self)}, axes)

    def __str__(self) -> str:
        lines = [[_HEADERS[name] for name in self._shown], *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{cell}</td>" for cell in row) for row in self._cells()]
        header = "".join(f"<th>{name}</th>" for name in self._shown)
        return f"<table><tr>{header}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    @property
    def _shown(self) -> list[str]:
        """The columns to display; `source` only if there are several sources."""
        several = len({row.source for row in self}) > 1
        return [name for name in SCHEMA.names if name != "source" or several]

    def _cells(self) -> list[list[str]]:
        return [[_cell(getattr(row, name)) for name in self._shown] for row in self]

    def _known(self) -> list[int]:
        return [row.offsets_behind for row in self if row.offsets_behind is not None]


def smallest_first(lag: Lag) -> list[PartitionLag]:
    """Return the rows by partition; if several sources read it, the one with the largest lag is the last."""

    def behind(row: PartitionLag) -> float:
        return -math.inf if row.offsets_behind is None else row.offsets_behind

    return sorted(lag, key=lambda row: (row.topic, row.partition, behind(row)))


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert a table; raise `UsageError` that names the extra if pandas is missing."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise UsageError("to_pandas() needs pandas: pip install 'spark-kafka-source[notebook]'") from error
    return table.to_pandas()


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
