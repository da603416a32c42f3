"""Builders for consumer tests: rows of Fetch replies, record batches, and producers for a real Kafka."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from crc32c import crc32c

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.metadata import Partition
from protocol.config import parse_client, parse_consumer
from protocol.errors import DataLoss, TopicRecreated
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.consumer import Consumer
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import EARLIEST, LATEST
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.support.encoded import encode

TOPIC_ID = b"0123456789abcdef"
SESSION_ERRORS = [
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
]


def skip_loss(loss: DataLoss, skipped: Range) -> None:
    """Continue with the next existing records."""


def skip_recreated(loss: DataLoss, skipped: Range) -> None:
    """Skip the loss as `skip_loss` does, for a recreated topic."""
    if not isinstance(loss, TopicRecreated):
        raise loss


def records(first_offset: int, count: int, *, last_offset: int | None = None, epoch: int = 0, size: int = 10) -> bytes:
    """Return one record batch; with `last_offset` beyond its last record, as the log cleaner leaves it."""
    values = [b"%0*d" % (size, number) for number in range(first_offset, first_offset + count)]
    columns = {"value": pa.array(values, pa.binary()), "timestamp_ms": pa.array([0] * count, pa.int64())}
    batch = bytearray(encode(pa.RecordBatch.from_pydict(columns)))
    struct.pack_into(">q", batch, 0, first_offset)
    struct.pack_into(">i", batch, 12, epoch)
    if last_offset is not None:
        struct.pack_into(">i", batch, 23, last_offset - first_offset)
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def reply_row(partition: int = 0, data: bytes = b"", **fields: Any) -> dict[str, Any]:
    """Return a partition's row of a Fetch reply, decoded."""
    return {
        "partition_index": partition,
        "error_code": 0,
        "high_watermark": 1_000,
        "last_stable_offset": 1_000,
        "log_start_offset": 0,
        "diverging_epoch": {"epoch": -1, "end_offset": -1},
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": data,
        **fields,
    }


def reply(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a Fetch reply about one topic, decoded."""
    responses = [{"topic": "orders", "topic_id": TOPIC_ID, "partitions": list(rows)}] if rows else []
    return {
        "throttle_time_ms": 0,
        "error_code": 0,
        "session_id": 0,
        "responses": responses,
        "node_endpoints": [],
        **fields,
    }


def end_of_epoch(body: dict[str, Any], ends: dict[int, int]) -> dict[str, Any]:
    """Return the reply for a log of orders-0 with the epochs of `ends`."""
    requested = body["topics"][0]["partitions"][0]["leader_epoch"]
    row = {"partition": 0, "error_code": 0, "end_offset": ends.get(requested, -1), "leader_epoch": requested}
    return {"topics": [{"topic": "orders", "partitions": [row]}]}


def client_of(kafka: LocalKafka | str, **properties: object) -> Client:
    servers = kafka if isinstance(kafka, str) else kafka.bootstrap_servers
    values = {name.replace("_", "."): value for name, value in properties.items()}
    return Client(parse_client({"bootstrap.servers": servers, **values}))


def partition_now(client: Client, topic: str) -> Partition:
    """Ask for partition 0 with another client: the consumer under test must notice changes on its own."""
    with Client(client.config) as second:
        return second.topic(topic).partitions[0]


def consumer_of(client: Client, properties: Mapping[str, object] | None = None, **options: Any) -> Consumer:
    return Consumer(client, parse_consumer(properties or {}), **options)


def ranges_of(client: Client, topic: str, partitions: int) -> list[Range]:
    """Return ranges of all records in the topic."""
    keys = [(topic, number) for number in range(partitions)]
    starts = list_offsets(client, dict.fromkeys(keys, EARLIEST))
    ends = list_offsets(client, dict.fromkeys(keys, LATEST))
    return [Range(*key, starts[key].offset, ends[key].offset) for key in keys]


def reader(client: Client, ranges: Sequence[Range], properties: dict[str, object] | None = None, **options: Any) -> Any:
    return BoundedReader(client, parse_consumer(properties or {}), ranges, **options)


def rows_of(consumer: BoundedReader) -> dict[Range, list[tuple[int, bytes]]]:
    """Return the offset and value of each row, by range."""
    rows: dict[Range, list[tuple[int, bytes]]] = {}
    for source_range, batch in consumer:
        columns = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        rows.setdefault(source_range, []).extend(zip(*columns, strict=True))
    return rows


def produce(
    kafka: LocalKafka,
    topic: str,
    numbers: range,
    partitions: int = 1,
    *,
    size: int = 10,
    settings: Mapping[str, object] | None = None,
) -> None:
    """Produce values that start with their number, each to partition (number modulo partitions); await
    acknowledgements."""
    limits = {"queue.buffering.max.messages": 1_000_000, "message.max.bytes": 20 << 20, "linger.ms": 5}
    where = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    producer = Producer({**where, **limits, **(settings or {})})
    # A producer that learns of a topic during its flush splits the records into more batches.
    producer.list_topics(topic, timeout=30)
    for number in numbers:
        value = b"%09d" % number
        producer.produce(topic, value.ljust(size, b"."), partition=number % partitions)
    assert producer.flush(60) == 0


def consumer_threads() -> set[threading.Thread]:
    """Return the running threads of consumers in this process, also those that earlier tests have left."""
    return {thread for thread in threading.enumerate() if "consumer-" in thread.name}


def move_leader(kafka: LocalKafka, topic: str, partition: int, broker: int, folder: Path) -> None:
    """Reassign the partition of an unreplicated topic to another broker, with Kafka's own tool."""
    plan = folder / "plan.json"
    moved = [{"topic": topic, "partition": partition, "replicas": [broker]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moved}))
    old = version_numbers(kafka.version) < (3, 6)
    tool = ("kafka.admin" if old else "org.apache.kafka.tools.reassign") + ".ReassignPartitionsCommand"
    where = ("--bootstrap-server", kafka.bootstrap_servers)
    kafka.run_tool(tool, *where, "--reassignment-json-file", str(plan), "--execute")


def read_all(consumer: Consumer, rows: int, timeout_ms: float = 20_000) -> dict[int, list[tuple[int, bytes | None]]]:
    """Read until all streams together have returned `rows` rows; return (offset, value) by partition."""
    values_by_key: dict[int, list[tuple[int, bytes | None]]] = {}
    remaining = rows
    while remaining > 0:
        read = consumer.poll(timeout_ms)
        assert read is not None, f"{remaining} of {rows} rows are missing"
        stream, batch = read
        columns = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        values_by_key.setdefault(stream.partition, []).extend(zip(*columns, strict=True))
        remaining -= batch.num_rows
    assert remaining == 0
    return values_by_key


def offsets_of(batch: pa.RecordBatch | None) -> list[int]:
    assert batch is not None
    offsets: list[int] = batch.column("offset").to_pylist()
    return offsets
