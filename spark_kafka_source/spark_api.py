"""What the installed PySpark offers of the data source API, under one name each, from 4.0 on.

Read limits and `SupportsTriggerAvailableNow` came with 4.2: before it, the classes here stand in for them, and
Spark calls `latestOffset()` without arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        from dataclasses import dataclass

        class ReadLimit:
            """Stands in for PySpark 4.2's class."""

        class ReadAllAvailable(ReadLimit):
            """Stands in for PySpark 4.2's class."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Stands in for PySpark 4.2's class."""

            max_rows: Any

        class SupportsTriggerAvailableNow:
            """Stands in for PySpark 4.2's class."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow", "activate"]


def activate(session: SparkSession) -> None:
    """Make `session` the active one of the calling thread, if the thread has none.

    Spark's writers look a format in Python up in the active session alone, which Spark keeps per thread and PySpark
    sets only in the thread that has made the session. See docs/troubleshooting.md.
    """
    if session.getActiveSession() is None:
        # The public call that does it, and runs no job.
        session.createDataFrame([], "id int")
