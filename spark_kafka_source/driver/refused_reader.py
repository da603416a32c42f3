"""The streaming reader of a query with wrong options or a missing package: it raises the error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_kafka_source.spark_api import ReadLimit, SupportsTriggerAvailableNow


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raise `error` at Spark's first call.

    Notes
    -----
    After an error of `DataSource.streamReader` PySpark's runner calls `stop` of the reader that it does not have, and
    the query ends with that `UnboundLocalError`.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the error."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, Any]:
        """Raise the error."""
        self._refuse()

    def partitions(self, start: object, end: object) -> Sequence[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._error.with_traceback(None) from None
