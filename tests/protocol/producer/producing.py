"""Builders for tests that write to a real Kafka: producers, numbered rows, and a check for completeness."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from protocol.base.clock import SYSTEM_CLOCK, Clock
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_producer
from protocol.producer.producer import Producer
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.read_back import read_back

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def producer_of(
    bootstrap_servers: str, properties: Mapping[str, object] | None = None, clock: Clock = SYSTEM_CLOCK, **options: Any
) -> Producer:
    """Return a producer with small record batches by default, so that a few thousand rows are many requests."""
    remembered = {"bootstrap.servers": bootstrap_servers, "batch.size": 4_096, **(properties or {})}
    return Producer(Client(parse_client(remembered), clock), parse_producer(remembered), **options)


def numbered(first: int, count: int, size: int = 100) -> pa.RecordBatch:
    """Return rows whose value starts with their number."""
    values = [b"%09d" % number + b"." * (size - 9) for number in range(first, first + count)]
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def send_numbered(producer: Producer, topic: str, first: int, count: int, partitions: int) -> None:
    """Send the rows first..first+count-1, each to partition (number modulo partitions)."""
    chosen = (np.arange(first, first + count) % partitions).astype(np.int32)
    producer.send_columns(topic, numbered(first, count), chosen)


def assert_all_once_in_order(kafka: LocalKafka, topic: str, count: int, partitions: int) -> None:
    """Assert that every number below `count` is in its partition, once, and in order."""
    values_by_key: dict[int, list[int]] = {number: [] for number in range(partitions)}
    # A million of them take minutes on a busy machine.
    records, deadline_s = read_back(kafka, topic, 60 + count / 2_000), time.monotonic() + 20
    while len(records) < count and time.monotonic() < deadline_s:
        # A broker that was paused may briefly assume that it still leads, and report its old log end.
        records = read_back(kafka, topic)
    for record in records:
        assert record.value is not None
        values_by_key[record.partition].append(int(record.value[:9]))
    for partition, numbers in values_by_key.items():
        expected = list(range(partition, count, partitions))
        assert sorted(numbers) == expected, (
            f"partition {partition}: {len(set(expected) - set(numbers))} missing, "
            f"{len(numbers) - len(set(numbers))} more than once"
        )
        assert numbers == expected, f"partition {partition} is out of order"
