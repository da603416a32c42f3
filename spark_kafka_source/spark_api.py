"""The data source API of the installed PySpark, from 4.0 on, under common names.

Read limits and `SupportsTriggerAvailableNow` exist since 4.2. Before, the classes here replace them, and Spark calls
`latestOffset()` without arguments.
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
            """Replaces PySpark 4.2's class."""

        class ReadAllAvailable(ReadLimit):
            """Replaces PySpark 4.2's class."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Replaces PySpark 4.2's class."""

            max_rows: Any

        class SupportsTriggerAvailableNow:
            """Replaces PySpark 4.2's class."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow", "activate"]


def activate(session: SparkSession) -> None:
    """Activate a session in the calling thread, unless the thread has one.

    Spark's writers look up a Python format in the active session only. Spark keeps it per thread, and PySpark sets it
    only in the thread that has created the session. See docs/troubleshooting.md.
    """
    if session.getActiveSession() is None:
        # A public call that activates the session, without a job.
        session.createDataFrame([], "id int")
