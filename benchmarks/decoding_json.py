"""Decoding JSON of ten fields (about 250 bytes), without and with a map: this source, and Spark's `from_json`.

Each reads a whole topic into `noop`, in turn in one session. `binary` is this source without decoding, the floor.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import protocol
from benchmarks.job import BINARY, Figure, Job, section_main
from benchmarks.spark_session import open_session, read_in_turn
from benchmarks.topics import create_topic

_RECORDS = 600_000
_DIFFERENT = 30_000
_PLAIN, _MAPS = "bench-json", "bench-json-maps"
_SCHEMA = (
    "id BIGINT, country STRING, customer STRING, amount DOUBLE, quantity INT, at TIMESTAMP, status STRING, "
    "note STRING, paid BOOLEAN, sku STRING"
)


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    schemas = {_PLAIN: _SCHEMA, _MAPS: f"{_SCHEMA}, attributes MAP<STRING, STRING>"}
    for topic in schemas:
        _fill(job.bootstrap_servers, topic)
    spark = open_session(job)
    figures: list[Figure] = []
    for topic, schema in schemas.items():
        subject = "JSON with a map" if topic == _MAPS else "JSON"
        figures += read_in_turn(job, subject, _contestants(spark, job, topic, schema), _RECORDS)
    spark.stop()
    return figures


def _contestants(spark: SparkSession, job: Job, topic: str, schema: str) -> dict[str, Callable[[], DataFrame]]:
    def load(format: str, **options: str) -> DataFrame:
        where = {"kafka.bootstrap.servers": job.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        return spark.read.format(format).options(**where, **options).load()

    decoded = f.from_json(f.col("value").cast("string"), schema)
    return {
        BINARY: lambda: load("pykafka-group"),
        "valueFormat=json": lambda: load("pykafka-group", valueFormat="json", valueSchema=schema),
        "from_json (JVM connector)": lambda: load("kafka").withColumn("value", decoded),
        "from_json (this source)": lambda: load("pykafka-group").withColumn("value", decoded),
    }


def _fill(bootstrap_servers: str, topic: str) -> None:
    draw = random.Random(7)
    values = [json.dumps(_order(draw, number, topic == _MAPS)).encode() for number in range(_DIFFERENT)]
    create_topic(bootstrap_servers, topic, 6)
    table = pa.table({"value": pa.array(values, pa.binary())})
    for _ in range(_RECORDS // _DIFFERENT):
        protocol.write({"bootstrap.servers": bootstrap_servers, "compression.type": "lz4"}, topic, table)


def _order(draw: random.Random, number: int, with_map: bool) -> dict[str, Any]:
    order: dict[str, Any] = {
        "id": number * 7919,
        "country": draw.choice(["DE", "FR", "US"]),
        "customer": None if draw.random() < 0.2 else f"customer-{draw.randrange(10**6):06}",
        "amount": draw.random() * 100,
        "quantity": draw.randrange(1, 300),
        "at": f"2026-01-31T12:00:{number % 60:02}.{number % 1000:03}Z",
        "status": draw.choice(["NEW", "PAID", "SHIPPED"]),
        "note": None if draw.random() < 0.5 else "x" * draw.randrange(40, 90),
        "paid": draw.random() < 0.5,
        "sku": f"SKU-{number:020}",
    }
    if with_map:
        order["attributes"] = {draw.choice("abcdef"): f"v{number}" for _ in range(3)}
    return order


if __name__ == "__main__":
    section_main(measure)
