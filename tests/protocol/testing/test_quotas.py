"""Quotas of `FakeKafka`: the quota that applies to a client, the clients that share it, and throttled clients."""

from __future__ import annotations

import pytest

from protocol.admin.admin import Admin
from protocol.admin.users import quota_entity
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.quotas import PRODUCED, Quotas
from protocol.testing.fake_kafka.requests import Request
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from tests.protocol.metrics.values import value_of
from tests.support.wait_until import wait_until


def request(user: str = "alice", client_id: str = "etl") -> Request:
    return Request(PRODUCE, PRODUCE.last, {}, client_id, f"User:{user}")


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"client_id": None}, {"client_id": "etl"}),
        ({"client_id": "etl"}, {"user": None}),
        ({"user": None}, {"user": None, "client_id": None}),
        ({"user": None, "client_id": None}, {"user": None, "client_id": "etl"}),
        ({"user": None, "client_id": "etl"}, {"user": "alice"}),
        ({"user": "alice"}, {"user": "alice", "client_id": None}),
        ({"user": "alice", "client_id": None}, {"user": "alice", "client_id": "etl"}),
    ],
)
def test_quota_of_the_most_specific_entity_applies(less: dict[str, str | None], more: dict[str, str | None]) -> None:
    quotas = Quotas()
    quotas.values = {frozenset(quota_entity(**less)): {PRODUCED: 1.0}}
    assert quotas.limit_bytes(PRODUCED, request()) == 10
    quotas.values[frozenset(quota_entity(**more))] = {"consumer_byte_rate": 3.0}
    assert quotas.limit_bytes(PRODUCED, request()) == 10, "it has no quota of this name"
    quotas.values[frozenset(quota_entity(**more))] = {PRODUCED: 2.0}
    assert quotas.limit_bytes(PRODUCED, request()) == 20


def test_clients_share_the_quota_of_a_user_but_not_that_of_all_users() -> None:
    quotas = Quotas()
    quotas.values = {frozenset({("user", None)}): {PRODUCED: 100.0}}
    quotas.count(PRODUCED, 1, request("alice", "first"), 1_500, now_s=50.0)
    assert quotas.throttle_ms(PRODUCED, 1, request("alice", "second"), 100, now_s=50.0) == 6_000
    assert quotas.throttle_ms(PRODUCED, 1, request("bob", "first"), 100, now_s=50.0) == 0
    assert quotas.throttle_ms(PRODUCED, 2, request("alice", "first"), 100, now_s=50.0) == 0, "each broker counts"
    assert quotas.throttle_ms(PRODUCED, 1, request("alice", "second"), 100, now_s=54.0) == 2_000
    assert quotas.throttle_ms(PRODUCED, 1, request("alice", "second"), 100, now_s=60.0) == 0


def test_clients_wait_for_their_throttle_time() -> None:
    with FakeKafka() as kafka, Admin({"bootstrap.servers": kafka.bootstrap_servers}) as admin:
        kafka.create_topic("orders", 1)
        admin.alter_client_quotas({quota_entity(client_id="etl"): {PRODUCED: 300_000, "consumer_byte_rate": 300_000}})
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "etl", "group.id": "g"}
        with Producer(properties) as producer:
            for _ in range(9):
                producer.send_and_wait("orders", bytes(300_000))
            assert value_of(producer.metrics(), "produce-throttle-time-max") == 0
            for _ in range(2):
                producer.send_and_wait("orders", bytes(300_000))
            assert 0 < value_of(producer.metrics(), "produce-throttle-time-max") <= 1_010
        with KafkaConsumer(properties, {"auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["orders"])
            sizes: list[int] = []
            wait_until(
                lambda: (
                    sizes.extend(len(message.value or b"") for message in consumer.poll(50).messages())
                    or len(sizes) == 11
                )
            )
            assert sizes == [300_000] * 11
            assert value_of(consumer.metrics(), "fetch-throttle-time-max") > 0
