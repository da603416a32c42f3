"""Decoding Protobuf of ten fields (about 110 bytes): this source, and a pandas UDF around the protobuf package.

Each reads a whole topic into `noop`, in turn in one session. `binary` is this source without decoding, the floor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import protocol
from benchmarks.job import Figure, Job, section_main
from benchmarks.spark_session import open_session, read_in_turn
from benchmarks.topics import create_topic
from protocol.testing.schema_registry import FakeSchemaRegistry

RECORDS = 1_000_000
_DIFFERENT = 50_000
# A zero byte, the id of the schema, and a zero byte for its first message.
_PREFIX_BYTES = 6
_TOPIC = "bench-protobuf"
SCHEMA = """
syntax = "proto3"; package bench; import "google/protobuf/timestamp.proto";
enum Status { NEW = 0; PAID = 1; SHIPPED = 2; }
message Order {
  int64 id = 1; string country = 2; optional string customer = 3; double amount = 4; int32 quantity = 5;
  google.protobuf.Timestamp at = 6; Status status = 7; optional string note = 8; bool paid = 9; string sku = 10;
}
"""
_FIELDS = {
    "id": "int64", "country": "string", "customer": "string", "amount": "double", "quantity": "int32",
    "at": ".google.protobuf.Timestamp", "status": ".bench.Status", "note": "string", "paid": "bool", "sku": "string",
}  # fmt: skip


def measure(job: Job, _: Sequence[str]) -> list[Figure]:
    with FakeSchemaRegistry() as registry:
        _fill(job.bootstrap_servers, registry.register(f"{_TOPIC}-value", SCHEMA, "PROTOBUF"))
        spark = open_session(job)
        figures = read_in_turn(job, "Protobuf", _contestants(spark, job, registry.url), RECORDS)
        spark.stop()
    return figures


def _contestants(spark: SparkSession, job: Job, url: str) -> dict[str, Callable[[], DataFrame]]:
    def load(**options: str) -> DataFrame:
        where = {"kafka.bootstrap.servers": job.bootstrap_servers, "subscribe": _TOPIC, "startingOffsets": "earliest"}
        return spark.read.format("pykafka-group").options(**where, **options).load()

    registered = {"valueFormat": "confluent-protobuf", "schema.registry.url": url}
    return {
        "binary": load,
        "valueFormat=confluent-protobuf": lambda: load(**registered),
        "valueFields of 2 fields": lambda: load(**registered, valueFields="id,country"),
        "pandas UDF with protobuf": lambda: load().withColumn("value", _udf()("value")),
    }


def order_class() -> Any:
    """Return the protobuf package's class of an order."""
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(("NEW", "PAID", "SHIPPED")):
        status.value.add(name=name, number=number)
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(_FIELDS.items(), 1):
        field = message.field.add(name=name, number=number, label=1)
        if kind.startswith("."):
            field.type, field.type_name = (14 if kind.endswith("Status") else 11), kind
        else:
            field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
        if name in ("customer", "note"):
            message.oneof_decl.add(name=f"_{name}")
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl) - 1
    pool = descriptor_pool.DescriptorPool()
    imported = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    pool.Add(imported)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Order"))


def row(message: Any) -> tuple[Any, ...]:
    """Return the fields of an order, as this source does."""
    customer = message.customer if message.HasField("customer") else None
    note = message.note if message.HasField("note") else None
    at = message.at.ToMicroseconds()
    status = ("NEW", "PAID", "SHIPPED")[message.status]
    return (message.id, message.country, customer, message.amount, message.quantity, at, status, note, message.paid,
            message.sku)  # fmt: skip


def _udf() -> Any:
    kind = "id long, country string, customer string, amount double, quantity int, at timestamp, status string, "

    @f.pandas_udf(kind + "note string, paid boolean, sku string")  # type: ignore[call-overload,untyped-decorator]
    def decoded(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        order = order_class()
        for batch in batches:
            rows = [row(order.FromString(value[_PREFIX_BYTES:])) for value in batch]
            frame = pd.DataFrame(rows, columns=list(_FIELDS))
            frame["at"] = pd.to_datetime(frame["at"], unit="us")
            yield frame

    return decoded


def _fill(bootstrap_servers: str, schema_id: int) -> None:
    draw = random.Random(7)
    order = order_class()
    prefix = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
    values = [prefix + _order(order, draw, number) for number in range(_DIFFERENT)]
    create_topic(bootstrap_servers, _TOPIC, 6)
    table = pa.table({"value": pa.array(values, pa.binary())})
    for _ in range(RECORDS // _DIFFERENT):
        protocol.write({"bootstrap.servers": bootstrap_servers, "compression.type": "lz4"}, _TOPIC, table)


def _order(order: Any, draw: random.Random, number: int) -> bytes:
    made = order(
        id=number * 7919,
        country=draw.choice(["DE", "FR", "US"]),
        customer=None if draw.random() < 0.2 else f"customer-{draw.randrange(10**6):06}",
        amount=draw.random() * 100,
        quantity=draw.randrange(1, 300),
        status=draw.randrange(3),
        note=None if draw.random() < 0.5 else "x" * draw.randrange(40, 90),
        paid=draw.random() < 0.5,
        sku=f"SKU-{number:020}",
    )
    made.at.FromMilliseconds(1_760_000_000_000 + number)
    encoded: bytes = made.SerializeToString()
    return encoded


if __name__ == "__main__":
    section_main(measure)
