"""A local Kafka of three brokers: they form one cluster, and a restarted broker keeps its address and data."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from spark_kafka_source.local_kafka import LocalKafka
from tests.support.librdkafka import admin, produce, values_of
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak


def test_three_brokers_know_each_other(kafka: LocalKafka) -> None:
    cluster = admin(kafka).list_topics(timeout=30)
    addresses = {broker_id: f"{broker.host}:{broker.port}" for broker_id, broker in cluster.brokers.items()}
    assert addresses == {broker_id: kafka.address(broker_id) for broker_id in (1, 2, 3)}
    assert kafka.bootstrap_servers == ",".join(addresses[broker_id] for broker_id in (1, 2, 3))


def test_brokers_listen_on_the_loopback_address_only(kafka: LocalKafka) -> None:
    for broker_id in kafka.broker_ids:
        sockets = psutil.Process(kafka.pid(broker_id)).net_connections()
        listening = {socket.laddr.ip.removeprefix("::ffff:") for socket in sockets if socket.status == "LISTEN"}
        assert listening == {"127.0.0.1"}


# tests/spark/test_broker_outage.py kills brokers under a query.
@pytest.mark.parametrize("end", [LocalKafka.stop, LocalKafka.kill] if SOAK else [LocalKafka.stop])
def test_restarted_broker_keeps_address_and_data(
    kafka: LocalKafka, topic: Callable[..., str], end: Callable[[LocalKafka, int], None]
) -> None:
    name, before = topic(replication_factor=3), kafka.address(2)
    produce(kafka, name, "kept")
    first_pid = kafka.pid(2)

    end(kafka, 2)
    assert kafka.pid(2) is None
    produce(kafka, name, "written while it was down")
    kafka.start(2)

    assert kafka.address(2) == before
    assert kafka.pid(2) not in (None, first_pid)
    assert values_of(kafka, name, 2) == ["kept", "written while it was down"]
