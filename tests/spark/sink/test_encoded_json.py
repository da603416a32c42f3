"""Columns written as JSON: Spark's `to_json` and Confluent's deserialiser judge what a query has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.spark.sink.conftest import sink_options, write
from tests.support.librdkafka import raw_values

ORDER: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "lines": {"type": "array", "items": {"type": "string"}},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "status": {"enum": ["NEW", "PAID"]},
    },
    "required": ["id", "note"],
    "additionalProperties": False,
}


def orders(spark: SparkSession) -> DataFrame:
    return spark.sql(
        "SELECT struct(id, array('a', concat('b', id)) AS lines, IF(id = 2, 'two', NULL) AS note, 'PAID' AS status) "
        "AS value FROM (SELECT explode(sequence(1L, 3L)) AS id)"
    )


def options(kafka: LocalKafka, topic: str, registry: FakeSchemaRegistry, **more: str) -> dict[str, str]:
    return sink_options(kafka, topic, "confluent-json", registry.url, **more)


EVERYTHING = (
    "SELECT struct(1L AS a, CAST(1.5 AS DECIMAL(9, 2)) AS b, map('x', 2, 'y', NULL) AS c, DATE'2026-01-31' AS d, "
    "TIMESTAMP'2026-01-31 06:00:00.123' AS e, TIMESTAMP_NTZ'2026-01-31 06:00:00' AS f, X'00FF' AS g, "
    "CAST(NULL AS STRING) AS h, true AS i, named_struct('j', CAST(0.5 AS FLOAT), 'k', CAST(NULL AS INT)) AS k, "
    "array(1Y, NULL) AS l, 'q\"\\\\\\n\u00e4' AS m, CAST('NaN' AS DOUBLE) AS n, "
    "1e300D AS o, CAST(array() AS ARRAY<INT>) AS p) AS value"
)


def test_values_are_those_of_to_json_and_are_read_as_they_were(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any
) -> None:
    topic = topic1()
    frame = spark.sql(EVERYTHING).union(spark.sql(EVERYTHING).selectExpr("NULL AS value"))
    options = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "valueFormat": "json"}
    write(frame, {**options, "topic": topic})
    written = raw_values(kafka1, topic, 2)
    reference = [row.value for row in frame.select(f.to_json("value").alias("value")).collect()]
    assert written[1] is reference[1] is None
    ours = json.loads(written[0])
    assert ours.pop("e") == "2026-01-31T06:00:00.123Z"
    assert json.loads(reference[0], parse_float=float).items() >= ours.items()
    schema = frame.schema["value"].dataType
    read = spark.read.format("pykafka-group").options(**options, subscribe=topic, valueSchema=schema.json())
    assert read.load().orderBy("offset").selectExpr("CAST(value AS STRING)").collect() == (
        frame.selectExpr("CAST(value AS STRING)").collect()
    )


def test_batch_is_written_with_the_latest_version_of_the_subject(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, registry: FakeSchemaRegistry
) -> None:
    topic = topic1()
    registry.register(f"{topic}-value", json.dumps(ORDER), "JSON")
    write(orders(spark), options(kafka1, topic, registry))
    client = SchemaRegistryClient({"url": registry.url})
    deserializer = JSONDeserializer(None, schema_registry_client=client)  # validates with the writer's schema
    context = SerializationContext(topic, MessageField.VALUE)
    assert [deserializer(value, context) for value in raw_values(kafka1, topic, 3)] == [
        {"id": number, "lines": ["a", f"b{number}"], "note": "two" if number == 2 else None, "status": "PAID"}
        for number in (1, 2, 3)
    ]


def test_stream_registers_the_schema_of_its_column_which_the_source_reads(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, registry: FakeSchemaRegistry, tmp_path: Path
) -> None:
    topic, source = topic1(), topic1()
    plain = {"kafka.bootstrap.servers": kafka1.bootstrap_servers}
    write(spark.range(3).selectExpr("CAST(id AS STRING) AS value"), {**plain, "topic": source})
    rows = spark.readStream.format("pykafka-group").options(**plain, subscribe=source, startingOffsets="earliest")
    frame = rows.load().selectExpr(
        "struct(offset, partition, timestamp, array(CAST(value AS STRING)) AS texts) AS value"
    )
    inputs = options(kafka1, topic, registry, schema_registry_auto_register_schemas="true")
    writer = frame.writeStream.format("pykafka-group").options(**inputs).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    read = options(kafka1, topic, registry, subscribe=topic)
    del read["topic"]
    again = spark.read.format("pykafka-group").options(**read).load().orderBy("offset").select("value.*")
    assert again.drop("timestamp").collect() == [(number, 0, [str(number)]) for number in range(3)]
    assert dict(again.dtypes) == {
        "offset": "bigint", "partition": "int", "timestamp": "timestamp", "texts": "array<string>",
    }  # fmt: skip
    sent = spark.read.format("pykafka-group").options(**plain, subscribe=source).load().orderBy("offset")
    assert again.select("timestamp").collect() == sent.select("timestamp").collect()
