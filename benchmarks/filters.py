"""Rows that are not needed: `filter` of this source, the same `where` behind it, and behind Spark's JVM connector.

Topics of JSON and of Avro, about 110 bytes a value. A header, a key prefix, a field and, with two types in a topic,
the type say which hundredth of the records a record belongs to, so that conditions keep 100 %, 10 % or 1 %.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

import protocol
from benchmarks.job import Figure, Job, section_main
from benchmarks.spark_session import open_session, read_in_turn
from benchmarks.topics import create_topic
from protocol.testing.schema_registry import FakeSchemaRegistry

RECORDS = 2_000_000
_DIFFERENT = 50_000
_PREFIX_BYTES = 5
_JSON, _AVRO, _TYPES = "bench-filter-json", "bench-filter-avro", "bench-filter-types"
_KEPT = {"100 %": "IS NOT NULL", "10 %": "LIKE '0%'", "1 %": "= '07'"}
_COLUMNS = "id BIGINT, share STRING, note STRING"
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_LAST_SHARE = "cast(element_at(filter(headers, h -> h.key = 'share'), -1).value AS string)"


def _schema(name: str) -> dict[str, object]:
    fields = [{"name": "id", "type": "long"}, {"name": "share", "type": "string"}, {"name": "note", "type": "string"}]
    return {"type": "record", "name": name, "fields": fields}


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    with FakeSchemaRegistry() as registry:
        ids = {name: registry.register(name, json.dumps(_schema(name))) for name in ("Order", "Refund")}
        _fill(job.bootstrap_servers, ids)
        spark = open_session(job)
        figures: list[Figure] = []
        for subject, contestants in _subjects(spark, job, registry.url, ids).items():
            figures += read_in_turn(job, subject, contestants, RECORDS)
        spark.stop()
    return figures


Contestants = dict[str, Callable[[], DataFrame]]


def _subjects(spark: SparkSession, job: Job, url: str, ids: dict[str, int]) -> dict[str, Contestants]:
    def load(format: str, topic: str, **options: str) -> DataFrame:
        where = {"kafka.bootstrap.servers": job.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        return spark.read.format(format).options(**where, **options).load()

    def compared(topic: str, filter: str, where: str, jvm: Callable[[], DataFrame], **options: str) -> Contestants:
        return {
            "filter": lambda: load("pykafka-group", topic, **options, filter=filter),
            "where (this source)": lambda: load("pykafka-group", topic, **options).where(where),
            "where (JVM connector)": jvm,
        }

    subjects: dict[str, Contestants] = {}
    for share, kept in _KEPT.items():
        where = f"{_LAST_SHARE} {kept}"
        subjects[f"header, {share}"] = compared(
            _JSON,
            f"cast(headers['share'] AS string) {kept}",
            where,
            lambda where=where: load("kafka", _JSON, includeHeaders="true").where(where),  # type: ignore[misc]
            includeHeaders="true",
        )
    key = "startswith(cast(key AS string), '07')"
    subjects["key, 1 %"] = compared(_JSON, key, key, lambda: load("kafka", _JSON).where(key))
    parsed = f.from_json(f.col("value").cast("string"), _COLUMNS)
    avro = from_avro(f.expr(f"substring(value, {_PREFIX_BYTES + 1})"), json.dumps(_schema("Order")))
    registered = {"valueFormat": "confluent-avro", "schema.registry.url": url, "valueSubject": "Order"}
    for share in ("100 %", "1 %"):
        where = f"value.share {_KEPT[share]}"
        subjects[f"JSON field, {share}"] = compared(
            _JSON,
            where,
            where,
            lambda where=where: load("kafka", _JSON).withColumn("value", parsed).where(where),  # type: ignore[misc]
            valueFormat="json",
            valueSchema=_COLUMNS,
        )
    where = f"value.share {_KEPT['1 %']}"
    subjects["Avro field, 1 %"] = compared(
        _AVRO, where, where, lambda: load("kafka", _AVRO).withColumn("value", avro).where(where), **registered
    )
    refund = from_avro(f.expr(f"substring(value, {_PREFIX_BYTES + 1})"), json.dumps(_schema("Refund")))
    of_id = f"substring(value, 2, 4) = X'{ids['Refund']:08X}'"
    types = registered | {"valueSubject": "Order,Refund", "columns": "value,valueType"}
    is_refund = "valueType = 'Refund'"
    subjects["valueType, 1 %"] = compared(
        _TYPES, is_refund, is_refund, lambda: load("kafka", _TYPES).where(of_id).withColumn("value", refund), **types
    )
    return subjects


def _fill(bootstrap_servers: str, ids: dict[str, int]) -> None:
    shares = [b"%02d" % (number % 100) for number in range(_DIFFERENT)]
    rows = [
        {"id": number * 7919, "share": share.decode(), "note": f"{number * 104729:060}"}
        for number, share in enumerate(shares)
    ]
    columns = {
        "key": pa.array([b"%s-%07d" % (share, number) for number, share in enumerate(shares)], pa.binary()),
        "headers": pa.array([[{"key": "share", "value": share}] for share in shares], _HEADERS),
    }
    values = {
        _JSON: [json.dumps(row).encode() for row in rows],
        _AVRO: [_avro(row, ids["Order"]) for row in rows],
        _TYPES: [_avro(row, ids["Refund" if row["share"] == "07" else "Order"]) for row in rows],
    }
    for topic, encoded in values.items():
        create_topic(bootstrap_servers, topic, 6)
        table = pa.table({**columns, "value": pa.array(encoded, pa.binary())})
        for _ in range(RECORDS // _DIFFERENT):
            protocol.write({"bootstrap.servers": bootstrap_servers, "compression.type": "lz4"}, topic, table)


def _avro(row: dict[str, object], schema_id: int) -> bytes:
    out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(_PREFIX_BYTES)
    fastavro.schemaless_writer(out, fastavro.parse_schema(_schema("Order")), row)
    return out.getvalue()


if __name__ == "__main__":
    section_main(measure)
