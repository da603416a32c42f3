"""Every property of Kafka's that is said to apply changes something that can be seen: a request, a socket, a time.

A row of the table without a row here fails the test, and so does one whose two values make no difference.
"""

from __future__ import annotations

import itertools
import math
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.broker_errors import ErrorCode
from protocol.clock import SYSTEM_CLOCK, Clock, Deadline
from protocol.cluster.client import CONTROL, Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Broker
from protocol.config import parse_client, parse_consumer, parse_producer
from protocol.consumer.consumer import Consumer
from protocol.consumer.range import Range
from protocol.consumer.range_consumer import RangeConsumer
from protocol.errors import KafkaError
from protocol.group.membership.membership import Membership
from protocol.group.membership.topic_subscription import TopicSubscription
from protocol.kafka_terms import EARLIEST
from protocol.producer.async_producer import AsyncProducer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.properties import PROPERTIES
from protocol.property import Effect
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from protocol.wire.schema import Api
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict
from tests.fake_kafka.clock import ManualClock
from tests.fake_kafka.faults import ALWAYS
from tests.fake_kafka.server import FakeKafka
from tests.options.sasl_seen import SASL_SEEN
from tests.options.tls_seen import TLS_SEEN
from tests.ten_records import TenRecords, ten_records

Properties = Mapping[str, str]
Observe = Callable[[TenRecords, dict[str, str]], object]

# Of real time: what ends after 20 ms and after 700 is told apart on a busy machine, too.
SHORT, LONG, BETWEEN_S = "20", "700", 0.6


@pytest.fixture
def cluster() -> Iterator[TenRecords]:
    with TenRecords() as fake:
        yield fake


def client_of(cluster: TenRecords, given: Properties, clock: Clock = SYSTEM_CLOCK) -> Client:
    return Client(parse_client({"bootstrap.servers": cluster.bootstrap_servers, **given}), clock)


def outcome(action: Callable[[], object]) -> str:
    """The name of the error of `action`, or "done"."""
    try:
        action()
    except KafkaError as error:
        return type(error).__name__
    return "done"


def took_long(action: Callable[[], object]) -> bool:
    began_s = time.monotonic()
    assert outcome(action) != "done"
    return time.monotonic() - began_s > BETWEEN_S


def tens(number: float) -> int:
    """The power of ten that a number with some jitter is about."""
    return int(10 ** round(math.log10(number)))


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


# -- clients --------------------------------------------------------------------------------------


def who_is_asked(cluster: TenRecords, given: dict[str, str]) -> bool:
    given["bootstrap.servers"] = given["bootstrap.servers"].replace("<cluster>", cluster.bootstrap_servers)
    with TenRecords() as other:
        address = given["bootstrap.servers"].replace("<other>", other.bootstrap_servers)
        client_of(cluster, {"bootstrap.servers": address}).metadata([])
        return bool(other.asked(METADATA))


def name_in_headers(cluster: TenRecords, given: dict[str, str]) -> object:
    client_of(cluster, given).metadata([])
    return set(cluster.listeners[1].client_ids)


def reached(cluster: TenRecords, given: dict[str, str]) -> str:
    """Whether a listener without TLS can be talked to."""
    return outcome(lambda: client_of(cluster, {**given, "default.api.timeout.ms": "300"}).metadata([]))


def time_until_given_up(cluster: TenRecords, given: dict[str, str]) -> int:
    clock = ManualClock()
    client = client_of(cluster, {"retry.backoff.max.ms": "100", **given, "bootstrap.servers": closed_port()}, clock)
    assert outcome(lambda: client.metadata([])) == "DeadlineExceeded"
    return round(sum(clock.slept))


def waits(cluster: TenRecords, given: dict[str, str]) -> list[float]:
    """Between the tries of a request whose answer is an error, in ms."""
    cluster.refuse(FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ALWAYS)
    clock = ManualClock()
    client = client_of(cluster, given, clock)
    deadline, group = client.deadline(), group_coordinator("g")
    assert outcome(lambda: client.retrying("it", lambda: client.coordinator(group, deadline), deadline)) != "done"
    return [1_000 * each_s for each_s in clock.slept]


def silence(cluster: TenRecords, given: dict[str, str]) -> bool:
    cluster.silent_to(API_VERSIONS)
    client = client_of(cluster, given)
    where = Broker(1, *cluster.addresses[1])
    return took_long(lambda: client.connection(where, CONTROL, client.deadline(5_000)))


def reconnects(cluster: TenRecords, given: dict[str, str]) -> list[float]:
    """How long a closed port is left alone after each failure, in ms."""
    clock = ManualClock()
    client = client_of(cluster, given, clock)
    host, port = closed_port().split(":")
    found = []
    for _ in range(12):
        for _ in range(2):
            with pytest.raises(KafkaError) as raised:
                client.connection(Broker(1, host, int(port)), CONTROL, client.deadline())
        wait_ms = float(str(raised.value).split(" again for ")[1].split(" ms")[0])
        clock.at_s += wait_ms / 1_000 + 0.001
        found.append(wait_ms)
    return found


def metadata_requests(cluster: TenRecords, given: dict[str, str]) -> int:
    clock = ManualClock()
    client = client_of(cluster, given, clock)
    for _ in range(2):
        client.topic("orders")
        clock.at_s += 10
    return len(cluster.asked(METADATA))


def connections(cluster: TenRecords, given: dict[str, str]) -> int:
    clock = ManualClock()
    client = client_of(cluster, given, clock)
    for _ in range(2):
        client.metadata([])
        clock.at_s += 10
    return len(cluster.asked(API_VERSIONS))


def socket_option(option: int) -> Observe:
    def observe(cluster: TenRecords, given: dict[str, str]) -> int:
        client = client_of(cluster, given)
        where = Broker(1, *cluster.addresses[1])
        connection = client.connection(where, CONTROL, client.deadline())
        # Linux doubles what is asked for.
        return connection._stream._socket.getsockopt(socket.SOL_SOCKET, option) // 2

    return observe


def large_reply(cluster: TenRecords, given: dict[str, str]) -> bool:
    cluster.edit_replies(METADATA, lambda body: {**body, "cluster_id": "x" * 5_000})
    client = client_of(cluster, {**given, "default.api.timeout.ms": "300"})
    where = Broker(1, *cluster.addresses[1])
    return outcome(lambda: client.ask(where, METADATA, {"topics": []}, client.deadline())) == "FrameTooLarge"


# -- consumers ------------------------------------------------------------------------------------


def reader_of(cluster: TenRecords, given: Properties) -> KafkaStreamReader:
    where = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
    options = {**where, **{f"kafka.{name}": value for name, value in given.items()}}
    return KafkaStreamReader(parse_source_options(options, streaming=True))


def first_batch(reader: KafkaStreamReader) -> JsonDict:
    """The end of a query's first batch, which also says where it begins (`@joined`)."""
    return reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def group_asked_about(cluster: TenRecords, given: dict[str, str]) -> object:
    first_batch(reader_of(cluster, given))
    return {key for body in cluster.asked(FIND_COORDINATOR) for key in body["coordinator_keys"]}


def of_member(api: Api, what: Callable[[dict[str, Any]], object]) -> Observe:
    """Something of the first request of one kind by which a member joins its group."""

    def observe(cluster: TenRecords, given: dict[str, str]) -> object:
        protocol = "classic" if api is JOIN_GROUP else "consumer"
        with member_of(cluster, {"group.protocol": protocol, **given}):
            return what(cluster.asked(api)[0])

    return observe


@contextmanager
def member_of(cluster: TenRecords, given: Properties) -> Iterator[Membership]:
    client = client_of(cluster, {})
    config = parse_consumer({"group.id": "g", **given})
    with Membership(client, config, TopicSubscription(frozenset({"orders"}))) as member:
        member.take_up(client.deadline(5_000))
        yield member


def joins_by(cluster: TenRecords, given: dict[str, str]) -> object:
    told = outcome(lambda: member_of(cluster, given).__enter__().close())
    return told, bool(cluster.asked(JOIN_GROUP)), bool(cluster.asked(CONSUMER_GROUP_HEARTBEAT))


def tells_that_it_is_there(cluster: TenRecords, given: dict[str, str]) -> bool:
    with member_of(cluster, {"group.protocol": "classic", "session.timeout.ms": "90000", **given}):
        deadline = SYSTEM_CLOCK.now_s() + BETWEEN_S
        while not cluster.asked(HEARTBEAT) and SYSTEM_CLOCK.now_s() < deadline:
            time.sleep(0.01)
        return bool(cluster.asked(HEARTBEAT))


def beginning(cluster: TenRecords, given: dict[str, str]) -> object:
    reader = reader_of(cluster, {**given, "group.id": "g"})
    return "error" if outcome(lambda: first_batch(reader)) != "done" else first_batch(reader)["@joined"]["orders"]["0"]


def read(cluster: TenRecords, given: Properties) -> int:
    """How many rows there are."""
    client = client_of(cluster, {})
    consumer = parse_consumer(given)
    ranges = [Range("orders", 0, 0, 10, topic_id=client.topic("orders").topic_id)]
    return sum(batch.num_rows for _, batch in RangeConsumer(client, consumer, ranges, poll_timeout_ms=500))


def of_fetch(name: str) -> Observe:
    def observe(cluster: TenRecords, given: dict[str, str]) -> object:
        assert read(cluster, given) == 10
        return cluster.asked(FETCH)[0][name]

    return observe


def partition_max_bytes(cluster: TenRecords, given: dict[str, str]) -> object:
    assert read(cluster, given) == 10
    return cluster.asked(FETCH)[0]["topics"][0]["partitions"][0]["partition_max_bytes"]


def reads_corrupt_records(cluster: TenRecords, given: dict[str, str]) -> bool:
    records = bytearray(ten_records())
    records[-2] ^= 1
    cluster.rewrite_all(bytes(records))
    return outcome(lambda: read(cluster, given)) == "done"


def unpacks(cluster: TenRecords, given: dict[str, str]) -> bool:
    cluster.rewrite_all(ten_records("gzip", size=5_000))
    return outcome(lambda: read(cluster, given)) == "done"


def is_left_out(cluster: TenRecords, given: dict[str, str]) -> bool:
    """Whether a partition that nobody reads is dropped from the fetches soon."""
    cluster.grow(10, times=20)
    one_batch = {"fetch.max.wait.ms": "10", "max.partition.fetch.bytes": "300"}
    with client_of(cluster, {}) as client, Consumer(client, parse_consumer({**given, **one_batch})) as consumer:
        stream = consumer.consume_partition("orders", 0, EARLIEST)
        give_up_s = time.monotonic() + 2 * BETWEEN_S
        while time.monotonic() < give_up_s and not stream.expired:
            time.sleep(0.01)
        return stream.expired


# -- producers ------------------------------------------------------------------------------------


def rows(count: int = 1, size: int = 10, key: bool = False) -> pa.RecordBatch:
    columns = {"value": pa.array([b"%0*d" % (size, number) for number in range(count)], pa.binary())}
    if key:
        columns["key"] = pa.array([b"k%d" % number for number in range(count)], pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def produce(cluster: TenRecords, given: Properties, written: pa.RecordBatch, clock: Clock = SYSTEM_CLOCK) -> str:
    """Writes rows, to partition 0 unless they have keys. Returns how it went."""
    producer = AsyncProducer(client_of(cluster, client_part(given), clock), parse_producer(given))
    here = None if "key" in written.schema.names else np.zeros(written.num_rows, np.int32)

    def write() -> None:
        producer.send_columns("orders", written, here)
        producer.flush()

    try:
        return outcome(write)
    finally:
        producer.abort()


def client_part(given: Properties) -> dict[str, str]:
    return {
        name: given[name]
        for name in ("request.timeout.ms", "retry.backoff.ms", "retry.backoff.max.ms")
        if name in given
    }


def of_produce(look: Callable[[dict[str, Any]], object], written: pa.RecordBatch) -> Observe:
    def observe(cluster: TenRecords, given: dict[str, str]) -> object:
        assert produce(cluster, given, written) == "done"
        give_up_s = time.monotonic() + 5  # acks=0 waits for no answer
        while not cluster.asked(PRODUCE) and time.monotonic() < give_up_s:
            time.sleep(0.01)
        return [look(body) for body in cluster.asked(PRODUCE)]

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
    seen = of_produce(lambda body: len(record_batches(body)), pa.RecordBatch.from_pydict({"value": text}))
    return lambda cluster, given: seen(cluster, {**given, "compression.type": name})


def requests_of_many_rows(cluster: TenRecords, given: dict[str, str]) -> bool:
    assert produce(cluster, given, rows(100, size=100)) == "done"
    return len(cluster.asked(PRODUCE)) > 1


def goes_out_by_itself(cluster: TenRecords, given: dict[str, str]) -> bool:
    """Whether rows are written soon that nobody flushes."""
    producer = AsyncProducer(client_of(cluster, {}), parse_producer(given))
    sent = producer.send_columns("orders", rows(), np.zeros(1, np.int32))
    written = outcome(lambda: sent.result(Deadline.after_ms(BETWEEN_S * 1_000))) == "done"
    producer.abort()
    return written


def under_way(cluster: TenRecords, given: dict[str, str]) -> int:
    """How many requests wait for their answers at once."""
    # One record batch in each request.
    small = {**given, "batch.size": "1000", "max.request.size": "1000"}
    producer = AsyncProducer(client_of(cluster, {}), parse_producer(small))
    here = np.zeros(100, np.int32)
    producer.send_columns("orders", rows(100, size=100), here)
    producer.flush()
    # A partition has one request under way until its first is acknowledged.
    cluster.silent_to(PRODUCE)
    before = producer.requests
    producer.send_columns("orders", rows(100, size=100), here)
    most, give_up_s = int(given["max.in.flight.requests.per.connection"]), time.monotonic() + 5
    while producer.requests - before < most and time.monotonic() < give_up_s:
        time.sleep(0.01)
    time.sleep(0.1)  # and no more
    sent = producer.requests - before
    producer.abort()
    return sent


def commit_in_transaction(cluster: TenRecords, given: dict[str, str]) -> None:
    config = parse_producer({"transactional.id": "etl-0", **given})
    with TransactionalProducer(client_of(cluster, {}), config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns("orders", rows())
        producer.commit_transaction()


def who_commits(cluster: TenRecords, given: dict[str, str]) -> object:
    commit_in_transaction(cluster, given)
    return [body["transactional_id"] for body in cluster.asked(END_TXN)]


def transaction_timeout(cluster: TenRecords, given: dict[str, str]) -> object:
    commit_in_transaction(cluster, given)
    return [body["transaction_timeout_ms"] for body in cluster.asked(INIT_PRODUCER_ID)]


def attempts(cluster: TenRecords, given: dict[str, str]) -> int:
    cluster.refuse(PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, ALWAYS)
    quick = {"enable.idempotence": "false", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1"}
    assert produce(cluster, {**quick, **given}, rows()) != "done"
    return len(cluster.asked(PRODUCE))


def delivery_takes_long(cluster: TenRecords, given: dict[str, str]) -> bool:
    cluster.refuse(PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, ALWAYS)
    quick = {"request.timeout.ms": "100", "retry.backoff.ms": "10", "retry.backoff.max.ms": "10"}
    return took_long(lambda: _raise(produce(cluster, {**quick, **given}, rows())))


def _raise(outcome: str) -> None:
    if outcome != "done":
        raise KafkaError(outcome)


def client_that_knows_orders(cluster: TenRecords) -> Client:
    """To look a topic up takes some of `max.block.ms`, too."""
    client = client_of(cluster, {})
    client.topic("orders")
    return client


def held(cluster: TenRecords, given: dict[str, str]) -> bool:
    """Whether 5 kB and then 50 kB are taken in while nothing is acknowledged."""
    cluster.silent_to(PRODUCE)
    limits = {"batch.size": "1000", "max.block.ms": SHORT}
    producer = AsyncProducer(client_that_knows_orders(cluster), parse_producer({**given, **limits}))
    try:
        producer.send_columns("orders", rows(50, size=100), np.zeros(50, np.int32))
        return outcome(lambda: producer.send_columns("orders", rows(500, size=100), np.zeros(500, np.int32))) == "done"
    finally:
        producer.abort()


def blocks_for_long(cluster: TenRecords, given: dict[str, str]) -> bool:
    """Who sends while memory is full."""
    cluster.silent_to(PRODUCE)
    limits = {"batch.size": "1000", "buffer.memory": "5000", "delivery.timeout.ms": "100000"}
    producer = AsyncProducer(client_that_knows_orders(cluster), parse_producer({**given, **limits}))
    here = np.zeros(50, np.int32)
    try:
        producer.send_columns("orders", rows(50, size=100), here)
        return took_long(lambda: producer.send_columns("orders", rows(50, size=100), here))
    finally:
        producer.abort()


def same_key(count: int) -> pa.RecordBatch:
    """Rows of 1 KiB."""
    columns = {"key": pa.array([b"same"] * count, pa.binary()), "value": pa.array([b"." * 1_024] * count, pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


def share_of_the_silent(cluster: TenRecords, given: dict[str, str]) -> float:
    """Of rows without a key, how many go to the partition whose leader answers nothing, and for which some wait."""
    with FakeKafka(2) as two:
        two.create_topic("orders", 2)
        known = {"bootstrap.servers": two.bootstrap_servers, "batch.size": "1000", **given}
        with Client(parse_client(known)) as client:
            leader = client.leader("orders", 0)[0]
            two.listeners[leader.node_id].handlers[PRODUCE.key] = lambda body, version: None
            producer = AsyncProducer(client, parse_producer(known))
            producer.send_columns("orders", rows(40, size=100), np.zeros(40, np.int32))
            time.sleep(0.1)
            many = rows(2_000, size=1_000)
            chosen = producer._intake._choice.choose(client.topic("orders"), many, np.full(2_000, 1_000), None)
            producer.abort()
    return float((chosen == 0).mean())


# -- the table ------------------------------------------------------------------------------------

# The two values are told apart, whatever is seen.
DIFFER: Any = object()

# property -> what is looked at, and what is seen there for each value.
SEEN: dict[str, tuple[Observe, dict[str, Any]]] = {
    "bootstrap.servers": (who_is_asked, {"<cluster>": False, "<other>": True}),
    "client.id": (name_in_headers, {"me": {"me"}, "you": {"you"}}),
    "security.protocol": (reached, {"PLAINTEXT": "done", "SSL": "DeadlineExceeded"}),
    "request.timeout.ms": (
        of_produce(lambda body: round(body["timeout_ms"], -3), rows()),
        {"5000": [5000], "9000": [9000]},
    ),
    "default.api.timeout.ms": (time_until_given_up, {"1000": 1, "4000": 4}),
    "socket.connection.setup.timeout.ms": (silence, {SHORT: False, LONG: True}),
    "reconnect.backoff.ms": (lambda *given: tens(reconnects(*given)[0]), {"10": 10, "1000": 1000}),
    "reconnect.backoff.max.ms": (lambda *given: tens(reconnects(*given)[-1]), {"100": 100, "10000": 10000}),
    "retry.backoff.ms": (lambda *given: tens(waits(*given)[0]), {"10": 10, "1000": 1000}),
    "retry.backoff.max.ms": (lambda *given: tens(max(waits(*given))), {"100": 100, "10000": 10000}),
    "metadata.max.age.ms": (metadata_requests, {"5000": 2, "60000": 1}),
    "connections.max.idle.ms": (connections, {"5000": 2, "60000": 1}),
    "receive.buffer.bytes": (socket_option(socket.SO_RCVBUF), {"20000": 20000, "50000": 50000}),
    "send.buffer.bytes": (socket_option(socket.SO_SNDBUF), {"20000": 20000, "50000": 50000}),
    "max.response.bytes": (large_reply, {"1024": True, "100000": False}),
    "group.id": (group_asked_about, {"mine": {"mine"}, "yours": {"yours"}}),
    "auto.offset.reset": (beginning, {"earliest": 0, "latest": 10, "none": "error"}),
    "isolation.level": (of_fetch("isolation_level"), {"read_committed": 1, "read_uncommitted": 0}),
    "fetch.min.bytes": (of_fetch("min_bytes"), {"1": 1, "5": 5}),
    "fetch.max.wait.ms": (of_fetch("max_wait_ms"), {"7": 7, "9": 9}),
    "fetch.max.bytes": (of_fetch("max_bytes"), {"100000": 100000, "200000": 200000}),
    "max.partition.fetch.bytes": (partition_max_bytes, {"50000": 50000, "60000": 60000}),
    "client.rack": (of_fetch("rack_id"), {"a": "a", "b": "b"}),
    "max.processing.time.ms": (is_left_out, {SHORT: True, "60000": False}),
    "check.crcs": (reads_corrupt_records, {"true": False, "false": True}),
    "max.decompressed.batch.bytes": (unpacks, {"1024": False, "1000000": True}),
    "group.protocol": (
        joins_by,
        {"none": ("UsageError", False, False), "classic": ("done", True, False), "consumer": ("done", False, True)},
    ),
    "group.instance.id": (of_member(JOIN_GROUP, lambda body: body["group_instance_id"]), {"a": "a", "b": "b"}),
    "session.timeout.ms": (
        of_member(JOIN_GROUP, lambda body: body["session_timeout_ms"]),
        {"7000": 7000, "8000": 8000},
    ),
    "heartbeat.interval.ms": (tells_that_it_is_there, {SHORT: True, "60000": False}),
    "max.poll.interval.ms": (
        of_member(JOIN_GROUP, lambda body: body["rebalance_timeout_ms"]),
        {"70000": 70000, "80000": 80000},
    ),
    "partition.assignment.strategy": (
        of_member(JOIN_GROUP, lambda body: [row["name"] for row in body["protocols"]]),
        {"sticky": ["sticky"], "roundrobin,range": ["roundrobin", "range"]},
    ),
    "group.remote.assignor": (
        of_member(CONSUMER_GROUP_HEARTBEAT, lambda body: body["server_assignor"]),
        {"uniform": "uniform", "range": "range"},
    ),
    "acks": (of_produce(lambda body: body["acks"], rows()), {"all": [-1], "1": [1], "0": [0]}),
    "compression.type": (of_produce(codec, rows()), {"none": [0], "gzip": [1], "snappy": [2], "lz4": [3], "zstd": [4]}),
    "compression.gzip.level": (size_at_level("gzip"), {"1": DIFFER, "9": DIFFER}),
    "compression.lz4.level": (size_at_level("lz4"), {"1": DIFFER, "12": DIFFER}),
    "compression.zstd.level": (size_at_level("zstd"), {"1": DIFFER, "19": DIFFER}),
    "linger.ms": (goes_out_by_itself, {"0": True, "60000": False}),
    "batch.size": (requests_of_many_rows, {"1000": True, "100000": False}),
    "batch.num.messages": (
        of_produce(lambda body: int.from_bytes(record_batches(body)[57:61], "big"), rows(100)),
        {"25": [25] * 4, "100": [100]},
    ),
    "max.request.size": (lambda *given: produce(*given, rows(size=5_000)), {"1000": "UsageError", "10000": "done"}),
    "max.in.flight.requests.per.connection": (under_way, {"1": 1, "3": 3}),
    "enable.idempotence": (
        lambda cluster, given: (produce(cluster, given, rows()), len(cluster.asked(INIT_PRODUCER_ID))),
        {"true": ("done", 1), "false": ("done", 0)},
    ),
    "transactional.id": (who_commits, {"etl-0": ["etl-0"], "etl-1": ["etl-1"]}),
    "transaction.timeout.ms": (transaction_timeout, {"5000": [5_000], "60000": [60_000]}),
    "retries": (attempts, {"0": 1, "2": 3}),
    "delivery.timeout.ms": (delivery_takes_long, {"100": False, "1000": True}),
    "buffer.memory": (held, {"5000": False, "500000": True}),
    "max.block.ms": (blocks_for_long, {SHORT: False, LONG: True}),
    "partitioner.class": (
        of_produce(values_by_partition, rows(20, key=True)),
        {"murmur2": DIFFER, "crc32": DIFFER, "fnv1a": DIFFER},
    ),
    "partitioner": (
        of_produce(values_by_partition, rows(20, key=True)),
        {"murmur2_random": DIFFER, "consistent": DIFFER, "fnv1a": DIFFER},
    ),
    "partitioner.ignore.keys": (
        of_produce(lambda body: len(body["topic_data"][0]["partition_data"]), same_key(40)),
        {"false": [1], "true": [2]},
    ),
    "partitioner.adaptive.partitioning.enable": (
        lambda *given: share_of_the_silent(*given) < 0.3,
        {"false": False, "true": True},
    ),
    "partitioner.availability.timeout.ms": (
        lambda *given: share_of_the_silent(*given) == 0,
        {"0": False, "50": True},
    ),
    **TLS_SEEN,
    **SASL_SEEN,
}


def test_every_property_that_applies_is_looked_at() -> None:
    assert set(SEEN) == {row.name for row in PROPERTIES if row.effect is Effect.APPLIES}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SEEN)
def test_a_property_changes_what_is_seen(name: str) -> None:
    observe, expected = SEEN[name]
    seen = {}
    for value in expected:
        with TenRecords() as cluster:
            seen[value] = observe(cluster, {name: value})
    if DIFFER not in expected.values():
        assert seen == expected
    assert all(one != other for one, other in itertools.combinations(seen.values(), 2))
