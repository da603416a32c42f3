"""The data source API of the installed PySpark, from 4.0 on, under common names.

Read limits and `SupportsTriggerAvailableNow` exist since 4.2. Before, the classes here replace them, and Spark calls
`latestOffset()` without arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from protocol.base.condition import Lock

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


__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "activate",
    "arrow_type",
    "streaming_environment",
]

# The environment variables that a starting query sets for its Python source, with Spark's default values.
_STREAMING_ENVIRONMENT = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
_registering = Lock()


def activate(session: SparkSession) -> None:
    """Activate a session in the calling thread, unless the thread has one.

    Spark's writers look up a Python format in the active session only. Spark keeps it per thread, and PySpark sets it
    only in the thread that has created the session. See docs/troubleshooting.md.
    """
    if session.getActiveSession() is None:
        # A public call that activates the session, without a job.
        session.createDataFrame([], "id int")


@contextmanager
def streaming_environment(session: SparkSession) -> Iterator[None]:
    """Let a Python source registered meanwhile have the environment variables that its streaming queries set.

    Queries put them into the source's one `HashMap` without a lock (`PythonStreamingSourceRunner.init`), while
    jobs serialize it: new keys can corrupt it. A value that replaces another cannot. See docs/decisions/0019.
    """
    context: Any = getattr(session, "sparkContext", None)
    if not hasattr(context, "environment"):  # Spark Connect
        yield
        return
    with _registering:
        environment = context.environment
        # A copy, since another thread may iterate over the dictionary to make a Python function.
        context.environment = _STREAMING_ENVIRONMENT | environment
        try:
            yield
        finally:
            context.environment = environment


def arrow_type(type: DataType) -> pa.DataType:
    """Return the Arrow type that columns have in Python; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return to_arrow_type(type, timezone="UTC")
    return to_arrow_type(type)  # PySpark 4.1
