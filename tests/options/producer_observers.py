"""Observable effects of each producer property: a part of the table of `test_properties_apply`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_producer
from protocol.errors import KafkaError
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from tests.options.observe import BETWEEN_S, DIFFER, LONG, SHORT, Observe, Properties, client_of, outcome, took_long
from tests.support.internals import assembler_of
from tests.support.small_cluster import SmallCluster
from tests.support.wait_until import TIMEOUT_S, comes_true, wait_until


def rows(count: int = 1, size: int = 10, key: bool = False) -> pa.RecordBatch:
    columns = {"value": pa.array([b"%0*d" % (size, number) for number in range(count)])}
    if key:
        columns["key"] = pa.array([b"k%d" % number for number in range(count)])
    return pa.record_batch(columns)


def produce(cluster: SmallCluster, options: Properties, written: pa.RecordBatch) -> str:
    """Write rows, without keys to partition 0. Return the outcome."""
    producer = Producer(client_of(cluster, options), parse_producer(options))
    local = None if "key" in written.schema.names else np.zeros(written.num_rows, np.int32)

    def write() -> None:
        producer.send_columns("orders", written, local)
        producer.flush()

    try:
        return outcome(write)
    finally:
        producer.abort()


def produce_requests(look: Callable[[dict[str, Any]], object], written: pa.RecordBatch) -> Observe:
    def observe(cluster: SmallCluster, options: dict[str, str]) -> object:
        assert produce(cluster, options, written) == "done"
        comes_true(lambda: cluster.request_bodies(PRODUCE), TIMEOUT_S)  # acks=0 gets no reply
        return [look(body) for body in cluster.request_bodies(PRODUCE)]

    return observe


def record_batches(body: dict[str, Any]) -> bytes:
    return b"".join(bytes(row["records"]) for topic in body["topic_data"] for row in topic["partition_data"])


def codec(body: dict[str, Any]) -> int:
    return int(struct.unpack_from(">h", record_batches(body), 21)[0]) & 7


def values_by_partition(body: dict[str, Any]) -> object:
    return {
        row["index"]: bytes(row["records"])[57:61] for topic in body["topic_data"] for row in topic["partition_data"]
    }


def size_at_level(name: str) -> Observe:
    text = pa.array([b"".join(b"%d " % (number * number) for number in range(3_000))], pa.binary())
    observe = produce_requests(lambda body: len(record_batches(body)), pa.RecordBatch.from_pydict({"value": text}))
    return lambda cluster, arguments: observe(cluster, {**arguments, "compression.type": name})


def requests_of_many_rows(cluster: SmallCluster, options: dict[str, str]) -> bool:
    assert produce(cluster, options, rows(100, size=100)) == "done"
    return len(cluster.request_bodies(PRODUCE)) > 1


def sends_without_flush(cluster: SmallCluster, options: dict[str, str]) -> bool:
    """Return whether rows are soon written without a flush."""
    producer = Producer(client_of(cluster, {}), parse_producer(options))
    sent = producer.send_columns("orders", rows(), np.zeros(1, np.int32))
    written = outcome(lambda: sent.result(BETWEEN_S * 1_000)) == "done"
    producer.abort()
    return written


def requests_in_flight(cluster: SmallCluster, options: dict[str, str]) -> int:
    """Return the number of requests in flight at once."""
    # One record batch in each request.
    small = {**options, "batch.size": "1000", "max.request.size": "1000"}
    producer = Producer(client_of(cluster, {}), parse_producer(small))
    zeros = np.zeros(100, np.int32)
    producer.send_columns("orders", rows(100, size=100), zeros)
    producer.flush()
    # A partition has one request in flight until its first is acknowledged.
    cluster.silent_to(PRODUCE)
    before = producer.requests
    producer.send_columns("orders", rows(100, size=100), zeros)
    most = int(options["max.in.flight.requests.per.connection"])
    comes_true(lambda: producer.requests - before >= most, TIMEOUT_S)
    comes_true(lambda: producer.requests - before > most, 0.1)
    sent = producer.requests - before
    producer.abort()
    return sent


def commit_in_transaction(cluster: SmallCluster, options: dict[str, str]) -> None:
    config = parse_producer({"transactional.id": "etl-0", **options})
    with TransactionalProducer(client_of(cluster, {}), config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns("orders", rows())
        producer.commit_transaction()


def committed_transactional_ids(cluster: SmallCluster, options: dict[str, str]) -> object:
    commit_in_transaction(cluster, options)
    return [body["transactional_id"] for body in cluster.request_bodies(END_TXN)]


def transaction_timeout(cluster: SmallCluster, options: dict[str, str]) -> object:
    commit_in_transaction(cluster, options)
    return [body["transaction_timeout_ms"] for body in cluster.request_bodies(INIT_PRODUCER_ID)]


def attempts(cluster: SmallCluster, options: dict[str, str]) -> int:
    cluster.refuse(PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, ALWAYS)
    quick = {"enable.idempotence": "false", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1"}
    assert produce(cluster, {**quick, **options}, rows()) != "done"
    return len(cluster.request_bodies(PRODUCE))


def delivery_takes_long(cluster: SmallCluster, options: dict[str, str]) -> bool:
    cluster.refuse(PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, ALWAYS)
    quick = {"request.timeout.ms": "100", "retry.backoff.ms": "10", "retry.backoff.max.ms": "10"}
    return took_long(lambda: _raise(produce(cluster, {**quick, **options}, rows())))


def _raise(outcome: str) -> None:
    if outcome != "done":
        raise KafkaError(outcome)


def client_with_metadata(cluster: SmallCluster) -> Client:
    """Return a client with cached metadata, because a lookup counts towards `max.block.ms`."""
    client = client_of(cluster, {})
    client.topic("orders")
    return client


def accepts_beyond_5_kb(cluster: SmallCluster, options: dict[str, str]) -> bool:
    """Return whether 5 kB and then 50 kB are accepted while no batch is acknowledged."""
    cluster.silent_to(PRODUCE)
    limits = {"batch.size": "1000", "max.block.ms": SHORT}
    producer = Producer(client_with_metadata(cluster), parse_producer({**options, **limits}))
    try:
        producer.send_columns("orders", rows(50, size=100), np.zeros(50, np.int32))
        return outcome(lambda: producer.send_columns("orders", rows(500, size=100), np.zeros(500, np.int32))) == "done"
    finally:
        producer.abort()


def blocks_for_long(cluster: SmallCluster, options: dict[str, str]) -> bool:
    """Return whether a send with full memory blocks for long."""
    cluster.silent_to(PRODUCE)
    limits = {"batch.size": "1000", "buffer.memory": "5000", "delivery.timeout.ms": "100000"}
    producer = Producer(client_with_metadata(cluster), parse_producer({**options, **limits}))
    zeros = np.zeros(50, np.int32)
    try:
        producer.send_columns("orders", rows(50, size=100), zeros)
        return took_long(lambda: producer.send_columns("orders", rows(50, size=100), zeros))
    finally:
        producer.abort()


def same_key(count: int) -> pa.RecordBatch:
    """Return rows of 1 KiB."""
    return pa.record_batch({"key": pa.array([b"same"] * count), "value": pa.array([b"." * 1_024] * count)})


def share_of_silent_partition(cluster: SmallCluster, options: dict[str, str]) -> float:
    """Return the share of rows without a key that goes to a partition with a backlog and a silent leader."""
    with FakeKafka(2) as two:
        two.create_topic("orders", 2)
        remembered = {"bootstrap.servers": two.bootstrap_servers, "batch.size": "1000", **options}
        with Client(parse_client(remembered)) as client:
            leader = client.leader("orders", 0)[0]
            two.listeners[leader.node_id].handlers[PRODUCE] = lambda body, version: None
            producer = Producer(client, parse_producer(remembered))
            producer.send_columns("orders", rows(40, size=100), np.zeros(40, np.int32))
            wait_until(lambda: two.request_bodies(PRODUCE))
            many = rows(8_000, size=1_000)  # several hundred choices: the result cannot be chance
            choice, sizes = assembler_of(producer).choice, np.full(8_000, 1_000)
            share = lambda: float((choice.choose(client.topic("orders"), many, sizes, None) == 0).mean())  # noqa: E731
            available = options.get("partitioner.availability.timeout.ms", "0") == "0"
            comes_true(lambda: share() == 0, 0.2 if available else TIMEOUT_S)
            chosen = share()
            producer.abort()
    return chosen


# property -> observe function, and its result for each value.
PRODUCER_OBSERVERS: dict[str, tuple[Observe, dict[str, Any]]] = {
    "request.timeout.ms": (
        produce_requests(lambda body: round(body["timeout_ms"], -4), rows()),
        {"20000": [20000], "60000": [60000]},
    ),
    "acks": (produce_requests(lambda body: body["acks"], rows()), {"all": [-1], "1": [1], "0": [0]}),
    "compression.type": (
        produce_requests(codec, rows()),
        {"none": [0], "gzip": [1], "snappy": [2], "lz4": [3], "zstd": [4]},
    ),
    "compression.gzip.level": (size_at_level("gzip"), {"1": DIFFER, "9": DIFFER}),
    "compression.lz4.level": (size_at_level("lz4"), {"1": DIFFER, "12": DIFFER}),
    "compression.zstd.level": (size_at_level("zstd"), {"1": DIFFER, "19": DIFFER}),
    "linger.ms": (sends_without_flush, {"0": True, "60000": False}),
    "batch.size": (requests_of_many_rows, {"1000": True, "100000": False}),
    "batch.num.messages": (
        produce_requests(lambda body: int.from_bytes(record_batches(body)[57:61], "big"), rows(100)),
        {"25": [25] * 4, "100": [100]},
    ),
    "max.request.size": (
        lambda cluster, options: produce(cluster, options, rows(size=5_000)),
        {"1000": "UsageError", "10000": "done"},
    ),
    "max.in.flight.requests.per.connection": (requests_in_flight, {"1": 1, "3": 3}),
    "enable.idempotence": (
        lambda cluster, inputs: (produce(cluster, inputs, rows()), len(cluster.request_bodies(INIT_PRODUCER_ID))),
        {"true": ("done", 1), "false": ("done", 0)},
    ),
    "transactional.id": (committed_transactional_ids, {"etl-0": ["etl-0"], "etl-1": ["etl-1"]}),
    "transaction.timeout.ms": (transaction_timeout, {"5000": [5_000], "60000": [60_000]}),
    "retries": (attempts, {"0": 1, "2": 3}),
    "delivery.timeout.ms": (delivery_takes_long, {"100": False, LONG: True}),
    "buffer.memory": (accepts_beyond_5_kb, {"5000": False, "500000": True}),
    "max.block.ms": (blocks_for_long, {SHORT: False, LONG: True}),
    "partitioner.class": (
        produce_requests(values_by_partition, rows(20, key=True)),
        {"murmur2": DIFFER, "crc32": DIFFER, "fnv1a": DIFFER},
    ),
    "partitioner": (
        produce_requests(values_by_partition, rows(20, key=True)),
        {"murmur2_random": DIFFER, "consistent": DIFFER, "fnv1a": DIFFER},
    ),
    "partitioner.ignore.keys": (
        produce_requests(lambda body: len(body["topic_data"][0]["partition_data"]), same_key(40)),
        {"false": [1], "true": [2]},
    ),
    "partitioner.adaptive.partitioning.enable": (
        lambda *arguments: share_of_silent_partition(*arguments) < 0.3,
        {"false": False, "true": True},
    ),
    "partitioner.availability.timeout.ms": (
        lambda *arguments: share_of_silent_partition(*arguments) == 0,
        {"0": False, "50": True},
    ),
}
