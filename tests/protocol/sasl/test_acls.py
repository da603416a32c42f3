"""Each part of the client with exactly the rights that docs/security.md says; and what is said when one lacks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from protocol.admin.groups import delete_group, describe_group
from protocol.cluster.client import Client
from protocol.config import parse_producer
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer_group.config import parse_group_consumer
from protocol.consumer_group.kafka_consumer import KafkaConsumer
from protocol.errors import KafkaError
from protocol.group.offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.kafka_terms import LATEST
from protocol.producer.async_producer import AsyncProducer
from protocol.producer.transactional_producer import TransactionalProducer
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.users import signed_in
from tests.conftest import topic_factory
from tests.protocol.consumer.consuming import client_of, produce, ranges_of, reader, rows_of
from tests.protocol.sasl.conftest import ClientFactory
from tests.secured_kafka import USERS, SecuredKafka

pytestmark = pytest.mark.kafka

BOB = signed_in("SCRAM-SHA-256", "bob", USERS["bob"])
QUICK = {"default.api.timeout.ms": "8000"}


def read(client: Client, topic: str, group: str) -> None:
    assert rows_of(reader(client, ranges_of(client, topic, 1)))


def commit(client: Client, topic: str, group: str) -> None:
    commit_offsets(client, group, {(topic, 0): CommittedOffset(1)}, client.deadline())
    assert fetch_offsets(client, group, [(topic, 0)], client.deadline())


def be_member(client: Client, topic: str, group: str) -> None:
    config = parse_group_consumer({"group.id": group, "auto.offset.reset": "earliest", **QUICK})
    with KafkaConsumer(client, config) as consumer:
        consumer.subscribe([topic])
        deadline = client.deadline()
        while not len(consumer.poll(timeout_ms=500)):
            assert not deadline.passed


def lag(client: Client, topic: str, group: str) -> None:
    assert fetch_offsets(client, group, [(topic, 0)], client.deadline(), require_stable=False)
    assert list_offsets(client, {(topic, 0): LATEST})


def write(client: Client, topic: str, group: str) -> None:
    producer = AsyncProducer(client, parse_producer({}))
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


Part = Callable[[Client, str, str], None]
# What each part needs: (operation, resource). As in docs/security.md.
NEEDS: dict[Part, list[tuple[str, str]]] = {
    read: [("Read", "Topic")],
    commit: [("Read", "Group"), ("Read", "Topic")],
    be_member: [("Read", "Group"), ("Read", "Topic")],
    lag: [("Describe", "Group"), ("Describe", "Topic")],
    write: [("Write", "Topic")],
    transact: [("Write", "TransactionalId"), ("Write", "Topic")],
    describe: [("Describe", "Group")],
    delete: [("Delete", "Group")],
}


@pytest.fixture
def topic(secured: SecuredKafka) -> Iterator[str]:
    """With a record in it, and a group of the same name that has committed an offset."""
    factory = topic_factory(secured.kafka)
    name = next(factory)()
    produce(secured.kafka, name, range(3))
    yield name
    for _ in factory:
        pass


def admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


def binding(operation: str, resource: str, name: str, kind: type[Any] = AclBinding) -> Any:
    where = (
        ResourceType[{"TransactionalId": "TRANSACTIONAL_ID"}.get(resource, resource.upper())],
        name,
        ResourcePatternType.LITERAL,
    )
    return kind(*where, "User:bob", "*", AclOperation[operation.upper()], AclPermissionType.ALLOW)


def allow(kafka: LocalKafka, rights: list[tuple[str, str]], topic: str, group: str) -> None:
    names = {"Topic": topic, "Group": group, "TransactionalId": group}
    if not rights:
        return
    asking = admin(kafka)
    for made in asking.create_acls([binding(*right, names[right[1]]) for right in rights]).values():
        made.result(30)


def take_back(kafka: LocalKafka, rights: list[tuple[str, str]], topic: str, group: str) -> None:
    names = {"Topic": topic, "Group": group, "TransactionalId": group}
    filters = [binding(*right, names[right[1]], AclBindingFilter) for right in rights]
    if not rights:
        return
    asking = admin(kafka)
    for gone in asking.delete_acls(filters).values():
        gone.result(30)


@pytest.mark.parametrize("part", NEEDS, ids=lambda part: part.__name__)
def test_a_part_needs_these_rights_and_no_others(
    secured: SecuredKafka, client: ClientFactory, topic: str, part: Part
) -> None:
    rights, group = NEEDS[part], f"group-{uuid.uuid4().hex[:8]}"
    with client_of(secured.kafka) as anonymous:
        commit_offsets(anonymous, group, {(topic, 0): CommittedOffset(0)}, anonymous.deadline())
    # The leader of a classic group waits for topics that it may not know of, as for those that are not there yet.
    for missing in rights[:1] if part is be_member else rights:
        others = [right for right in rights if right != missing]
        allow(secured.kafka, others, topic, group)
        with client(BOB | QUICK) as bob, pytest.raises(KafkaError) as refused:
            part(bob, topic, group)
        operation, resource = missing
        name = topic if resource == "Topic" else group
        # To be told of a topic or a coordinator takes Describe, which every other right includes.
        assert any(f"(it needs {each} on {resource} {name})" in str(refused.value) for each in (operation, "Describe"))
        take_back(secured.kafka, others, topic, group)
    allow(secured.kafka, rights, topic, group)
    with client(BOB | QUICK) as bob:
        part(bob, topic, group)
