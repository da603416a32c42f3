"""Observable effects of each property of a consumer or group member: a part of the table of `test_properties_apply`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from protocol.config import parse_consumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.consumer import Consumer
from protocol.fetch.log_offsets import Range
from protocol.group.membership.assignment import TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import EARLIEST
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from protocol.wire.schema import Api
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict
from tests.options.observe import BETWEEN_S, SHORT, Observe, Properties, client_of, first_batch, outcome
from tests.support.small_cluster import SmallCluster, small_batch
from tests.support.wait_until import comes_true


def end_of_first_batch(cluster: SmallCluster, properties: Properties) -> JsonDict:
    where = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
    options = {**where, **{f"kafka.{name}": value for name, value in properties.items()}}
    reader = KafkaStreamReader(parse_source_options(options, streaming=True))
    try:
        return first_batch(reader)
    finally:
        reader.stop()


def coordinator_keys(cluster: SmallCluster, options: dict[str, str]) -> object:
    end_of_first_batch(cluster, options)
    return {key for body in cluster.request_bodies(FIND_COORDINATOR) for key in body["coordinator_keys"]}


def join_field(api: Api, label: Callable[[dict[str, Any]], object]) -> Observe:
    """Observe the first request of one kind with which a member joins its group."""

    def observe(cluster: SmallCluster, options: dict[str, str]) -> object:
        protocol = "classic" if api is JOIN_GROUP else "consumer"
        with member_of(cluster, {"group.protocol": protocol, **options}):
            return label(cluster.request_bodies(api)[0])

    return observe


@contextmanager
def member_of(cluster: SmallCluster, options: Properties) -> Iterator[Membership]:
    client = client_of(cluster, {})
    config = parse_consumer({"group.id": "g", **options})
    with Membership(client, config, TopicSubscription(frozenset({"orders"}))) as member:
        member.poll_rebalance(client.deadline(5_000))
        yield member


def group_protocol_used(cluster: SmallCluster, options: dict[str, str]) -> object:
    result = outcome(lambda: member_of(cluster, options).__enter__().close())
    return result, bool(cluster.request_bodies(JOIN_GROUP)), bool(cluster.request_bodies(CONSUMER_GROUP_HEARTBEAT))


def sends_heartbeat(cluster: SmallCluster, options: dict[str, str]) -> bool:
    with member_of(cluster, {"group.protocol": "classic", "session.timeout.ms": "90000", **options}):
        return comes_true(lambda: cluster.request_bodies(HEARTBEAT), BETWEEN_S)


def start_offset(cluster: SmallCluster, arguments: dict[str, str]) -> object:
    arguments = {**arguments, "group.id": "g"}
    if outcome(lambda: end_of_first_batch(cluster, arguments)) != "done":
        return "error"
    return end_of_first_batch(cluster, arguments)["@joined"]["orders"]["0"]


def read(cluster: SmallCluster, options: Properties) -> int:
    """Return the number of rows."""
    client = client_of(cluster, {})
    consumer = parse_consumer(options)
    ranges = [Range("orders", 0, 0, 10, topic_id=client.topic("orders").topic_id)]
    return sum(batch.num_rows for _, batch in BoundedReader(client, consumer, ranges, poll_timeout_ms=20_000))


def fetch_field(name: str) -> Observe:
    def observe(cluster: SmallCluster, options: dict[str, str]) -> object:
        assert read(cluster, options) == 10
        return cluster.request_bodies(FETCH)[0][name]

    return observe


def partition_max_bytes(cluster: SmallCluster, options: dict[str, str]) -> object:
    assert read(cluster, options) == 10
    return cluster.request_bodies(FETCH)[0]["topics"][0]["partitions"][0]["partition_max_bytes"]


def reads_corrupt_records(cluster: SmallCluster, options: dict[str, str]) -> bool:
    records = bytearray(small_batch())
    records[-2] ^= 1
    cluster.rewrite_all(bytes(records))
    return outcome(lambda: read(cluster, options)) == "done"


def decompresses(cluster: SmallCluster, options: dict[str, str]) -> bool:
    cluster.rewrite_all(small_batch("gzip", size=5_000))
    return outcome(lambda: read(cluster, options)) == "done"


def expires_when_unread(cluster: SmallCluster, options: dict[str, str]) -> bool:
    """Return whether a partition that is not read is soon dropped from the fetches."""
    cluster.grow(10, times=20)
    one_batch = {"fetch.max.wait.ms": "10", "max.partition.fetch.bytes": "300"}
    with client_of(cluster, {}) as client, Consumer(client, parse_consumer({**options, **one_batch})) as consumer:
        stream = consumer.consume_partition("orders", 0, EARLIEST)
        return comes_true(lambda: stream.expired, 2 * BETWEEN_S)


# property -> observe function, and its result for each value.
CONSUMER_OBSERVERS: dict[str, tuple[Observe, dict[str, Any]]] = {
    "group.id": (coordinator_keys, {"mine": {"mine"}, "yours": {"yours"}}),
    "auto.offset.reset": (start_offset, {"earliest": 0, "latest": 10, "none": "error"}),
    "isolation.level": (fetch_field("isolation_level"), {"read_committed": 1, "read_uncommitted": 0}),
    "fetch.min.bytes": (fetch_field("min_bytes"), {"1": 1, "5": 5}),
    "fetch.max.wait.ms": (fetch_field("max_wait_ms"), {"7": 7, "9": 9}),
    "fetch.max.bytes": (fetch_field("max_bytes"), {"30000": 30000, "200000": 200000}),
    "max.partition.fetch.bytes": (partition_max_bytes, {"50000": 50000, "60000": 60000}),
    "client.rack": (fetch_field("rack_id"), {"a": "a", "b": "b"}),
    "max.processing.time.ms": (expires_when_unread, {SHORT: True, "60000": False}),
    "check.crcs": (reads_corrupt_records, {"true": False, "false": True}),
    "max.decompressed.batch.bytes": (decompresses, {"1024": False, "1000000": True}),
    "group.protocol": (
        group_protocol_used,
        {"none": ("UsageError", False, False), "classic": ("done", True, False), "consumer": ("done", False, True)},
    ),
    "group.instance.id": (join_field(JOIN_GROUP, lambda body: body["group_instance_id"]), {"a": "a", "b": "b"}),
    "session.timeout.ms": (
        join_field(JOIN_GROUP, lambda body: body["session_timeout_ms"]),
        {"7000": 7000, "8000": 8000},
    ),
    "heartbeat.interval.ms": (sends_heartbeat, {SHORT: True, "60000": False}),
    "max.poll.interval.ms": (
        join_field(JOIN_GROUP, lambda body: body["rebalance_timeout_ms"]),
        {"70000": 70000, "80000": 80000},
    ),
    "partition.assignment.strategy": (
        join_field(JOIN_GROUP, lambda body: [row["name"] for row in body["protocols"]]),
        {"sticky": ["sticky"], "roundrobin,range": ["roundrobin", "range"]},
    ),
    "group.remote.assignor": (
        join_field(CONSUMER_GROUP_HEARTBEAT, lambda body: body["server_assignor"]),
        {"uniform": "uniform", "range": "range"},
    ),
}
