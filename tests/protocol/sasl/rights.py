"""What bob may do: ACLs that a test gives him and takes back; alice may do everything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.users import signed_in
from tests.secured_kafka import USERS
from tests.wait_until import wait_until

ALICE, BOB = (signed_in("SCRAM-SHA-256", name, USERS[name]) for name in ("alice", "bob"))
_RESOURCES = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
}


@dataclass(frozen=True)
class Right:
    """An ACL of bob's, in Kafka's words: `Right("Read", "Topic", "orders")`. `prefix`: for all whose names begin so."""

    operation: str
    resource: str
    name: str
    prefix: bool = False

    def bound(self, kind: type[Any]) -> Any:
        pattern = ResourcePatternType.PREFIXED if self.prefix else ResourcePatternType.LITERAL
        operation = AclOperation[self.operation.upper()]
        return kind(_RESOURCES[self.resource], self.name, pattern, "User:bob", "*", operation, AclPermissionType.ALLOW)


def allow(kafka: LocalKafka, rights: Collection[Right]) -> None:
    if rights:
        admin = _admin(kafka)  # what it has begun ends with it
        for made in admin.create_acls([right.bound(AclBinding) for right in rights]).values():
            made.result(30)
        wait_until(lambda: _granted(admin) >= _asked(rights), every_s=0.05)


def take_back(kafka: LocalKafka, rights: Collection[Right]) -> None:
    if rights:
        admin = _admin(kafka)
        for gone in admin.delete_acls([right.bound(AclBindingFilter) for right in rights]).values():
            gone.result(30)
        wait_until(lambda: not _granted(admin) & _asked(rights), every_s=0.05)


def _asked(rights: Collection[Right]) -> set[str]:
    return {repr(right.bound(AclBinding)) for right in rights}


def _granted(admin: AdminClient) -> set[str]:
    """What the broker knows of, which hears of changes after the controller has said that they are made."""
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return {repr(each) for each in admin.describe_acls(every).result(30)}


def _admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
