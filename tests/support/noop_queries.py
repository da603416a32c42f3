"""Streaming queries without output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery


def start_query(rows: DataFrame, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query; by default it ends when it has read all available records."""
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def run_query(rows: DataFrame, checkpoint: Path) -> StreamingQuery:
    """Return a query that has read all available records."""
    query = start_query(rows, checkpoint)
    assert query.awaitTermination(120)
    return query


def row_count(query: StreamingQuery) -> int:
    """Return the number of rows in all micro-batches."""
    return sum(progress.numInputRows for progress in query.recentProgress)
