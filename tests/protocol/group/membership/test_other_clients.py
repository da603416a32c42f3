"""Groups with members of this client, librdkafka and Java. Each partition has one owner, whichever client leads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import confluent_kafka
import pytest

from protocol.cluster.client import Client
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.protocol.group.membership.conftest import NewMember, Owner, rebalance

PARTITIONS = [0, 1, 2, 3, 4, 5]
KINDS = {
    "eager": ("classic", {"partition.assignment.strategy": "range"}),
    "cooperative": ("classic", {"partition.assignment.strategy": "cooperative-sticky"}),
    "consumer": ("consumer", {}),
}


@pytest.fixture
def client(kafka1: LocalKafka) -> Iterator[Client]:
    with client_of(kafka1) as client:
        yield client


@pytest.fixture
def strategy(request: pytest.FixtureRequest) -> dict[str, str]:
    protocol, strategy = KINDS[request.param]
    if protocol == "consumer" and version_numbers(KAFKA_VERSION) < (4, 0):
        pytest.skip("the consumer protocol begins with Kafka 4.0")
    return {"group.protocol": protocol, **strategy}


class Librdkafka:
    """A consumer of librdkafka; it polls whenever its partitions are requested."""

    def __init__(self, kafka: LocalKafka, group: str, topic: str, options: dict[str, str]) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0, **options}
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.subscribe([topic])

    @property
    def numbers(self) -> list[int]:
        self._consumer.poll(0.02)
        return sorted(partition.partition for partition in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("strategy", KINDS, indirect=True)
@pytest.mark.parametrize("protocol", [""])
def test_partitions_are_shared_with_librdkafka_and_return(
    client: Client,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    group: str,
    new_member: NewMember,
    strategy: dict[str, str],
) -> None:
    name = topic1(len(PARTITIONS))
    ours = new_member(client, name, **{key.replace(".", "_"): value for key, value in strategy.items()})
    ours.poll_rebalance(20_000)
    librdkafka = Librdkafka(kafka1, group, name, strategy)
    try:
        rebalance(ours, until=lambda: len(librdkafka.numbers) == 3 == len(ours.numbers))
        assert sorted(ours.numbers + librdkafka.numbers) == PARTITIONS
        # librdkafka's member may lead from now on.
        ours.membership.close()
        ours = new_member(client, name, **{key.replace(".", "_"): value for key, value in strategy.items()})
        rebalance(ours, until=lambda: len(librdkafka.numbers) == 3 == len(ours.numbers))
        assert sorted(ours.numbers + librdkafka.numbers) == PARTITIONS
    finally:
        librdkafka.close()
    rebalance(ours, until=lambda: ours.numbers == PARTITIONS)
    assert not any(revocation.lost for revocation in ours.revoked)


def test_partitions_are_shared_with_java(
    client: Client, kafka1: LocalKafka, topic1: TopicFactory, group: str, new_member: NewMember, protocol: str
) -> None:
    name = topic1(len(PARTITIONS))
    ours = new_member(client, name)
    ours.poll_rebalance(20_000)
    settings = ["--group", group, "--topic", name, "--from-beginning", "--max-messages", "1", "--timeout-ms", "45000"]
    settings += ["--bootstrap-server", kafka1.bootstrap_servers, "--consumer-property", f"group.protocol={protocol}"]
    old = version_numbers(kafka1.version) < (3, 9)
    tool = "kafka.tools.ConsoleConsumer" if old else "org.apache.kafka.tools.consumer.ConsoleConsumer"
    thread = threading.Thread(target=kafka1.run_tool, args=(tool, *settings))
    thread.start()
    rebalance(ours, until=lambda: len(ours.numbers) == 3, timeout_ms=60_000)
    assert described(kafka1, group, ours) == set(ours.numbers)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka1.bootstrap_servers})
    for number in PARTITIONS:  # one of these partitions belongs to the Java consumer, and ends it
        producer.produce(name, b"one", partition=number)
    assert producer.flush(20) == 0
    thread.join()
    rebalance(ours, until=lambda: ours.numbers == PARTITIONS)
    assert not any(revocation.lost for revocation in ours.revoked)


def described(kafka: LocalKafka, group: str, owner: Owner) -> set[int]:
    """Return the partitions of a member according to Kafka's tool."""
    rows = [line.split() for line in kafka.describe_group(group).splitlines()]
    return {int(row[2]) for row in rows if row[6:7] == [owner.membership.member.member_id]}
