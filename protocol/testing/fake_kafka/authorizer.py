"""ACLs: the rules of Kafka's `StandardAuthorizer`, and DescribeAcls, CreateAcls, DeleteAcls.

The authorizer is on if `authorizer.class.name` is set. `super.users` and `allow.everyone.if.no.acl.found` are as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from protocol.acls import CODES, OPERATIONS
from protocol.admin.acls import AclOperation, AclPermission, PatternType, ResourceType
from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of
from protocol.wire.schema import Api

if TYPE_CHECKING:
    from protocol.testing.fake_kafka.broker import Broker

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
_OPERATIONS = {each.name.replace("_", "").lower(): each for each in AclOperation}


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

    @property
    def enabled(self) -> bool:
        """True if `authorizer.class.name` is set."""
        return bool(self._settings.get("authorizer.class.name"))

    def allows(self, operation: str, resource: str, name: str = _CLUSTER_NAME) -> bool:
        """Return True if the present principal may do an operation, such as "Read" on "Topic"."""
        supers = self._settings.get("super.users", "").split(";")
        if not self.enabled or self.principal == ITSELF or self.principal in supers:
            return True
        wanted = _OPERATIONS[operation.lower()]
        matching = [each for each in self.acls if each.applies_to(_TYPES[resource], name)]
        if not matching:
            return self._settings.get("allow.everyone.if.no.acl.found") == "true"
        own = [each for each in matching if each.principal in (self.principal, "User:*")]
        if any(
            each.permission_type == AclPermission.DENY and each.operation in (wanted, AclOperation.ALL) for each in own
        ):
            return False
        enough = {wanted, AclOperation.ALL, *_implying(wanted)}
        return any(each.permission_type == AclPermission.ALLOW and each.operation in enough for each in own)

    def allows_on_any_topic(self, operation: str) -> bool:
        """Return True if an ACL allows the present principal an operation on some topic."""
        names = {each.resource_name for each in self.acls if each.resource_type == ResourceType.TOPIC}
        return not self.enabled or any(self.allows(operation, "Topic", name) for name in (*names, ""))

    def may(self, api: Api, resource: str, name: str = _CLUSTER_NAME) -> bool:
        """Return True if the present principal may send a request about a resource."""
        operations = OPERATIONS[resource]
        return self.allows(operations.get(api.name, operations[""]), resource, name)

    def require(self, api: Api, resource: str, name: str = _CLUSTER_NAME) -> None:
        """Raise `Refused` unless the present principal may send a request about a resource."""
        if not self.may(api, resource, name):
            raise Refused(next(each for each in ErrorCode if each == _REFUSALS[resource]))


def _implying(operation: AclOperation) -> tuple[AclOperation, ...]:
    """Return the operations that include another one."""
    if operation == AclOperation.DESCRIBE:
        return _IMPLY_DESCRIBE
    return (AclOperation.ALTER_CONFIGS,) if operation == AclOperation.DESCRIBE_CONFIGS else ()


# -- requests --------------------------------------------------------------------------------------


def _enabled(
    act: Callable[[Authorizer, Body], Body], answers: str, asked: str = ""
) -> Callable[[Broker, Request], Body]:
    """Return a handler that refuses the request without an authorizer, or without an ACL of the cluster.

    The refusal is in each row of the field `answers`, one per row of `asked`; at the top if there is no such field.
    """

    def check(broker: Broker, request: Request) -> Body:
        broker.cluster.faults.refuse(request.api, broker.node_id)
        if not broker.cluster.authorizer.enabled:
            raise Refused(ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
        broker.cluster.authorizer.require(request.api, "Cluster")
        return {}

    def handler(broker: Broker, request: Request) -> Body:
        checked = {"error_message": None, **row_of(lambda: check(broker, request))}
        if not checked["error_code"]:
            return act(broker.cluster.authorizer, request.body)
        return {answers: [checked for _ in request.body[asked]]} if asked else {**checked, answers: []}

    return handler


def _create(authorizer: Authorizer, body: Body) -> Body:
    results = []
    for row in body["creations"]:
        made = Acl(
            row["resource_type"],
            row["resource_name"],
            row["resource_pattern_type"],
            row["principal"],
            row["host"],
            row["operation"],
            row["permission_type"],
        )
        if made not in authorizer.acls:
            authorizer.acls.append(made)
        results.append({"error_code": ErrorCode.NONE, "error_message": None})
    return {"results": results}


def _describe(authorizer: Authorizer, body: Body) -> Body:
    by_resource: dict[tuple[int, str, int], list[Body]] = {}
    for each in authorizer.acls:
        if _selects(body, each):
            key = (each.resource_type, each.resource_name, each.pattern_type)
            by_resource.setdefault(key, []).append(
                {
                    "principal": each.principal,
                    "host": each.host,
                    "operation": each.operation,
                    "permission_type": each.permission_type,
                }
            )
    resources = [
        {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
        for (kind, name, pattern), acls in by_resource.items()
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "resources": resources}


def _delete(authorizer: Authorizer, body: Body) -> Body:
    results = []
    for row in body["filters"]:
        gone = [each for each in authorizer.acls if _selects(row, each)]
        authorizer.acls = [each for each in authorizer.acls if each not in gone]
        rows = [{"error_code": ErrorCode.NONE, "error_message": None, **asdict(each)} for each in gone]
        results.append({"error_code": ErrorCode.NONE, "error_message": None, "matching_acls": rows})
    return {"filter_results": results}


def _selects(wanted: Body, acl: Acl) -> bool:
    """Return True if a filter of DescribeAcls or DeleteAcls selects an ACL."""
    name, pattern = wanted["resource_name_filter"], wanted["pattern_type_filter"]
    if pattern == PatternType.MATCH:
        named = name is None or acl.applies_to(acl.resource_type, name)
    else:
        named = name in (None, acl.resource_name) and pattern in (PatternType.ANY, acl.pattern_type)
    return (
        named
        and wanted["resource_type_filter"] in (ResourceType.ANY, acl.resource_type)
        and wanted["principal_filter"] in (None, acl.principal)
        and wanted["host_filter"] in (None, acl.host)
        and wanted["operation"] in (AclOperation.ANY, acl.operation)
        and wanted["permission_type"] in (AclPermission.ANY, acl.permission_type)
    )


create_acls = _enabled(_create, "results", "creations")
describe_acls = _enabled(_describe, "resources")
delete_acls = _enabled(_delete, "filter_results", "filters")
