"""Administrative requests about access: ACLs, client quotas, and the SCRAM credentials of users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

from protocol.admin.acls import AclOperation, AclPermission, PatternType, ResourceType
from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.authorizer import Acl, Authorizer
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.quotas import Entity, check_quota
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of
from protocol.testing.fake_kafka.sasl import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential

_EXACT, _DEFAULT = 0, 1
_SCRAM_IDS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}

# -- DescribeAcls, CreateAcls, DeleteAcls ----------------------------------------------------------


def _if_enabled(
    act: Callable[[Authorizer, Body], Body], answers: str, requested: str = ""
) -> Callable[[Broker, Request], Body]:
    """Return a handler that refuses the request without an authorizer, or without an ACL of the cluster.

    The refusal is in each row of the field `answers`, one per row of `requested`; at the top if there is no such field.
    """

    def check(broker: Broker, request: Request) -> Body:
        if not broker.cluster.authorizer.enabled:
            raise Refused(ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
        broker.cluster.authorizer.require(request.api, "Cluster")
        return {}

    def handler(broker: Broker, request: Request) -> Body:
        checked = {"error_message": None, **row_of(lambda: check(broker, request))}
        if not checked["error_code"]:
            return act(broker.cluster.authorizer, request.body)
        return {answers: [checked for _ in request.body[requested]]} if requested else {**checked, answers: []}

    return handler


def _create_acls(authorizer: Authorizer, body: Body) -> Body:
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


def _describe_acls(authorizer: Authorizer, body: Body) -> Body:
    by_resource: dict[tuple[int, str, int], list[Body]] = {}
    for acl in authorizer.acls:
        if _selects_acl(body, acl):
            key = (acl.resource_type, acl.resource_name, acl.pattern_type)
            by_resource.setdefault(key, []).append(
                {
                    "principal": acl.principal,
                    "host": acl.host,
                    "operation": acl.operation,
                    "permission_type": acl.permission_type,
                }
            )
    resources = [
        {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
        for (kind, name, pattern), acls in by_resource.items()
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "resources": resources}


def _delete_acls(authorizer: Authorizer, body: Body) -> Body:
    results = []
    for row in body["filters"]:
        acls = [acl for acl in authorizer.acls if _selects_acl(row, acl)]
        authorizer.acls = [acl for acl in authorizer.acls if acl not in acls]
        rows = [{"error_code": ErrorCode.NONE, "error_message": None, **asdict(acl)} for acl in acls]
        results.append({"error_code": ErrorCode.NONE, "error_message": None, "matching_acls": rows})
    return {"filter_results": results}


def _selects_acl(acl_filter: Body, acl: Acl) -> bool:
    """Return True if a filter of DescribeAcls or DeleteAcls selects an ACL."""
    name, pattern = acl_filter["resource_name_filter"], acl_filter["pattern_type_filter"]
    if pattern == PatternType.MATCH:
        named = name is None or acl.applies_to(acl.resource_type, name)
    else:
        named = name in (None, acl.resource_name) and pattern in (PatternType.ANY, acl.pattern_type)
    return (
        named
        and acl_filter["resource_type_filter"] in (ResourceType.ANY, acl.resource_type)
        and acl_filter["principal_filter"] in (None, acl.principal)
        and acl_filter["host_filter"] in (None, acl.host)
        and acl_filter["operation"] in (AclOperation.ANY, acl.operation)
        and acl_filter["permission_type"] in (AclPermission.ANY, acl.permission_type)
    )


create_acls = _if_enabled(_create_acls, "results", "creations")
describe_acls = _if_enabled(_describe_acls, "resources")
delete_acls = _if_enabled(_delete_acls, "filter_results", "filters")


# -- DescribeClientQuotas, AlterClientQuotas -------------------------------------------------------


def describe_client_quotas(broker: Broker, request: Request) -> Body:
    """Handle DescribeClientQuotas."""
    broker.cluster.authorizer.require(request.api, "Cluster")
    components, strict = request.body["components"], request.body["strict"]
    entries = [
        {"entity": _entity_rows(entity), "values": [{"key": key, "value": value} for key, value in values.items()]}
        for entity, values in broker.cluster.quotas.values.items()
        if all(_selects_quota(component, dict(entity)) for component in components)
        and (not strict or len(entity) == len(components))
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "entries": entries}


def _entity_rows(entity: Entity) -> list[Body]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in sorted(entity, key=lambda entity: entity[0])]


def _selects_quota(component: Body, names: Mapping[str, str | None]) -> bool:
    kind, match_type = component["entity_type"], component["match_type"]
    if kind not in names:
        return False
    name = names[kind]
    if match_type == _EXACT:
        return bool(name == component["match"])
    return bool((name is None) == (match_type == _DEFAULT))


def alter_client_quotas(broker: Broker, request: Request) -> Body:
    """Handle AlterClientQuotas."""
    quotas, validate_only = broker.cluster.quotas.values, request.body["validate_only"]

    def alter(row: Body) -> Body:
        broker.cluster.authorizer.require(request.api, "Cluster")
        entity = frozenset((component["entity_type"], component["entity_name"]) for component in row["entity"])
        for operation in row["ops"]:
            check_quota(entity, operation)
        values = dict(quotas.get(entity, {}))
        for operation in row["ops"]:
            if operation["remove"]:
                values.pop(operation["key"], None)
            else:
                values[operation["key"]] = operation["value"]
        if not validate_only:
            quotas[entity] = values
            if not values:
                del quotas[entity]
        return {"error_message": None}

    rows = [row_of(partial(alter, row), entity=row["entity"]) for row in request.body["entries"]]
    return {"entries": [{"error_message": None, **row} for row in rows]}


# -- DescribeUserScramCredentials, AlterUserScramCredentials ---------------------------------------


def describe_scram_credentials(broker: Broker, request: Request) -> Body:
    """Handle DescribeUserScramCredentials."""
    broker.cluster.authorizer.require(request.api, "Cluster")
    scram, user_names = broker.cluster.credentials.scram, request.body["users"]
    users = [row["name"] for row in user_names] if user_names else sorted({user for user, _ in scram})

    def infos(user: str) -> Body:
        credentials = [
            {"mechanism": _SCRAM_IDS[mechanism], "iterations": credential.iterations}
            for (owner, mechanism), credential in scram.items()
            if owner == user
        ]
        if not credentials:
            message = f"Attempt to describe a user credential that does not exist: {user}"
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, error_message=message)
        return {"credential_infos": credentials, "error_message": None}

    rows = [row_of(partial(infos, user), user=user) for user in users]
    return {"error_code": ErrorCode.NONE, "error_message": None, "results": rows}


def alter_scram_credentials(broker: Broker, request: Request) -> Body:
    """Handle AlterUserScramCredentials: delete and store credentials of users."""
    scram = broker.cluster.credentials.scram
    names = {number: mechanism for mechanism, number in _SCRAM_IDS.items()}

    def alter(user: str) -> Body:
        broker.cluster.authorizer.require(request.api, "Cluster")
        deleted = [row for row in request.body["deletions"] if row["name"] == user]
        stored = [row for row in request.body["upsertions"] if row["name"] == user]
        for row in (*deleted, *stored):
            if row["mechanism"] not in names:
                raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        for row in stored:
            if not MIN_ITERATIONS <= row["iterations"] <= MAX_ITERATIONS:
                raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL)
        for row in deleted:
            if scram.pop((user, names[row["mechanism"]]), None) is None:
                message = "Attempt to delete a user credential that does not exist"
                raise Refused(ErrorCode.RESOURCE_NOT_FOUND, error_message=message)
        for row in stored:
            credential = ScramCredential(bytes(row["salt"]), row["iterations"], bytes(row["salted_password"]))
            scram[user, names[row["mechanism"]]] = credential
        return {"error_message": None}

    users = dict.fromkeys(row["name"] for kind in ("deletions", "upsertions") for row in request.body[kind])
    return {"results": [row_of(partial(alter, user), user=user) for user in users]}
