"""Create, describe and delete ACLs: bindings of a principal, a host, an operation and a resource pattern.

Runs in the caller's thread, in the shared retry loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from protocol.admin.resources import Operations, Row, ask_each
from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import KafkaError
from protocol.wire.messages.m29_acls import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS


class ResourceType(IntEnum):
    """Kafka's types of resources with ACLs. `ANY` is for filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a binding applies to resources. `ANY` and `MATCH` are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's operations. `ANY` is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Permission of a binding: allow or deny. `ANY` is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True)
class AclBinding:
    """One ACL.

    Attributes
    ----------
    resource_name
        Name, prefix (`PatternType.PREFIXED`), or `"*"` for all; "kafka-cluster" for the cluster.
    principal
        Such as "User:alice"; `"User:*"` for all users.
    host
        IP address of the client; `"*"` for all.
    """

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"

    def __str__(self) -> str:
        permission, operation, kind, pattern = (
            kind.name.lower() for kind in (self.permission, self.operation, self.resource_type, self.pattern_type)
        )
        return f"{permission} {self.principal} {operation} on {kind} {self.resource_name} ({pattern}) from {self.host}"


@dataclass(frozen=True)
class AclFilter:
    """Selects ACLs; the defaults select all.

    `pattern_type=MATCH` selects literal, prefixed and wildcard bindings that apply to `resource_name`.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    pattern_type: PatternType = PatternType.ANY
    host: str | None = None


class AclOperations(Operations):
    """ACLs of a cluster; its brokers need an authorizer, else SECURITY_DISABLED is raised."""

    def create_acls(self, acls: Iterable[AclBinding], *, timeout_ms: float | None = None) -> None:
        """Create ACLs; an existing one stays as it is.

        Raises
        ------
        AdminFailed
            Some were refused (SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, …).
        """
        batch = ask_each(
            self._client,
            CREATE_ACLS,
            acls,
            lambda pending: {"creations": [_creation(binding) for binding in pending]},
            lambda reply, pending: zip(pending, reply["results"], strict=False),
            self._deadline(timeout_ms),
        )
        batch.results("CreateAcls", lambda acl, row: None)

    def describe_acls(self, selected: AclFilter = AclFilter(), *, timeout_ms: float | None = None) -> list[AclBinding]:
        """Return the ACLs that a filter selects.

        Raises
        ------
        BrokerError
            SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED, …
        """
        reply = self._ask(DESCRIBE_ACLS, _filter(selected), self._deadline(timeout_ms))
        return [_binding({**resource, **acl}) for resource in reply["resources"] for acl in resource["acls"]]

    def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout_ms: float | None = None
    ) -> dict[AclFilter, list[AclBinding]]:
        """Delete the ACLs that filters select, and return the deleted ones by filter.

        Raises
        ------
        AdminFailed
            Some filters failed, or some of their ACLs were not deleted.
        """
        batch = ask_each(
            self._client,
            DELETE_ACLS,
            filters,
            lambda pending: {"filters": [_filter(binding_filter) for binding_filter in pending]},
            lambda reply, pending: zip(pending, reply["filter_results"], strict=False),
            self._deadline(timeout_ms),
        )
        for key, row in list(batch.items()):
            for binding_row in row["matching_acls"]:
                if binding_row["error_code"] != ErrorCode.NONE:
                    batch.errors[key] = _not_deleted(binding_row)
                    batch.pop(key, None)
        return batch.results("DeleteAcls", lambda key, row: [_binding(acl) for acl in row["matching_acls"]])


def _creation(acl: AclBinding) -> dict[str, Any]:
    return {
        "resource_type": int(acl.resource_type),
        "resource_name": acl.resource_name,
        "resource_pattern_type": int(acl.pattern_type),
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def _filter(selected: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(selected.resource_type),
        "resource_name_filter": selected.resource_name,
        "pattern_type_filter": int(selected.pattern_type),
        "principal_filter": selected.principal,
        "host_filter": selected.host,
        "operation": int(selected.operation),
        "permission_type": int(selected.permission),
    }


def _binding(row: Row) -> AclBinding:
    return AclBinding(
        _enum_member(ResourceType, row["resource_type"]),
        row["resource_name"],
        row["principal"],
        _enum_member(AclOperation, row["operation"]),
        _enum_member(AclPermission, row["permission_type"]),
        _enum_member(PatternType, row["pattern_type"]),
        row["host"],
    )


def _not_deleted(row: Row) -> KafkaError:
    description = f"DeleteAcls of {_binding(row)}: {row['error_message'] or ''}"
    return broker_error(row["error_code"], description, api="DeleteAcls", resource=row["resource_name"])


def _enum_member(kind: Any, number: int) -> Any:
    """Return the member of an enumeration; UNKNOWN for a number newer than this client."""
    try:
        return kind(number)
    except ValueError:
        return kind.UNKNOWN
