"""Values of AWS Glue's registry as columns: AWS's own serialisers wrote them, and workers ask no AWS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_kafka_source import from_registry, to_registry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.glue_endpoint import GlueEndpoint
from tests.support.librdkafka import produce
from tests.support.spark_frames import batch, stream, streamed

SAMPLES = Path(__file__).parents[2] / "protocol" / "schemas" / "glue_frames.json"
FRAMES: list[dict[str, Any]] = json.loads(SAMPLES.read_text())


@pytest.mark.parametrize("format", ["glue-avro", "glue-json", "glue-protobuf"])
def test_stream_reads_values_by_the_schemas_that_its_options_have(
    format: str, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    samples = [sample for sample in FRAMES if sample["format"] == format]
    path = tmp_path / "schemas.json"
    path.write_text(json.dumps({sample["version_id"]: sample["schema"] for sample in samples}))
    topic = topic1()
    produce(kafka1, topic, *(bytes.fromhex(sample["frame"]) for sample in samples), b"no frame")
    options = {"valueFormat": format, "schema.registry.glue.schemas": f"file:{path}", "onDecodeError": "null"}
    options |= (
        {"valueSchema": samples[0]["schema"], "valueMessageName": "Order"}
        if "message" in samples[0]
        else {"valueSchema": samples[0]["schema"]}
    )
    rows = streamed(stream(spark, kafka1, subscribe=topic, **options).select("value.id"), tmp_path / "stream")
    # Of Protobuf, other messages than Order are null, as is the last value.
    orders = sum(sample.get("message", "Order") == "Order" for sample in samples)
    assert [row.id for row in rows if row.id is not None] == [7] * orders
    assert len(rows) == len(samples) + 1


def test_column_that_to_registry_encodes_is_decoded_by_from_registry(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    text = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    topic = topic1()
    with GlueEndpoint() as endpoint:
        version = endpoint.add(topic, text)
        glue = {"schema.registry.glue.region": "eu-central-1", "schema.registry.glue.endpoint": endpoint.url}
        frame = spark.range(3).selectExpr("struct(id) AS value")
        options = {"valueFormat": "glue-avro", "topic": topic, **glue}
        encoded = frame.select(to_registry("value", options, type=frame.schema["value"].dataType).alias("value"))
        encoded.write.format("pykafka-group").options(
            **{"kafka.bootstrap.servers": kafka1.bootstrap_servers, "topic": topic}
        ).mode("append").save()
    schemas = {"schema.registry.glue.schemas": json.dumps({version.version_id: json.loads(text)})}
    decode = {"valueFormat": "glue-avro", "valueSchema": text, **schemas}
    rows = batch(spark, kafka1, subscribe=topic).select(from_registry("value", decode).alias("r"))
    assert sorted(row.r.id for row in rows.collect()) == [0, 1, 2]
