"""Transactional producers of tests, and the records that a reader of committed records gets."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping

from protocol.cluster.client import Client
from protocol.config import parse_consumer, parse_producer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.group.member import ConsumerGroupMetadata
from protocol.kafka_terms import LATEST
from protocol.producer.transactional_producer import TransactionalProducer
from tests.protocol.producer.producing import send_numbered

GROUP = ConsumerGroupMetadata("etl")
PREFIX = "txn-"
MADE: weakref.WeakSet[TransactionalProducer] = weakref.WeakSet()


def new_id() -> str:
    return f"{PREFIX}{uuid.uuid4().hex[:10]}"


def producer_of(client: Client, transactional_id: str, **properties: object) -> TransactionalProducer:
    """Return a producer with small record batches; `properties` with `_` for `.`."""
    values = {name.replace("_", "."): value for name, value in properties.items()}
    config = parse_producer({"transactional.id": transactional_id, "batch.size": 4_096, **values})
    producer = TransactionalProducer(client, config)
    MADE.add(producer)
    return producer


def started(client: Client, transactional_id: str, **properties: object) -> TransactionalProducer:
    producer = producer_of(client, transactional_id, **properties)
    producer.init_transactions()
    return producer


def numbers_in(client: Client, topic: str, partitions: int, isolation_level: str = "read_committed") -> list[list[int]]:
    """Return the numbers at the start of the values, by partition."""
    config = parse_consumer({"isolation.level": isolation_level})
    keys: Mapping[tuple[str, int], int] = {(topic, number): LATEST for number in range(partitions)}
    ends = list_offsets(client, keys, isolation_level=config.isolation_level)
    ranges = [Range(topic, number, 0, ends[topic, number].offset) for number in range(partitions)]
    collected: list[list[int]] = [[] for _ in range(partitions)]
    for read, rows in BoundedReader(client, config, ranges):
        collected[read.partition] += [int(value[:9]) for value in rows["value"].to_pylist()]
    return collected


def visible(client: Client) -> list[int]:
    """Return the numbers in the three partitions of `orders`."""
    return sorted(number for numbers in numbers_in(client, "orders", 3) for number in numbers)


def send_and_flush(producer: TransactionalProducer, first: int, count: int) -> None:
    """Write numbers to the three partitions of `orders`."""
    send_numbered(producer, "orders", first, count, 3)
    producer.flush()


def begin_with(producer: TransactionalProducer, first: int, count: int) -> None:
    """Begin a transaction, and write numbers."""
    producer.begin_transaction()
    send_and_flush(producer, first, count)


def commit_numbers(producer: TransactionalProducer, first: int, count: int) -> None:
    """Send numbers in a transaction, and commit it."""
    producer.begin_transaction()
    send_numbered(producer, "orders", first, count, 3)
    producer.commit_transaction()
