"""The columns of a row: Spark refuses a batch whose Arrow schema differs from its own by anything."""

from __future__ import annotations

import pytest

from spark_kafka_source.row_schema import arrow_schema, spark_schema


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_arrow_schema_is_exactly_the_one_spark_makes_of_the_declared_one(include_headers: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(spark_schema(include_headers), timezone="UTC")
    found = arrow_schema(include_headers)
    assert found.equals(wanted, check_metadata=True)
    # pyarrow calls two lists equal whatever their element is called; their text does not.
    assert str(found) == str(wanted)


def test_the_columns_are_those_of_spark_s_own_connector() -> None:
    assert spark_schema(True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert spark_schema(False).fieldNames() == spark_schema(True).fieldNames()[:-1]


def test_every_column_may_be_null() -> None:
    schema = spark_schema(True)
    headers = schema["headers"].dataType
    assert all(field.nullable for field in schema)
    assert headers.containsNull
    assert all(field.nullable for field in headers.elementType)
