"""`register` works whether Spark has discovered the format or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from spark_kafka_source.source import KafkaGroupDataSource, register


def session(condition: str | None, registered: list[type]) -> Any:
    def put(source: type) -> None:
        if condition is not None:
            parameters = {"dataSourceName": "pykafka-group"}
            raise AnalysisException(errorClass=condition, messageParameters=parameters, message=condition)
        registered.append(source)

    return SimpleNamespace(dataSource=SimpleNamespace(register=put), getActiveSession=lambda: "this one")


def test_format_is_registered() -> None:
    registered: list[type] = []
    register(session(None, registered))
    assert registered == [KafkaGroupDataSource]


def test_format_that_spark_has_found_is_left_as_it_is() -> None:
    """PySpark 4.0 raises this error."""
    register(session("DATA_SOURCE_ALREADY_EXISTS", []))


def test_other_refusals_are_raised() -> None:
    with pytest.raises(AnalysisException):
        register(session("DATA_SOURCE_NOT_FOUND", []))
