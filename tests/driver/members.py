"""Queries that are members of groups, and other members, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol import Client
from protocol.config import parse_consumer
from protocol.group.membership.assignment import TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.testing import FakeKafka
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from tests.protocol.consumer.conftest import EAGER
from tests.protocol.fetch.consuming import records
from tests.support.wait_until import wait_until

EAGER_OPTIONS = {f"kafka.{key}": str(value) for key, value in EAGER.items()}


def reader_of(bootstrap_servers: str, topic: str, group: str, **options: str | None) -> KafkaStreamReader:
    settings = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "kafka.group.id": group}
    settings |= {"kafka.group.protocol": "classic", "kafka.auto.offset.reset": "earliest"}
    chosen = {name: value for name, value in {**settings, **options}.items() if value is not None}
    return KafkaStreamReader(parse_source_options(chosen, streaming=True))


@contextmanager
def member_of(client: Client, topic: str, group: str, properties: dict[str, object]) -> Iterator[Membership]:
    """Join as a member that owns all partitions."""
    config = parse_consumer({"group.id": group, **properties})
    with Membership(client, config, TopicSubscription(frozenset({topic}))) as member:
        assert member.poll_rebalance(client.deadline(20_000)).pending_reason is None
        yield member


QUICK = {"kafka.metadata.max.age.ms": "100", "kafka.heartbeat.interval.ms": "50", "failOnDataLoss": "false"}
KIP_848_OPTIONS = {**QUICK, "kafka.heartbeat.interval.ms": None, "kafka.group.protocol": "consumer"}
LATEST = {"kafka.auto.offset.reset": "latest"}


class Cluster(FakeKafka):
    """One broker, and topic `a` with one partition."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.create("a", end)

    def create(self, topic: str, end: int) -> None:
        self.create_topic(topic, 1)
        self.rewrite(topic, 0, records(0, 1, last_offset=end - 1))


def second_member(client: Client) -> Membership:
    """Return a member of the classic group `g` that has not joined yet."""
    subscription = TopicSubscription(frozenset({"orders"}))
    return Membership(client, parse_consumer({"group.id": "g", **EAGER}), subscription)


def wait_for_rebalance(reader: KafkaStreamReader) -> None:
    assert reader.query.membership is not None
    member = reader.query.membership.membership
    assert member is not None
    wait_until(lambda: member.rebalance_pending is not None)
