"""The schema of the rows: Spark rejects an Arrow batch with any difference to the declared schema."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql.types import ArrayType, StructType

from protocol.errors import ConfigurationError
from spark_kafka_source.options.selection import COLUMNS, HEADERS
from spark_kafka_source.source import KafkaGroupDataSource
from spark_kafka_source.task.row_schema import arrow_schema, spark_schema

ALL = (*COLUMNS, HEADERS)


@pytest.mark.parametrize("columns", [COLUMNS, ALL, ("headers", "offset"), ("topic",)])
def test_arrow_schema_equals_sparks_conversion_of_declared_schema(columns: tuple[str, ...]) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    expected = to_arrow_schema(spark_schema(columns), timezone="UTC")
    result = arrow_schema(columns)
    assert result.equals(expected, check_metadata=True)
    # pyarrow's equality ignores the name of a list's element; the text does not.
    assert str(result) == str(expected)


def test_chosen_columns_keep_chosen_order() -> None:
    assert spark_schema(("offset", "value")).simpleString() == "struct<offset:bigint,value:binary>"


def test_columns_equal_those_of_sparks_connector_and_are_nullable() -> None:
    schema = spark_schema(ALL)
    assert schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    headers = schema["headers"].dataType
    assert isinstance(headers, ArrayType)
    assert all(field.nullable for field in schema)
    assert headers.containsNull
    assert all(field.nullable for field in cast(StructType, headers.elementType))


READ = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
RECORD = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def test_sql_table_without_topics_to_read_has_a_schema() -> None:
    """The table may be used for writes only. Spark adds the option `provider` for tables alone."""
    sink = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "columns": "value"}
    assert KafkaGroupDataSource({**sink, "provider": "pykafka-group"}).schema().simpleString() == "struct<value:binary>"
    with pytest.raises(ConfigurationError, match="There is no subscribe, subscribePattern or assign"):
        KafkaGroupDataSource(sink).schema()


@pytest.mark.parametrize("table", [{}, {"provider": "pykafka-group"}], ids=["load", "SQL table"])
def test_schema_has_the_decoded_type_of_values(table: dict[str, str]) -> None:
    source = KafkaGroupDataSource({**READ, **table, "columns": "value", "valueFormat": "avro", "valueSchema": RECORD})
    assert source.schema().simpleString() == "struct<value:struct<id:bigint>>"


def test_batch_takes_options_of_batches_and_stream_those_of_streams() -> None:
    schema = KafkaGroupDataSource(READ).schema()
    ends, latest = (KafkaGroupDataSource({**READ, name: "latest"}) for name in ("endingOffsets", "startingOffsets"))
    ends.reader(schema)
    with pytest.raises(ConfigurationError, match="endingOffsets is an option of batch reads"):
        ends.streamReader(schema).initialOffset()
    latest.streamReader(schema).initialOffset()
    with pytest.raises(ConfigurationError, match="a batch cannot start at the latest offset"):
        latest.reader(schema)


OWN = {"columns": "key,value"}
OTHERS = {
    "value string": StructType().add("value", "string"),
    "value binary, key binary": StructType().add("value", "binary").add("key", "binary"),
    "key binary not null, value binary": StructType().add("key", "binary", nullable=False).add("value", "binary"),
}


@pytest.mark.parametrize("given_schema", OTHERS)
def test_user_schema_is_refused_before_any_read(given_schema: str) -> None:
    source = KafkaGroupDataSource(OWN)
    # The stream reader raises the error at Spark's first call.
    for read in (source.reader, lambda schema: source.streamReader(schema).initialOffset()):
        with pytest.raises(ConfigurationError) as caught:
            read(OTHERS[given_schema])
        assert f".schema(...) sets ({given_schema})" in str(caught.value)
        assert "records are always (key binary, value binary): leave .schema(...) out" in str(caught.value)
