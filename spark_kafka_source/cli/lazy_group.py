"""A click group whose commands are imported when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from spark_kafka_source.cli.stop_signals import ends_with_reader

# Options of kcat and of Kafka's console tools, and what a command here has instead.
_OTHER_TOOLS = {
    "-b": "--bootstrap-server",
    "--broker-list": "--bootstrap-server",
    "-F": "--command-config",
    "-G": "--group",
    "-c": "--count",
    "--max-messages": "--count",
    "--from-beginning": "--offset earliest",
    "-t": "TOPIC",
    "--topic": "TOPIC",
}


@contextmanager
def _names_option() -> Iterator[None]:
    """Add to the error about an option of another tool the option here, or its place."""
    try:
        yield
    except click.NoSuchOption as error:
        same = _OTHER_TOOLS.get(error.option_name, error.option_name)
        command = error.ctx.command if error.ctx is not None else None
        parameters = command.params if command is not None else []
        if any(same.split()[0] in (*parameter.opts, parameter.human_readable_name) for parameter in parameters):
            hint = f"Here it is {same}."
        elif isinstance(command, click.Group) and same in _OTHER_TOOLS.values():
            hint = f"Give {same} after the command: pykafka topics list {same} …"
        else:
            raise
        raise click.NoSuchOption(error.option_name, f"{error.message} {hint}", ctx=error.ctx) from error


class LazyGroup(click.Group):
    """A group that needs no command's module for its own help and for the completion of a command's name.

    `lazy`: place and summary of each command by its name. The place is a module and an attribute,
    `package.module:name`.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **named: Any) -> None:
        super().__init__(*args, **named)
        self._lazy = lazy

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments, as click requires. Exit with 0 if nothing reads the help."""
        with ends_with_reader(), _names_option():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Exit with 0 if nothing reads its output any more."""
        with ends_with_reader(), _names_option():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, as click requires."""
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an unknown one."""
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, as click requires."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, or an option of the group."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._lazy[name][1]) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]
