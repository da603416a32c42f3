"""Types and values of decoded Avro equal those of Spark's own `from_avro`, for random schemas."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, TimestampType

from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.values import ColumnDecoder
from spark_kafka_source.task.row_schema import spark_type
from tests.protocol.schemas.avro_samples import Samples, encoded, plain
from tests.support.soak import scaled

pytestmark = pytest.mark.soak

SCHEMAS = scaled("AVRO_SCHEMAS", 6, 200)


def without_metadata(document: Any) -> Any:
    """Return a type's JSON without the notes that `from_avro` makes about its own types."""
    if isinstance(document, dict):
        return {name: without_metadata(inner) for name, inner in document.items() if name != "metadata"}
    return [without_metadata(inner) for inner in document] if isinstance(document, list) else document


def as_arrow(value: Any, kind: DataType) -> Any:
    """Return a collected value as Arrow's `to_pylist` does, but for the order of maps.

    Spark's `toArrow` of nullable structs, and of lists of null, makes columns that pyarrow 26 refuses as invalid.
    """
    match kind:
        case StructType() if value is not None:
            return {field.name: as_arrow(value[field.name], field.dataType) for field in kind}
        case ArrayType() if value is not None:
            return [as_arrow(element, kind.elementType) for element in value]
        case MapType() if value is not None:
            return [(key, as_arrow(element, kind.valueType)) for key, element in value.items()]
        case TimestampType() if value is not None:
            return value.astimezone(datetime.timezone.utc)
        case BinaryType() if value is not None:
            return bytes(value)
    return value


def with_sorted_maps(value: Any) -> Any:
    """Return Arrow's value with the pairs of maps in the order of their keys."""
    if isinstance(value, dict):
        return {name: with_sorted_maps(inner) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], tuple):
        return sorted(((key, with_sorted_maps(inner)) for key, inner in value), key=lambda pair: pair[0])
    return [with_sorted_maps(element) for element in value]


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_random_values_equal_those_of_from_avro(spark: SparkSession, seed: int) -> None:
    samples = Samples(10_000 + seed)
    # One record of many fields costs Spark no more than one of few.
    fields = [{"name": f"f{number}", "type": samples.type(depth=2)} for number in range(25)]
    schema = {"type": "record", "name": "R", "fields": fields}
    raw = encoded(schema, [samples.value(schema) for _ in range(8)])
    text = json.dumps(schema)
    frame = spark.createDataFrame([(number, word) for number, word in enumerate(raw)], "n int, raw binary").coalesce(1)
    reference = frame.select("n", from_avro("raw", text).alias("v")).orderBy("n").select("v")
    decoder = ColumnDecoder(ReaderSchema("avro", text))
    column, invalid = decoder.decode(frame.orderBy("n").toArrow().column("raw").combine_chunks())
    assert invalid == []
    their_type = json.loads(reference.schema["v"].dataType.json())
    assert without_metadata(spark_type(decoder.type)) == without_metadata(their_type)
    theirs = [as_arrow(row.v, reference.schema["v"].dataType) for row in reference.collect()]
    assert with_sorted_maps(plain(column)) == with_sorted_maps(theirs)
