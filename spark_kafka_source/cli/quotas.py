"""`pykafka quotas`: list, set and delete quotas of users, clients and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from protocol.admin.admin import Admin
from protocol.admin.users import QuotaEntity, quota_entity
from spark_kafka_source.cli.connection import Cluster, asks_brokers, pairs, with_options
from spark_kafka_source.cli.rows import output_option, print_rows

_KINDS = ("user", "client_id", "ip")
_ENTITY_OPTIONS = (
    click.option("--user", metavar="NAME", help="A user."),
    click.option("--user-default", is_flag=True, help="Users that have no specific quota."),
    click.option("--client-id", metavar="ID", help="A client id."),
    click.option("--client-id-default", is_flag=True, help="Client ids that have no specific quota."),
    click.option("--ip", metavar="ADDRESS", help="A client address."),
    click.option("--ip-default", is_flag=True, help="Addresses that have no specific quota."),
)


@click.group()
def quotas() -> None:
    """List, set and delete quotas of users, client ids and addresses."""


@quotas.command("list")
@partial(with_options, options=_ENTITY_OPTIONS)
@output_option
@asks_brokers
def list_command(cluster: Cluster, output: str, **fields: Any) -> None:
    """List quotas: all of them, or those of entities that the options select.

    \b
    Examples:
      pykafka quotas list
      pykafka quotas list --user alice -o json
    """
    quotas_by_entity = _found(cluster, fields)
    print_rows(("entity", "quota", "value"), _rows(quotas_by_entity), output)


@quotas.command("set")
@partial(with_options, options=_ENTITY_OPTIONS)
@click.argument("settings", metavar="QUOTA=VALUE...", nargs=-1, required=True, callback=pairs)
@click.option("--dry-run", is_flag=True, help="Let the broker check the change without applying it.")
@asks_brokers
def set_command(cluster: Cluster, settings: Mapping[str, str], dry_run: bool, **fields: Any) -> None:
    """Set quotas of an entity, a user, a client id, both, or an address.

    The quotas are producer_byte_rate, consumer_byte_rate (bytes per second and broker), request_percentage,
    controller_mutation_rate and, of an address, connection_creation_rate.

    \b
    Examples:
      pykafka quotas set --user alice producer_byte_rate=1048576 consumer_byte_rate=2097152
      pykafka quotas set --client-id-default request_percentage=200
    """
    try:
        values = {name: float(value) for name, value in settings.items()}
    except ValueError as error:
        raise click.UsageError(f"A quota is a number: {error}.") from error
    entity = _entity(fields)
    Admin(cluster.client).alter_client_quotas({entity: values}, validate_only=dry_run, timeout_ms=cluster.left_ms)
    click.echo(f"{'valid, not changed' if dry_run else 'changed'}: {_text(entity)}")


@quotas.command()
@partial(with_options, options=_ENTITY_OPTIONS)
@click.argument("names", metavar="[QUOTA]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_brokers
def delete(cluster: Cluster, names: tuple[str, ...], yes: bool, **fields: Any) -> None:
    """Delete quotas of an entity, by default all of it, after confirmation.

    \b
    Examples:
      pykafka quotas delete --user alice
      pykafka quotas delete --user alice producer_byte_rate --yes
    """
    entity, admin = _entity(fields), Admin(cluster.client)
    present_quotas = _found(cluster, fields).get(entity, {})
    if missing := sorted(set(names) - set(present_quotas)):
        raise click.ClickException(f"{_text(entity)} has no quota {missing[0]}.")
    if not present_quotas:
        raise click.ClickException(f"{_text(entity)} has no quotas.")
    removed = sorted(names or present_quotas)
    if not yes:
        click.confirm(f"Delete {', '.join(removed)} of {_text(entity)}?", abort=True, err=True)
    admin.alter_client_quotas({entity: dict.fromkeys(removed)}, timeout_ms=cluster.left_ms)
    click.echo(f"deleted {', '.join(removed)} of {_text(entity)}")


def _components(fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the components of an entity by kind; None is the default entity."""
    components: dict[str, str | None] = {}
    for kind in _KINDS:
        name, default = fields[kind], fields[f"{kind}_default"]
        if name is not None and default:
            option = kind.replace("_", "-")
            raise click.UsageError(f"Give either --{option} or --{option}-default.")
        if name is not None or default:
            components[kind] = name
    return components


def _entity(fields: Mapping[str, Any]) -> QuotaEntity:
    components = _components(fields)
    if not components:
        raise click.UsageError("Give --user, --client-id, --ip, or one of --user-default, …")
    return quota_entity(**components)


def _text(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)


def _found(cluster: Cluster, fields: Mapping[str, Any]) -> dict[QuotaEntity, dict[str, float]]:
    components: dict[str, Any] = _components(fields)
    return Admin(cluster.client).describe_client_quotas(timeout_ms=cluster.left_ms, **components)


def _rows(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> list[tuple[str, str, float]]:
    return sorted((_text(entity), name, value) for entity, values in quotas.items() for name, value in values.items())
