"""The data source API of the installed PySpark, from 4.0 on, under common names.

Read limits and `SupportsTriggerAvailableNow` exist since 4.2. Before, the classes here replace them, and Spark calls
`latestOffset()` without arguments.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import DataType
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


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow", "activate", "arrow_type"]


def activate(session: SparkSession) -> None:
    """Activate a session in the calling thread, unless the thread has one.

    Spark's writers look up a Python format in the active session only. Spark keeps it per thread, and PySpark sets it
    only in the thread that has created the session. See docs/troubleshooting.md.
    """
    if session.getActiveSession() is None:
        # A public call that activates the session, without a job.
        session.createDataFrame([], "id int")


def arrow_type(type: DataType) -> pa.DataType:
    """Return the Arrow type that columns have in Python; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return to_arrow_type(type, timezone="UTC")
    return to_arrow_type(type)  # PySpark 4.1
