"""ACLs of bob, which a test grants and revokes; alice is a super user."""

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
    """An ACL of bob: `Right("Read", "Topic", "orders")`. `prefix`: for all names that begin so."""

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
        admin = _admin(kafka)  # pending requests fail when the client is collected
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
    """Return the ACLs that the broker has; it learns of changes after the controller has confirmed them."""
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return {repr(each) for each in admin.describe_acls(every).result(30)}


def _admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
