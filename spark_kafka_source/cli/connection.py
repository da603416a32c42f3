"""The options of every command that sends requests to brokers: addresses, properties, timeout."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig, parse_client, parse_consumer
from protocol.consumer.group_consumer_config import GROUP_PROPERTIES
from protocol.errors import AdminFailed, ConfigurationError, KafkaError
from protocol.properties import PROPERTIES
from protocol.settings.config_providers import ENCODING, parse_java_properties
from protocol.settings.property_kinds import Role
from spark_kafka_source.cli.profiles import VARIABLE as PROFILE_VARIABLE
from spark_kafka_source.cli.profiles import complete_profiles, read_profiles, shown
from spark_kafka_source.cli.values import DURATION

if TYPE_CHECKING:
    from protocol.schemas.registry import SchemaRegistry

_Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_SERVERS = "bootstrap.servers"
_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
_REGISTRY = "schema.registry."
_REGISTRY_URL = f"{_REGISTRY}url"
_REGISTRY_CREDENTIALS = (f"{_REGISTRY}basic.auth.", f"{_REGISTRY}bearer.auth.")
_GLUE = f"{_REGISTRY}glue."
_REGISTRY_VARIABLE = "SCHEMA_REGISTRY_URL"
# A profile or a file may have them for `consume --group`; without a group, some of them are an error.
_OF_MEMBERS = {
    *(row.name for row in GROUP_PROPERTIES),
    *("group.id", "group.protocol", "group.instance.id", "group.remote.assignor", "partition.assignment.strategy"),
    *("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"),
}


@dataclass(frozen=True)
class Cluster:
    """The client and the deadline of a command.

    `properties` are those of the client; a command that opens a consumer or producer passes them on. `registry` are the
    properties `schema.registry.*` of the same sources. `timeout_ms` is the option --timeout. `writes`: True if the
    command has a producer with these properties, too; then those of producers alone have an effect.
    """

    client: Client
    deadline: Deadline
    properties: Mapping[str, str]
    registry: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: float | None = None
    writes: bool = False

    @cached_property
    def consumer(self) -> ConsumerConfig:
        """The consumer properties without those of members; the isolation level decides what the log end is.

        Raises `ConfigurationError`: one of them is wrong.
        """
        others = _OF_MEMBERS | (_names_of(Role.PRODUCER) if self.writes else set())
        return parse_consumer({name: value for name, value in self.properties.items() if name not in others})

    @property
    def of_producer(self) -> dict[str, str]:
        """The properties without those of consumers alone, for a command that has a consumer, too."""
        others = _names_of(Role.CONSUMER)
        return {name: value for name, value in self.properties.items() if name not in others}

    def restarted(self) -> Cluster:
        """Return this with a new deadline, for a command that repeats its requests."""
        return replace(self, deadline=self.client.deadline(self.timeout_ms))

    @property
    def left_ms(self) -> float:
        """The time that the command has left."""
        return self.deadline.remaining_s() * 1000


def _names_of(role: Role) -> set[str]:
    """Return the names of the properties that only clients of this role have."""
    return {row.name for row in PROPERTIES if row.role is role}


def asks_brokers(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command, which receives a `Cluster` as its argument `cluster`."""

    @functools.wraps(command)
    def run(
        profile: str | None,
        bootstrap_server: str | None,
        command_config: Path | None,
        properties: Mapping[str, str],
        former_properties: Mapping[str, str],
        timeout_ms: int | None,
        **arguments: Any,
    ) -> None:
        client_properties = given_properties(
            profile,
            bootstrap_server,
            command_config,
            {**former_properties, **properties},
            schema_registry=arguments.get("schema_registry"),
        )
        client_properties, registry = _divided(client_properties)
        with _exit_codes(), Client(parse_client(client_properties)) as client:
            cluster = Cluster(client, client.deadline(timeout_ms), client_properties, registry, timeout_ms)
            command(cluster=cluster, **arguments)

    return with_options(run, CONNECTION_OPTIONS)


def with_options(command: Callable[..., None], options: Sequence[_Decorator]) -> Callable[..., None]:
    """Add options to a command; its help shows them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def _exit_codes() -> Iterator[None]:
    """End the command for wrong properties as wrong usage (exit code 2), for other errors with one line (code 1)."""
    try:
        yield
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    except KafkaError as error:
        errors = error.errors.values() if isinstance(error, AdminFailed) else [error]
        text = listed([" ".join(str(error).split()) for error in errors], separator="; ")
        raise click.ClickException(text) from error


@contextmanager
def prints_done(verb: str, names: Mapping[str, str]) -> Iterator[None]:
    """Print the resources that an operation of `Admin` in the block has changed, also if it fails for others.

    `names`: the name to print of each resource.
    """

    def print_without(errors: Mapping[str, KafkaError]) -> None:
        for key, name in names.items():
            if key not in errors:
                click.echo(f"{verb} {name}")

    try:
        yield
    except AdminFailed as failed:
        print_without(failed.errors)
        raise
    print_without({})


def given_properties(
    profile: str | None,
    bootstrap_server: str | None,
    command_config: Path | None,
    properties: Mapping[str, str],
    *,
    schema_registry: str | None = None,
) -> dict[str, str]:
    """Return the properties of a client, in the order of precedence of their sources.

    `profile`, `bootstrap_server`, `command_config`, `properties`, `schema_registry`: the options of the command.
    Ascending: KAFKA_BOOTSTRAP_SERVERS, the profile, the file, the properties, the two options with addresses.
    Raises `click.UsageError`: no source names brokers, or the profile does not exist.

    A profile that was chosen by `pykafka profile use` is ignored if another source names brokers: its credentials are
    not for them.
    """
    addresses = {_SERVERS: bootstrap_server, _REGISTRY_URL: schema_registry}
    merged = _merged(profile, (_SERVERS, _VARIABLE), command_config, properties, addresses)
    if _SERVERS not in merged:
        raise click.UsageError(
            "The address of the brokers is missing. Give --bootstrap-server HOST:PORT or --profile, or set "
            f"{_VARIABLE}."
        )
    return merged


def _merged(
    profile: str | None,
    address: tuple[str, str],
    command_config: Path | None,
    properties: Mapping[str, str],
    options: Mapping[str, str | None],
) -> dict[str, str]:
    """Return the properties of all sources.

    `address`: the property of the addresses that the command needs, and its variable.
    `options`: properties given by options with other names.
    """
    name, variable = address
    text = os.environ.get(variable)
    profiles = read_profiles()
    sources: list[Mapping[str, str]] = [{name: text} if text else {}]
    if profile is not None:
        sources.append(profiles.properties(profile))
    if command_config is not None:
        sources.append(parse_java_properties(command_config.read_text(ENCODING)))
    sources += [properties, {option: text for option, text in options.items() if text is not None}]
    if profiles.used is not None and not any(name in source for source in sources):
        sources.insert(0, profiles.properties(profiles.used))
    merged: dict[str, str] = {}
    for source in reversed(sources):
        merged = {**_without_credentials(source, merged), **merged}
    return merged


def _registry_url(properties: Mapping[str, str]) -> str | None:
    return next((text for name, text in properties.items() if name.lower() == _REGISTRY_URL), None)


def _without_credentials(source: Mapping[str, str], merged: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties without credentials for a registry of this source if `merged` has another one; print them.

    `merged`: the properties of the sources above it.
    """
    own_url, url = _registry_url(source), _registry_url(merged)
    if url is None or own_url is None or _addresses(url) <= _addresses(own_url):
        return source
    credentials = [name for name in source if name.lower().startswith(_REGISTRY_CREDENTIALS) and name not in merged]
    if credentials:
        click.echo(
            f"Not sent to {shown(_REGISTRY_URL, url)}, since they are for {shown(_REGISTRY_URL, own_url)}: "
            f"{listed(credentials)}. To send them, give them with -X or in a source without that address.",
            err=True,
        )
    return {name: text for name, text in source.items() if name not in credentials}


def _addresses(urls: str) -> set[str]:
    return {url.strip().rstrip("/") for url in urls.split(",")}


def _divided(merged: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return Kafka's properties, and those of a schema registry."""
    registry = {name: text for name, text in merged.items() if name.lower().startswith(_REGISTRY)}
    return {name: text for name, text in merged.items() if name not in registry}, registry


def asks_registry(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a connection to a registry; the command receives a `SchemaRegistry` as `registry`."""

    @functools.wraps(command)
    def run(
        profile: str | None,
        schema_registry: str | None,
        command_config: Path | None,
        properties: Mapping[str, str],
        timeout_ms: int | None,
        **arguments: Any,
    ) -> None:
        address, options = (_REGISTRY_URL, _REGISTRY_VARIABLE), {_REGISTRY_URL: schema_registry}
        registry = _divided(_merged(profile, address, command_config, properties, options))[1]
        if timeout_ms is not None:
            registry[f"{_REGISTRY}request.timeout.ms"] = str(timeout_ms)
        with _exit_codes():
            command(registry=open_registry(registry), **arguments)

    return with_options(run, REGISTRY_OPTIONS)


def open_registry(properties: Mapping[str, str]) -> SchemaRegistry:
    """Return the client of a registry, by its properties `schema.registry.*`.

    Raises `click.UsageError`: no source names a registry. `ConfigurationError`: a property is wrong.
    """
    from protocol.schemas.glue import open_registry
    from protocol.schemas.registry_config import parse_registry

    is_glue = any(name.lower().startswith(_GLUE) for name in properties)
    variable = None if is_glue else os.environ.get(_REGISTRY_VARIABLE)
    registry = {**({_REGISTRY_URL: variable} if variable else {}), **properties}
    config = parse_registry(registry) if is_glue or _REGISTRY_URL in registry else None
    if config is None:
        raise click.UsageError(
            f"The address of the schema registry is missing. Give --schema-registry URL, or set {_REGISTRY_URL} in the "
            f"profile, or {_REGISTRY_VARIABLE}."
        )
    return open_registry(config)


def pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE options; a callback for click."""
    pairs = [value.partition("=") for value in values]
    if any(not equals for _, equals, _ in pairs):
        # The value is not shown: it may be a password.
        raise click.BadParameter("a property is given as NAME=VALUE")
    return {name.strip(): value for name, _, value in pairs}


_PROFILE: _Decorator = click.option(
    "--profile",
    metavar="NAME",
    envvar=PROFILE_VARIABLE,
    shell_complete=complete_profiles,
    help=f"A profile of `pykafka profile list`.  [env: {PROFILE_VARIABLE}]",
)
_COMMAND_CONFIG: _Decorator = click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="A properties file, as for Kafka's own tools. Keep passwords there.",
)
schema_registry_option: _Decorator = click.option(
    "--schema-registry",
    metavar="URL",
    help=f"Addresses of the schema registry, separated by commas.  [env: {_REGISTRY_VARIABLE}]",
)

CONNECTION_OPTIONS: tuple[_Decorator, ...] = (
    _PROFILE,
    click.option("--bootstrap-server", metavar="HOST:PORT", help=f"One or more brokers.  [env: {_VARIABLE}]"),
    _COMMAND_CONFIG,
    click.option(
        "-X",
        "--command-property",
        "properties",
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="A Kafka property; repeatable.",
    ),
    # The name before KIP-1147.
    click.option("--property", "former_properties", multiple=True, callback=pairs, hidden=True),
    click.option(
        "--timeout",
        "timeout_ms",
        type=DURATION,
        help="Time limit of the command: 30s, 2m, or milliseconds.  [default: default.api.timeout.ms, 1m]",
    ),
)

REGISTRY_OPTIONS: tuple[_Decorator, ...] = (
    _PROFILE,
    schema_registry_option,
    _COMMAND_CONFIG,
    click.option(
        "-X",
        "--command-property",
        "properties",
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="A property of the registry, schema.registry.…; repeatable.",
    ),
    click.option(
        "--timeout",
        "timeout_ms",
        type=DURATION,
        help="Time limit of each request: 30s, 2m, or milliseconds.  [default: 10s]",
    ),
)
