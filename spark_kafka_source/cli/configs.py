"""`pykafka configs`: list, describe, set and delete settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from protocol.admin.admin import Admin
from protocol.admin.configs import (
    AlterConfigOp,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
)
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers, pairs
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.secrets import SOURCES, read_secret
from spark_kafka_source.cli.values import choice_of

_TYPES = {choice_of(kind): kind for kind in ConfigResourceType}
_DEFAULT_BROKER = "default"
# Sources of values that were not set dynamically: Kafka's defaults and a broker's file.
_NOT_SET_HERE = (ConfigSource.DEFAULT_CONFIG, ConfigSource.STATIC_BROKER_CONFIG)

_type_argument = click.argument("kind", metavar="TYPE", type=click.Choice(list(_TYPES)))


def _complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a topic or a group, by the type before it."""
    complete = {"topic": complete_topics, "group": complete_groups}.get(context.params.get("kind") or "")
    return complete(context, parameter, incomplete) if complete is not None else []


def _resource(kind: str, name: str) -> ConfigResource:
    of_all = _TYPES[kind] is ConfigResourceType.BROKER and name == _DEFAULT_BROKER
    return ConfigResource(_TYPES[kind], "" if of_all else name)


def _name(resource: ConfigResource) -> str:
    return resource.name or _DEFAULT_BROKER


@click.group()
def configs() -> None:
    """List, describe, set and delete settings of topics, brokers, broker loggers, groups and client metrics.

    The name of a broker is its id, or `default` for the settings of all brokers.
    """


@configs.command("list")
@click.option("--type", "kinds", type=click.Choice(list(_TYPES)), multiple=True, help="Only resources of this type.")
@output_option
@asks_brokers
def list_command(cluster: Cluster, kinds: tuple[str, ...], output: str) -> None:
    """List the resources that can have settings. Needs Kafka 4.1 or later.

    \b
    Examples:
      pykafka configs list
      pykafka configs list --type client-metrics --type group -o json
    """
    resources = Admin(cluster.client).list_config_resources(
        [_TYPES[kind] for kind in kinds], timeout_ms=cluster.left_ms
    )
    names = {number: name for name, number in _TYPES.items()}
    print_rows(("type", "name"), [(names[resource.type], _name(resource)) for resource in resources], output)


@configs.command()
@_type_argument
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_complete_names)
@click.option("--all", "everything", is_flag=True, help="Include defaults and settings of a broker's file.")
@click.option("--setting", "settings", multiple=True, metavar="NAME", help="Only this setting; repeatable.")
@click.option("--documentation", is_flag=True, help="Include Kafka's documentation.")
@output_option
@asks_brokers
def describe(
    cluster: Cluster,
    kind: str,
    names: tuple[str, ...],
    everything: bool,
    settings: tuple[str, ...],
    documentation: bool,
    output: str,
) -> None:
    """Show settings with their source: those that were set dynamically, or all.

    The value of a sensitive setting is unknown to clients.

    \b
    Examples:
      pykafka configs describe broker 1 default
      pykafka configs describe topic orders --setting retention.ms --documentation -o yaml
    """
    resources = [_resource(kind, name) for name in dict.fromkeys(names)]
    described_configs = Admin(cluster.client).describe_configs(
        resources, names=settings or None, documentation=documentation, timeout_ms=cluster.left_ms
    )
    rows = [
        (kind, _name(resource), entry.name, entry.value, entry.source.name, *_details(entry, documentation))
        for resource in resources
        for entry in sorted(described_configs[resource].values(), key=lambda entry: entry.name)
        if everything or settings or entry.source not in _NOT_SET_HERE
    ]
    extra = ("documentation",) if documentation else ()
    print_rows(("type", "name", "setting", "value", "source", "read_only", "sensitive", *extra), rows, output)


def _details(entry: ConfigEntry, documentation: bool) -> tuple[bool | str | None, ...]:
    return (entry.is_read_only, entry.is_sensitive, *((entry.documentation,) if documentation else ()))


@configs.command("set")
@_type_argument
@click.argument("name", metavar="NAME", shell_complete=_complete_names)
@click.argument("settings", metavar="[SETTING=VALUE]...", nargs=-1, callback=pairs)
@click.option("--append", "appended", multiple=True, metavar="SETTING=VALUE", callback=pairs, help="Append to a list.")
@click.option(
    "--subtract", "subtracted", multiple=True, metavar="SETTING=VALUE", callback=pairs, help="Remove from a list."
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="SETTING[=SOURCE]",
    help=f"A setting with a secret value, from a prompt or from {SOURCES}.",
)
@click.option("--dry-run", is_flag=True, help="Let the broker check the change without applying it.")
@asks_brokers
def set_command(
    cluster: Cluster,
    kind: str,
    name: str,
    settings: Mapping[str, str],
    appended: Mapping[str, str],
    subtracted: Mapping[str, str],
    secrets: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Set settings of one resource; other settings stay.

    \b
    Examples:
      pykafka configs set topic orders retention.ms=86400000 cleanup.policy=delete
      pykafka configs set broker 1 --secret listener.name.tls.ssl.keystore.password=file:/run/secrets/keystore --dry-run
    """
    changes = [AlterConfigOp(setting, value) for setting, value in settings.items()]
    changes += [AlterConfigOp(setting, value, AlterConfigOpType.APPEND) for setting, value in appended.items()]
    changes += [AlterConfigOp(setting, value, AlterConfigOpType.SUBTRACT) for setting, value in subtracted.items()]
    for text in secrets:
        setting, equals, source = text.partition("=")
        value = read_secret(source if equals else None, f"value of {setting}", may_be_empty=True)
        changes.append(AlterConfigOp(setting, value.reveal()))
    if not changes:
        raise click.UsageError("Give SETTING=VALUE, --append, --subtract or --secret.")
    resource = _resource(kind, name)
    Admin(cluster.client).incremental_alter_configs(
        {resource: changes}, validate_only=dry_run, timeout_ms=cluster.left_ms
    )
    click.echo(f"{'valid, not changed' if dry_run else 'changed'}: {kind} {_name(resource)}")


@configs.command()
@_type_argument
@click.argument("name", metavar="NAME", shell_complete=_complete_names)
@click.argument("settings", metavar="SETTING...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_brokers
def delete(cluster: Cluster, kind: str, name: str, settings: tuple[str, ...], yes: bool) -> None:
    """Delete settings of one resource, after confirmation; the defaults apply again.

    \b
    Examples:
      pykafka configs delete topic orders retention.ms
      pykafka configs delete broker default log.cleaner.threads --yes
    """
    resource = _resource(kind, name)
    if not yes:
        click.confirm(f"Delete {', '.join(settings)} of {kind} {_name(resource)}?", abort=True, err=True)
    changes = [AlterConfigOp(setting, None, AlterConfigOpType.DELETE) for setting in settings]
    Admin(cluster.client).incremental_alter_configs({resource: changes}, timeout_ms=cluster.left_ms)
    click.echo(f"changed: {kind} {_name(resource)}")
