"""The options of every command that sends requests to brokers: addresses, properties, timeout."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig, parse_client, parse_consumer
from protocol.config_providers import ENCODING, parse_java_properties
from protocol.consumer_group.group_consumer_config import GROUP_PROPERTIES
from protocol.errors import AdminFailed, ConfigurationError, KafkaError
from spark_kafka_source.cli.profiles import VARIABLE as PROFILE_VARIABLE
from spark_kafka_source.cli.profiles import complete_profiles, read_profiles
from spark_kafka_source.cli.values import DURATION

_SERVERS = "bootstrap.servers"
_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"


@dataclass(frozen=True)
class Cluster:
    """The client and the deadline of a command.

    `properties` are those of the client; a command that opens a consumer or producer passes them on.
    """

    client: Client
    deadline: Deadline
    properties: Mapping[str, str]

    @cached_property
    def consumer(self) -> ConsumerConfig:
        """The consumer properties; the isolation level decides what the log end is.

        Raises
        ------
        ConfigurationError
            One of them is wrong.
        """
        of_members = {row.name for row in GROUP_PROPERTIES}
        return parse_consumer({name: value for name, value in self.properties.items() if name not in of_members})

    def restarted(self) -> Cluster:
        """Return this with a new deadline, for a command that repeats its requests."""
        return replace(self, deadline=self.client.deadline())

    @property
    def left_ms(self) -> float:
        """The time that the command has left."""
        return self.deadline.remaining_s() * 1000


def asks_brokers(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command, which receives a `Cluster` as its argument `cluster`.

    Wrong properties end the command as wrong usage (exit code 2), errors of brokers with one line (exit code 1).
    """

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
        given = given_properties(profile, bootstrap_server, command_config, {**former_properties, **properties})
        try:
            config = parse_client(given)
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
        with Client(config) as client:
            try:
                command(cluster=Cluster(client, client.deadline(timeout_ms), given), **arguments)
            except ConfigurationError as error:
                raise click.UsageError(str(error)) from error
            except AdminFailed as error:
                raise _failure(*error.errors.values()) from error
            except KafkaError as error:
                raise _failure(error) from error

    for option in reversed(CONNECTION_OPTIONS):
        run = option(run)
    return run


def _failure(*errors: KafkaError) -> click.ClickException:
    return click.ClickException("; ".join(" ".join(str(error).split()) for error in errors))


def given_properties(
    profile: str | None, bootstrap_server: str | None, command_config: Path | None, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties of a client, in the order of precedence of their sources.

    Parameters
    ----------
    profile, bootstrap_server, command_config, properties
        The options of the command. Ascending: KAFKA_BOOTSTRAP_SERVERS, the profile, the file, the properties,
        `bootstrap_server`.

    Raises
    ------
    click.UsageError
        No source names brokers, or the profile does not exist.

    Notes
    -----
    A profile that was chosen by `pykafka profile use` is ignored if another source names brokers: its credentials are
    not for them.
    """
    servers = os.environ.get(_VARIABLE)
    given = {_SERVERS: servers} if servers else {}
    profiles = read_profiles()
    if profile is not None:
        given |= profiles.properties(profile)
    if command_config is not None:
        given |= parse_java_properties(command_config.read_text(ENCODING))
    given |= properties
    if bootstrap_server is not None:
        given[_SERVERS] = bootstrap_server
    if _SERVERS not in given and profiles.used is not None:
        given = {**profiles.properties(profiles.used), **given}
    if _SERVERS not in given:
        raise click.UsageError(
            "The address of the brokers is missing. Give --bootstrap-server HOST:PORT or --profile, or set "
            f"{_VARIABLE}."
        )
    return given


def pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE options; a callback for click."""
    pairs = [value.partition("=") for value in values]
    if any(not equals for _, equals, _ in pairs):
        # The value is not shown: it may be a password.
        raise click.BadParameter("a property is given as NAME=VALUE")
    return {name.strip(): value for name, _, value in pairs}


CONNECTION_OPTIONS: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
    click.option(
        "--profile",
        metavar="NAME",
        envvar=PROFILE_VARIABLE,
        shell_complete=complete_profiles,
        help=f"A profile of `pykafka profile list`.  [env: {PROFILE_VARIABLE}]",
    ),
    click.option("--bootstrap-server", metavar="HOST:PORT", help=f"One or more brokers.  [env: {_VARIABLE}]"),
    click.option(
        "--command-config",
        type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
        help="A properties file, as for Kafka's own tools. Keep passwords there.",
    ),
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
