"""ACLs: the rules of Kafka's `StandardAuthorizer`.

The authorizer is on if `authorizer.class.name` is set. `super.users` and `allow.everyone.if.no.acl.found` are as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from protocol.acls import CODES, OPERATIONS
from protocol.admin.acls import AclOperation, AclPermission, PatternType, ResourceType
from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Refused
from protocol.wire.schema import Api

ITSELF = "User:the cluster itself"
"""The principal of methods of the cluster; it is allowed everything."""

_CLUSTER_NAME = "kafka-cluster"
_TYPES = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "Cluster": ResourceType.CLUSTER,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
}
_REFUSALS = {resource: code for code, (resource, _) in CODES.items()}
_IMPLY_DESCRIBE = (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
_OPERATIONS = {operation.name.replace("_", "").lower(): operation for operation in AclOperation}


@dataclass(frozen=True)
class Acl:
    """One ACL, with Kafka's numbers of types, patterns, operations and permissions."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def applies_to(self, resource_type: int, name: str) -> bool:
        """Return True if the resource pattern matches a resource."""
        if self.resource_type != resource_type:
            return False
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, "*")


class Authorizer:
    """All ACLs, and the principal of the request that the cluster handles now."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.acls: list[Acl] = []
        self.principal = ITSELF
        self._settings = settings
        self._denied: list[tuple[AclOperation, ResourceType, str]] = []

    def deny(self, operation: str, resource: str, name: str) -> Callable[[], None]:
        """Deny an operation to all principals but super users; return the function that allows it again."""
        denied = _OPERATIONS[operation.lower()], _TYPES[resource], name
        self._denied.append(denied)
        return lambda: self._denied.remove(denied)

    @property
    def enabled(self) -> bool:
        """True if `authorizer.class.name` is set."""
        return bool(self._settings.get("authorizer.class.name"))

    def allows(self, operation: str, resource: str, name: str = _CLUSTER_NAME) -> bool:
        """Return True if the present principal may do an operation, such as "Read" on "Topic"."""
        supers = self._settings.get("super.users", "").split(";")
        if not self.enabled or self.principal == ITSELF or self.principal in supers:
            return True
        needed = _OPERATIONS[operation.lower()]
        if (needed, _TYPES[resource], name) in self._denied:
            return False
        matching = [acl for acl in self.acls if acl.applies_to(_TYPES[resource], name)]
        if not matching:
            return self._settings.get("allow.everyone.if.no.acl.found") == "true"
        own = [acl for acl in matching if acl.principal in (self.principal, "User:*")]
        if any(
            acl.permission_type == AclPermission.DENY and acl.operation in (needed, AclOperation.ALL) for acl in own
        ):
            return False
        enough = {needed, AclOperation.ALL, *_implying(needed)}
        return any(acl.permission_type == AclPermission.ALLOW and acl.operation in enough for acl in own)

    def allows_on_any_topic(self, operation: str) -> bool:
        """Return True if an ACL allows the present principal an operation on some topic."""
        names = {acl.resource_name for acl in self.acls if acl.resource_type == ResourceType.TOPIC}
        return not self.enabled or any(self.allows(operation, "Topic", name) for name in (*names, ""))

    def may(self, api: Api, resource: str, name: str = _CLUSTER_NAME) -> bool:
        """Return True if the present principal may send a request about a resource."""
        operations = OPERATIONS[resource]
        return self.allows(operations.get(api.name, operations[""]), resource, name)

    def require(self, api: Api, resource: str, name: str = _CLUSTER_NAME) -> None:
        """Raise `Refused` unless the present principal may send a request about a resource."""
        if not self.may(api, resource, name):
            raise Refused(next(code for code in ErrorCode if code == _REFUSALS[resource]))


def _implying(operation: AclOperation) -> tuple[AclOperation, ...]:
    """Return the operations that include another one."""
    if operation == AclOperation.DESCRIBE:
        return _IMPLY_DESCRIBE
    return (AclOperation.ALTER_CONFIGS,) if operation == AclOperation.DESCRIBE_CONFIGS else ()
