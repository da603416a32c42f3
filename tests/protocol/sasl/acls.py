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
from spark_kafka_source.local_kafka.users import sasl_properties
from tests.support.secured_kafka import USERS
from tests.support.wait_until import wait_until

ALICE, BOB = (sasl_properties("SCRAM-SHA-256", name, USERS[name]) for name in ("alice", "bob"))
_RESOURCES = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
}


@dataclass(frozen=True)
class Acl:
    """An ACL of bob: `Acl("Read", "Topic", "orders")`. `prefix`: for all names with this prefix."""

    operation: str
    resource: str
    name: str
    prefix: bool = False

    def bound(self, kind: type[Any]) -> Any:
        pattern = ResourcePatternType.PREFIXED if self.prefix else ResourcePatternType.LITERAL
        operation = AclOperation[self.operation.upper()]
        return kind(_RESOURCES[self.resource], self.name, pattern, "User:bob", "*", operation, AclPermissionType.ALLOW)


def allow(kafka: LocalKafka, acls: Collection[Acl]) -> None:
    if acls:
        admin = _admin(kafka)  # pending requests fail when the client is collected
        for made in admin.create_acls([acl.bound(AclBinding) for acl in acls]).values():
            made.result(30)
        wait_until(lambda: _granted(admin) >= _asked(acls), every_s=0.05)


def revoke(kafka: LocalKafka, acls: Collection[Acl]) -> None:
    if acls:
        admin = _admin(kafka)
        for deleted in admin.delete_acls([acl.bound(AclBindingFilter) for acl in acls]).values():
            deleted.result(30)
        wait_until(lambda: not _granted(admin) & _asked(acls), every_s=0.05)


def _asked(acls: Collection[Acl]) -> set[str]:
    return {repr(acl.bound(AclBinding)) for acl in acls}


def _granted(admin: AdminClient) -> set[str]:
    """Return the ACLs that the broker has; it learns of changes after the controller has confirmed them."""
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return {repr(acl) for acl in admin.describe_acls(every).result(30)}


def _admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
