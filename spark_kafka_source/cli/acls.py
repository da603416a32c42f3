"""`pykafka acls`: list, create and delete ACLs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from protocol.admin.acls import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from protocol.admin.admin import Admin
from protocol.errors import AdminFailed
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers, with_options
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.values import choice_of

_COLUMNS = ("principal", "host", "permission", "operation", "resource_type", "resource", "pattern")
_OF_CLUSTER = "kafka-cluster"
_RESOURCES = {
    "topics": ResourceType.TOPIC,
    "groups": ResourceType.GROUP,
    "transactional_ids": ResourceType.TRANSACTIONAL_ID,
    "delegation_tokens": ResourceType.DELEGATION_TOKEN,
    "user_principals": ResourceType.USER,
}
_NOT_CONCRETE = ("UNKNOWN", "ANY")
_OPERATIONS = {choice_of(operation): operation for operation in AclOperation if operation.name not in _NOT_CONCRETE}
# As `kafka-acls.sh --producer` and `--consumer`.
_OF_PRODUCER = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_OF_CONSUMER = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}

_RESOURCE_OPTIONS = (
    click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_topics,
        help="A topic; * for all; repeatable.",
    ),
    click.option(
        "--group", "groups", multiple=True, metavar="NAME", shell_complete=complete_groups, help="A group; repeatable."
    ),
    click.option("--transactional-id", "transactional_ids", multiple=True, metavar="ID", help="Repeatable."),
    click.option("--delegation-token", "delegation_tokens", multiple=True, metavar="ID", help="Repeatable."),
    click.option("--user-principal", "user_principals", multiple=True, metavar="NAME", help="Repeatable."),
    click.option("--cluster", "of_cluster", is_flag=True, help="The cluster."),
)
_FILTER_OPTIONS = (
    *_RESOURCE_OPTIONS,
    click.option("--principal", metavar="User:NAME", help="Only ACLs of this principal."),
    click.option("--host", metavar="ADDRESS", help="Only ACLs for this client address."),
    click.option("--operation", type=click.Choice(list(_OPERATIONS)), help="Only ACLs with this operation."),
    click.option("--permission", type=click.Choice(("allow", "deny")), help="Only ACLs with this permission."),
    click.option(
        "--pattern",
        type=click.Choice(("any", "match", "literal", "prefixed")),
        default="any",
        show_default=True,
        help="How names are compared: match also finds prefixed and wildcard ACLs that apply to the name.",
    ),
)


@click.group()
def acls() -> None:
    """List, create and delete ACLs. The brokers need an authorizer."""


@acls.command("list")
@partial(with_options, options=_FILTER_OPTIONS)
@output_option
@asks_brokers
def list_command(cluster: Cluster, output: str, **filters: Any) -> None:
    """List ACLs: all of them, or those that the options select.

    \b
    Examples:
      pykafka acls list --principal User:alice
      pykafka acls list --topic orders --pattern match -o csv
    """
    print_rows(_COLUMNS, [_row(binding) for binding in _selected(cluster, filters)], output)


@acls.command()
@partial(with_options, options=_RESOURCE_OPTIONS)
@click.option("--principal", "principals", multiple=True, required=True, metavar="User:NAME", help="Repeatable.")
@click.option(
    "--operation", "operations", multiple=True, type=click.Choice(list(_OPERATIONS)), help="An operation; repeatable."
)
@click.option("--producer", is_flag=True, help="The operations of a producer on the topics and transactional ids.")
@click.option("--consumer", is_flag=True, help="The operations of a consumer on the topics and groups.")
@click.option("--deny", is_flag=True, help="Deny instead of allow.")
@click.option("--prefixed", is_flag=True, help="The names are prefixes.")
@click.option("--host", default="*", show_default=True, metavar="ADDRESS", help="The address of clients.")
@output_option
@asks_brokers
def create(
    cluster: Cluster,
    principals: tuple[str, ...],
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    deny: bool,
    prefixed: bool,
    host: str,
    output: str,
    **fields: Any,
) -> None:
    """Create ACLs, and show them. Existing ones stay.

    \b
    Examples:
      pykafka acls create --principal User:alice --consumer --topic orders --group orders-etl
      pykafka acls create --principal User:bob --operation describe --topic orders- --prefixed
    """
    resources = _resources(fields)
    bindings = []
    for kind, name in resources:
        needed = {_OPERATIONS[operation] for operation in operations}
        needed |= {*(_OF_PRODUCER.get(kind, ()) if producer else ()), *(_OF_CONSUMER.get(kind, ()) if consumer else ())}
        permission = AclPermission.DENY if deny else AclPermission.ALLOW
        of_cluster = kind is ResourceType.CLUSTER
        pattern = PatternType.PREFIXED if prefixed and name != "*" and not of_cluster else PatternType.LITERAL
        if not needed:
            raise click.UsageError(f"No operation is given for {choice_of(kind)} {name}.")
        bindings += [
            AclBinding(kind, name, principal, operation, permission, pattern, host)
            for principal in principals
            for operation in sorted(needed)
        ]
    if not bindings:
        raise click.UsageError("Give a resource such as --topic, and --operation, --producer or --consumer.")
    try:
        Admin(cluster.client).create_acls(bindings, timeout_ms=cluster.left_ms)
    except AdminFailed as failed:
        if created := [binding for binding in bindings if binding not in failed.errors]:
            print_rows(_COLUMNS, [_row(binding) for binding in created], output)
        raise
    print_rows(_COLUMNS, [_row(binding) for binding in bindings], output)


@acls.command()
@partial(with_options, options=_FILTER_OPTIONS)
@click.option("--all", "everything", is_flag=True, help="All ACLs of the cluster.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
@asks_brokers
def delete(cluster: Cluster, everything: bool, yes: bool, output: str, **filters: Any) -> None:
    """Show the ACLs that the options select, and delete them after confirmation.

    \b
    Examples:
      pykafka acls delete --principal User:alice --topic orders
      pykafka acls delete --topic orders-test --yes
    """
    selects = any(value for name, value in filters.items() if name != "pattern")
    if selects == everything:
        raise click.UsageError("Give options that select ACLs, or --all.")
    bindings = _selected(cluster, filters)
    print_rows(_COLUMNS, [_row(binding) for binding in bindings], output)
    if not bindings:
        return
    if not yes:
        click.confirm(f"Delete {len(bindings)} ACLs?", abort=True, err=True)
    exact = [AclFilter(**vars(binding)) for binding in bindings]
    Admin(cluster.client).delete_acls(exact, timeout_ms=cluster.left_ms)
    click.echo(f"deleted {len(bindings)} ACLs", err=True)


def _resources(fields: Mapping[str, Any]) -> list[tuple[ResourceType, str]]:
    named = [(kind, name) for option, kind in _RESOURCES.items() for name in fields[option]]
    return [*named, *([(ResourceType.CLUSTER, _OF_CLUSTER)] if fields["of_cluster"] else [])]


def _selected(cluster: Cluster, filters: Mapping[str, Any]) -> list[AclBinding]:
    """Return the ACLs of the named resources, or of all resources if none is named, sorted by all columns."""
    common = {
        "principal": filters["principal"],
        "host": filters["host"],
        "operation": _OPERATIONS.get(filters["operation"], AclOperation.ANY),
        "permission": AclPermission[(filters["permission"] or "any").upper()],
        "pattern_type": PatternType[filters["pattern"].upper()],
    }
    resources: list[tuple[ResourceType, str | None]] = [*_resources(filters)] or [(ResourceType.ANY, None)]
    admin = Admin(cluster.client)
    bindings = {
        binding
        for kind, name in resources
        for binding in admin.describe_acls(AclFilter(kind, name, **common), timeout_ms=cluster.left_ms)
    }
    return sorted(bindings, key=_row)


def _row(acl: AclBinding) -> tuple[str, ...]:
    kinds = (acl.permission, acl.operation, acl.resource_type, acl.pattern_type)
    permission, operation, resource_type, pattern = map(choice_of, kinds)
    return acl.principal, acl.host, permission, operation, resource_type, acl.resource_name, pattern
