"""Observable effects of each client property: a part of the table of `test_properties_apply`."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import CONTROL
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import KafkaError
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from tests.options.observe import CLOSED_PORT, LONG, SHORT, Observe, client_of, outcome, tens, took_long
from tests.support.small_cluster import SmallCluster


def other_cluster_is_used(cluster: SmallCluster, options: dict[str, str]) -> bool:
    options["bootstrap.servers"] = options["bootstrap.servers"].replace("<cluster>", cluster.bootstrap_servers)
    with SmallCluster() as second:
        address = options["bootstrap.servers"].replace("<other>", second.bootstrap_servers)
        client_of(cluster, {"bootstrap.servers": address}).metadata([])
        return bool(second.request_bodies(METADATA))


def client_ids_in_headers(cluster: SmallCluster, options: dict[str, str]) -> object:
    client_of(cluster, options).metadata([])
    return set(cluster.listeners[1].client_ids)


def plaintext_outcome(cluster: SmallCluster, options: dict[str, str]) -> str:
    """Return whether the client reaches a listener without TLS, which refuses a TLS handshake."""
    return outcome(lambda: client_of(cluster, options).metadata([]))


def seconds_until_timeout(cluster: SmallCluster, options: dict[str, str]) -> int:
    clock = ManualClock()
    client = client_of(cluster, {"retry.backoff.max.ms": "100", **options, "bootstrap.servers": CLOSED_PORT}, clock)
    assert outcome(lambda: client.metadata([])) == "DeadlineExceeded"
    return round(sum(clock.slept))


def retry_delays_ms(cluster: SmallCluster, options: dict[str, str]) -> list[float]:
    """Return the delays between the attempts of a request that fails, in ms."""
    cluster.refuse(FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ALWAYS)
    clock = ManualClock()
    client = client_of(cluster, options, clock)
    deadline, group = client.deadline(), group_coordinator("g")
    assert outcome(lambda: client.retrying("it", lambda: client.coordinator(group, deadline), deadline)) != "done"
    return [1_000 * each_s for each_s in clock.slept]


def waits_long_for_setup(cluster: SmallCluster, options: dict[str, str]) -> bool:
    cluster.silent_to(API_VERSIONS)
    client = client_of(cluster, options)
    where = Broker(1, *cluster.addresses[1])
    return took_long(lambda: client.connection(where, CONTROL, client.deadline(5_000)))


def reconnect_delays_ms(cluster: SmallCluster, options: dict[str, str]) -> list[float]:
    """Return the delay before a closed port is tried again, after each failure, in ms."""
    clock = ManualClock()
    client = client_of(cluster, options, clock)
    host, port = CLOSED_PORT.split(":")
    collected = []
    for _ in range(12):
        for _ in range(2):
            with pytest.raises(KafkaError) as raised:
                client.connection(Broker(1, host, int(port)), CONTROL, client.deadline())
        wait_ms = float(str(raised.value).split(" in back-off for another ")[1].split(" ms")[0])
        clock.at_s += wait_ms / 1_000 + 0.001
        collected.append(wait_ms)
    return collected


def metadata_requests(cluster: SmallCluster, options: dict[str, str]) -> int:
    clock = ManualClock()
    client = client_of(cluster, options, clock)
    for _ in range(2):
        client.topic("orders")
        clock.at_s += 10
    return len(cluster.request_bodies(METADATA))


def connections(cluster: SmallCluster, options: dict[str, str]) -> int:
    clock = ManualClock()
    client = client_of(cluster, options, clock)
    opened = set()
    for _ in range(2):
        client.metadata([])
        opened.update(client.pool.connections.values())
        clock.at_s += 10
    return len(opened)


def socket_option(option: int) -> Observe:
    def observe(cluster: SmallCluster, options: dict[str, str]) -> int:
        client = client_of(cluster, options)
        where = Broker(1, *cluster.addresses[1])
        connection = client.connection(where, CONTROL, client.deadline())
        # Linux doubles the requested size.
        return connection.stream.socket.getsockopt(socket.SOL_SOCKET, option) // 2

    return observe


def large_reply(cluster: SmallCluster, options: dict[str, str]) -> bool:
    cluster.edit_replies(METADATA, lambda body: {**body, "cluster_id": "x" * 5_000})
    client = client_of(cluster, options)
    where = Broker(1, *cluster.addresses[1])
    return outcome(lambda: client.ask(where, METADATA, {"topics": []}, client.deadline())) == "FrameTooLarge"


# property -> observe function, and its result for each value.
CLIENT_OBSERVERS: dict[str, tuple[Observe, dict[str, Any]]] = {
    "bootstrap.servers": (other_cluster_is_used, {"<cluster>": False, "<other>": True}),
    "client.id": (client_ids_in_headers, {"me": {"me"}, "you": {"you"}}),
    "security.protocol": (plaintext_outcome, {"PLAINTEXT": "done", "SSL": "TLSFailed"}),
    "default.api.timeout.ms": (seconds_until_timeout, {"1000": 1, "4000": 4}),
    "socket.connection.setup.timeout.ms": (waits_long_for_setup, {SHORT: False, LONG: True}),
    "reconnect.backoff.ms": (lambda *arguments: tens(reconnect_delays_ms(*arguments)[0]), {"10": 10, "1000": 1000}),
    "reconnect.backoff.max.ms": (
        lambda *arguments: tens(reconnect_delays_ms(*arguments)[-1]),
        {"100": 100, "10000": 10000},
    ),
    "retry.backoff.ms": (lambda *arguments: tens(retry_delays_ms(*arguments)[0]), {"10": 10, "1000": 1000}),
    "retry.backoff.max.ms": (lambda *arguments: tens(max(retry_delays_ms(*arguments))), {"100": 100, "10000": 10000}),
    "metadata.max.age.ms": (metadata_requests, {"5000": 2, "60000": 1}),
    "connections.max.idle.ms": (connections, {"5000": 2, "60000": 1}),
    "receive.buffer.bytes": (socket_option(socket.SO_RCVBUF), {"20000": 20000, "50000": 50000}),
    "send.buffer.bytes": (socket_option(socket.SO_SNDBUF), {"20000": 20000, "50000": 50000}),
    "max.response.bytes": (large_reply, {"1024": True, "100000": False}),
}
