"""Decoding Avro of ten fields (about 100 bytes): this source, `from_registry`, Spark's `from_avro`, a pandas UDF.

Each reads a whole topic into `noop`, in turn in one session. `binary` is this source without decoding, the floor. The
pandas UDF decodes with fastavro.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fastavro
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

import protocol
from benchmarks.job import Figure, Job, section_main
from benchmarks.spark_session import open_session, read_in_turn
from benchmarks.topics import create_topic
from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source import from_registry

RECORDS = 1_000_000
_DIFFERENT = 50_000
_PREFIX_BYTES = 5
TOPIC = "bench-avro"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": "string"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "amount", "type": "double"},
        {"name": "quantity", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID", "SHIPPED"]}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "paid", "type": "boolean"},
        {"name": "sku", "type": "string"},
    ],
}


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    with FakeSchemaRegistry() as registry:
        fill(job.bootstrap_servers, registry.register(f"{TOPIC}-value", json.dumps(SCHEMA)))
        spark = open_session(job)
        figures = read_in_turn(job, "Avro", _contestants(spark, job, registry.url), RECORDS)
        spark.stop()
    return figures


def _contestants(spark: SparkSession, job: Job, url: str) -> dict[str, Callable[[], DataFrame]]:
    def load(format: str, **options: str) -> DataFrame:
        where = {"kafka.bootstrap.servers": job.bootstrap_servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
        return spark.read.format(format).options(**where, **options).load()

    text = json.dumps(SCHEMA)
    registered = {"valueFormat": "confluent-avro", "schema.registry.url": url}
    raw = f.expr(f"substring(value, {_PREFIX_BYTES + 1})")

    def converted(frame: DataFrame) -> DataFrame:
        return frame.withColumn("value", from_registry("value", {**registered, "valueSubject": f"{TOPIC}-value"}))

    return {
        "binary": lambda: load("pykafka-group"),
        "valueFormat=confluent-avro": lambda: load("pykafka-group", **registered),
        "valueFields of 2 fields": lambda: load("pykafka-group", **registered, valueFields="id,country"),
        "from_avro (JVM connector)": lambda: load("kafka").withColumn("value", from_avro(raw, text)),
        "from_avro (this source)": lambda: load("pykafka-group").withColumn("value", from_avro(raw, text)),
        "from_registry (JVM connector)": lambda: converted(load("kafka")),
        "from_registry (this source)": lambda: converted(load("pykafka-group")),
        "pandas UDF with fastavro": lambda: load("pykafka-group").withColumn("value", _udf(spark)("value")),
    }


def _udf(spark: SparkSession) -> Any:
    kind = "id long, country string, customer string, amount double, quantity int, at timestamp, status string, "

    @f.pandas_udf(kind + "note string, paid boolean, sku string")  # type: ignore[call-overload,untyped-decorator]
    def decoded(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        parsed = fastavro.parse_schema(SCHEMA)
        for batch in batches:
            rows = [fastavro.schemaless_reader(io.BytesIO(value[_PREFIX_BYTES:]), parsed, None) for value in batch]
            yield pd.DataFrame(rows)

    return decoded


def fill(bootstrap_servers: str, schema_id: int) -> None:
    draw = random.Random(7)
    parsed = fastavro.parse_schema(json.loads(json.dumps(SCHEMA)))
    values: list[bytes] = []
    for number in range(_DIFFERENT):
        out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
        out.seek(_PREFIX_BYTES)
        fastavro.schemaless_writer(out, parsed, _order(draw, number))
        values.append(out.getvalue())
    create_topic(bootstrap_servers, TOPIC, 6)
    table = pa.table({"value": pa.array(values, pa.binary())})
    for _ in range(RECORDS // _DIFFERENT):
        protocol.write({"bootstrap.servers": bootstrap_servers, "compression.type": "lz4"}, TOPIC, table)


def _order(draw: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": number * 7919,
        "country": draw.choice(["DE", "FR", "US"]),
        "customer": None if draw.random() < 0.2 else f"customer-{draw.randrange(10**6):06}",
        "amount": draw.random() * 100,
        "quantity": draw.randrange(1, 300),
        "at": 1_760_000_000_000 + number,
        "status": draw.choice(["NEW", "PAID", "SHIPPED"]),
        "note": None if draw.random() < 0.5 else "x" * draw.randrange(40, 90),
        "paid": draw.random() < 0.5,
        "sku": f"SKU-{number:020}",
    }


if __name__ == "__main__":
    section_main(measure)
