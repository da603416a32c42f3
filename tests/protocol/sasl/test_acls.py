"""Each part of the client with exactly the ACLs that docs/security.md lists, and the error when one is missing."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from protocol.admin.groups import delete_group, describe_group
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_producer
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import KafkaError
from protocol.fetch.list_offsets import list_offsets
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.kafka_terms import LATEST
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from spark_kafka_source.local_kafka.users import acl_settings
from tests.conftest import KAFKA_VERSION, topic_factory
from tests.protocol.fetch.consuming import client_of, produce, ranges_of, reader, rows_of
from tests.protocol.sasl.acls import BOB, Acl, allow, revoke
from tests.support.fake_local_kafka import FakeLocalKafka
from tests.support.secured_kafka import USERS, SecuredKafka

QUICK = {"default.api.timeout.ms": "8000"}


def read(client: Client, topic: str, group: str) -> None:
    assert rows_of(reader(client, ranges_of(client, topic, 1)))


def commit(client: Client, topic: str, group: str) -> None:
    commit_offsets(client, group, {(topic, 0): CommittedOffset(1)}, client.deadline())
    assert fetch_offsets(client, group, [(topic, 0)], client.deadline())


def member(client: Client, group: str, protocol: str = "classic") -> KafkaConsumer:
    properties = {"group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest", **QUICK}
    return KafkaConsumer(client, parse_group_consumer(properties))


def join_group(client: Client, topic: str, group: str, protocol: str = "classic") -> None:
    with member(client, group, protocol) as consumer:
        consumer.subscribe([topic])
        deadline = client.deadline()
        while not len(consumer.poll(timeout_ms=500)):
            assert not deadline.passed
        consumer.commit_sync()


def join_group_by_kip_848(client: Client, topic: str, group: str) -> None:
    join_group(client, topic, group, "consumer")


def lag(client: Client, topic: str, group: str) -> None:
    assert fetch_offsets(client, group, [(topic, 0)], client.deadline(), require_stable=False)
    assert list_offsets(client, {(topic, 0): LATEST})


def write(client: Client, topic: str, group: str) -> None:
    producer = Producer(client, parse_producer({}))
    producer.send_columns(topic, pa.RecordBatch.from_pydict({"value": pa.array([b"v"])}))
    producer.close()


def transact(client: Client, topic: str, group: str) -> None:
    with TransactionalProducer(client, parse_producer({"transactional.id": group})) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns(topic, pa.RecordBatch.from_pydict({"value": pa.array([b"v"])}))
        producer.commit_transaction()


def describe(client: Client, topic: str, group: str) -> None:
    describe_group(client, group)


def delete(client: Client, topic: str, group: str) -> None:
    delete_group(client, group)


@dataclass(frozen=True)
class Authorized:
    """A broker, properties of clients without credentials, and a topic with records."""

    kafka: LocalKafka
    properties: dict[str, str]
    topic: str

    def client(self, properties: dict[str, str]) -> Client:
        return Client(parse_client(self.properties | properties))


Part = Callable[[Client, str, str], None]
# The ACLs that each part needs, (operation, resource), as in docs/security.md.
NEEDS: dict[Part, list[tuple[str, str]]] = {
    read: [("Read", "Topic")],
    commit: [("Read", "Group"), ("Read", "Topic")],
    join_group: [("Read", "Group"), ("Read", "Topic")],
    join_group_by_kip_848: [("Read", "Group"), ("Read", "Topic")],
    lag: [("Describe", "Group"), ("Describe", "Topic")],
    write: [("Write", "Topic")],
    transact: [("Write", "TransactionalId"), ("Write", "Topic")],
    describe: [("Describe", "Group")],
    delete: [("Delete", "Group")],
}


@pytest.fixture
def real(secured: SecuredKafka) -> Iterator[Authorized]:
    yield from with_topic(secured.kafka, secured.properties("SASL_PLAINTEXT"))


@pytest.fixture
def fake() -> Iterator[Authorized]:
    with FakeLocalKafka(users=USERS, anonymous=True, settings=acl_settings("alice")) as fake:
        addresses = {"bootstrap.servers": fake.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
        yield from with_topic(fake, addresses)


def with_topic(kafka: LocalKafka, properties: dict[str, str]) -> Iterator[Authorized]:
    """Yield the broker while it has a topic with records."""
    factory = topic_factory(kafka)
    topic = next(factory)()
    produce(kafka, topic, range(3))
    yield Authorized(kafka, properties, topic)
    for _ in factory:
        pass


EVERY_PART = pytest.mark.parametrize("part", NEEDS, ids=lambda part: part.__name__)


# Two tests, so that the scheduler of the tests sees which of them needs the secured broker.
@EVERY_PART
@pytest.mark.kafka
def test_part_needs_exactly_the_documented_acls(real: Authorized, part: Part) -> None:
    check_acls(real, part)


@EVERY_PART
def test_part_needs_exactly_the_documented_acls_of_the_in_memory_cluster(fake: Authorized, part: Part) -> None:
    check_acls(fake, part)


def check_acls(authorized: Authorized, part: Part) -> None:
    if part is join_group_by_kip_848 and version_numbers(KAFKA_VERSION) < (4, 0):
        pytest.skip("the consumer protocol begins with Kafka 4.0")
    topic, group = authorized.topic, f"group-{uuid.uuid4().hex[:8]}"
    names = {"Topic": topic, "Group": group, "TransactionalId": group}
    acls = [Acl(operation, resource, names[resource]) for operation, resource in NEEDS[part]]
    with client_of(authorized.kafka) as anonymous:
        commit_offsets(anonymous, group, {(topic, 0): CommittedOffset(0)}, anonymous.deadline())
    for missing in acls:
        further = [acl for acl in acls if acl != missing]
        allow(authorized.kafka, further)
        with authorized.client(BOB | QUICK) as bob, pytest.raises(KafkaError) as refused:
            part(bob, topic, group)
        # The request that fails first may need Describe only; the error then names the operation to grant as well.
        assert f" on {missing.resource} {missing.name}" in str(refused.value)
        assert re.search(rf"\(it needs .*\b{missing.operation}\b", str(refused.value))
        revoke(authorized.kafka, further)
    allow(authorized.kafka, acls)
    with authorized.client(BOB | QUICK) as bob:
        part(bob, topic, group)
