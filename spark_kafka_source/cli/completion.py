"""Completion in shells: the scripts, and the names of topics and groups, asked from the brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from protocol.admin.admin import Admin
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import KafkaError
from spark_kafka_source.cli.connection import given_properties

_VARIABLE = "_PYKAFKA_COMPLETE"
# A shell waits for it.
_TIMEOUT_MS = 3_000


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a topic in a shell."""
    return _complete(context, incomplete, lambda admin: admin.list_topics(internal=True, timeout_ms=_TIMEOUT_MS))


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a group in a shell."""
    return _complete(
        context, incomplete, lambda admin: [group.group for group in admin.list_groups(timeout_ms=_TIMEOUT_MS)]
    )


def _complete(context: click.Context, incomplete: str, names: Callable[[Admin], Iterable[str]]) -> list[CompletionItem]:
    params = context.params
    try:
        properties = given_properties(
            params.get("profile"),
            params.get("bootstrap_server"),
            params.get("command_config"),
            {**(params.get("former_properties") or {}), **(params.get("properties") or {})},
        )
        with Client(parse_client(properties)) as client:
            return [CompletionItem(name) for name in sorted(names(Admin(client))) if name.startswith(incomplete)]
    except (KafkaError, click.ClickException, OSError):
        # A shell has no place for an error while it completes a word.
        return []


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, topics, groups and profiles in a shell.

    \b
    Examples:
      eval "$(pykafka completion bash)"
      pykafka completion fish > ~/.config/fish/completions/pykafka.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "pykafka", _VARIABLE).source())
