"""The lag of partitions as a table: what there is to know of each, in text, HTML, Arrow and pandas. Pure."""

from __future__ import annotations

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
    """One partition. None is what is not known.

    Attributes
    ----------
    committed : the next offset to read, as the group has committed it or the query's last batch has reached it.
    end : the end of the log: the high watermark, or with `read_committed` the last stable offset.
    seconds_behind : the age of the first record that is not committed; 0.0 if there is none. Only where it was asked
        for; left out for a partition that did not answer in time, and for records without a time.
    skipped : of a query: how many offsets it has left out so far (with `failOnDataLoss=false`) because they were not in
        the log any more when their batch was planned. Not in it: what is lost between that and the reading. It is all
        that is known of a deleted partition.
    source : of a query: the index of the source in the query's progress; two sources may read the same partition.
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
        """As Kafka's tools count lag: offsets, of which compaction and transactions leave some without a record.

        Negative where the log is shorter than what was committed: it was truncated, or its topic recreated.
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
        """Of all partitions together, as far as known."""
        return sum(self._known())

    @property
    def seconds_behind(self) -> float | None:
        """That of the partition that is behind most; None if it is known of none."""
        return max((row.seconds_behind for row in self if row.seconds_behind is not None), default=None)

    @property
    def skipped(self) -> int:
        """Of all partitions together, as far as known."""
        return sum(row.skipped or 0 for row in self)

    def metrics(self) -> dict[str, float]:
        """Under the names, and with the values, that Spark's own connector reports; empty if nothing is known."""
        known = self._known()
        if not known:
            return {}
        return {
            "minOffsetsBehindLatest": min(known),
            "maxOffsetsBehindLatest": max(known),
            "avgOffsetsBehindLatest": sum(known) / len(known),
        }

    def to_arrow(self) -> pa.Table:
        """One row per partition, with the columns of `SCHEMA`."""
        columns = {name: [getattr(row, name) for row in self] for name in SCHEMA.names}
        return pa.table(columns, schema=SCHEMA)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Lag:
        """Reads what `to_arrow` made."""
        columns = [table[name].to_pylist() for name in PartitionLag._fields]
        return cls(tuple(PartitionLag(*row) for row in zip(*columns, strict=True)))

    def to_pandas(self) -> pd.DataFrame:
        """The rows of `to_arrow`. Needs pandas: `pip install 'spark-kafka-source[notebook]'`."""
        return to_pandas(self.to_arrow())

    def plot(self, axes: Axes | None = None) -> Axes:
        """A bar per partition. Needs matplotlib: `pip install 'spark-kafka-source[notebook]'`."""
        return bars({f"{row.topic}-{row.partition}": row.offsets_behind or 0 for row in self}, axes)

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
        """The columns for people: the source only if there are several."""
        several = len({row.source for row in self}) > 1
        return [name for name in SCHEMA.names if name != "source" or several]

    def _cells(self) -> list[list[str]]:
        return [[_cell(getattr(row, name)) for name in self._shown] for row in self]

    def _known(self) -> list[int]:
        return [row.offsets_behind for row in self if row.offsets_behind is not None]


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert a table; raise `UsageError` that names the extra if pandas is missing."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise UsageError("to_pandas() needs pandas: pip install 'spark-kafka-source[notebook]'") from error
    return table.to_pandas()


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
