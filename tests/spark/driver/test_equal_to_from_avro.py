"""Types and values of decoded Avro equal those of Spark's own `from_avro`, for random schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro

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
    assert plain(column) == plain(reference.toArrow().column("v").combine_chunks())
