"""The reference part of docs/cli.md: each command's usage, options and an example with its output on a real broker.

    python -m tests.cli.reference_page > /tmp/cli.md && mv /tmp/cli.md docs/cli.md

The part above the heading "Reference" is written by hand and is printed unchanged.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import click

from spark_kafka_source.cli.connection import CONNECTION_OPTIONS
from spark_kafka_source.cli.pykafka import pykafka
from tests.support.documents import ROOT

PAGE = ROOT / "docs" / "cli.md"
_HEADING = "## Reference"
_INTRODUCTION = """\
This part is made from the commands, with outputs of a real broker, by `python -m tests.cli.reference_page`. Each
command also has `-h` (`--help`). Commands that print rows have `-o` (`--output`) with `table`, `json`, `yaml` or `csv`.
Commands that ask brokers have these options:"""
_MOST_LINES = 8
_LONGEST_CHOICES = 60


def every_command(command: click.Command = pykafka, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is not a group, with its path: `topics create`."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            result = command.get_command(context, name)
            yield from every_command(result, (*path, name))
    else:
        yield " ".join(path), command


def examples(command: click.Command) -> list[str]:
    """Return the lines under "Examples:" of a command's help."""
    _, _, text = inspect.cleandoc(command.help or "").partition("Examples:\n")
    return [line.strip() for line in text.splitlines() if line.strip()]


def markdown(outputs: Mapping[str, tuple[str, str]]) -> str:
    """Return the page. `outputs` has the example and its output for each command."""
    guide, heading, _ = PAGE.read_text(encoding="utf-8").partition(f"\n{_HEADING}\n")
    assert heading, f"{PAGE} has no heading {_HEADING!r}"
    parts = [_INTRODUCTION, _table(_parameters(pykafka_connection()))]
    for path, command in every_command():
        parts.append(f"### pykafka {path}")
        parts += _command(path, command)
        example, output = outputs[path]
        parts.append("\n".join(["```console", f"$ {example}", *output.splitlines(), "```"]))
    return f"{guide}\n{_HEADING}\n\n" + "\n\n".join(parts) + "\n"


def pykafka_connection() -> click.Command:
    """Return a command that has only the options of a connection."""
    command = click.Command("any")
    for option in CONNECTION_OPTIONS:
        option(command)
    return command


def _command(path: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=f"pykafka {path}")
    usage = " ".join(["pykafka", path, *command.collect_usage_pieces(context)])
    text, _, _ = inspect.cleandoc(command.help or "").replace("\b\n", "").partition("Examples:\n")
    shared = {param.name for param in pykafka_connection().params}
    rows = [
        parameter
        for parameter in _parameters(command)
        if parameter[0] not in shared and "[table|json|yaml|csv]" not in parameter[1]
    ]
    connects = shared <= {param.name for param in command.params}
    ends = "Options of a connection, and:" if connects and rows else "Options of a connection." if connects else ""
    return [f"`{usage}`", *text.strip().split("\n\n"), *filter(None, [ends]), *([_table(rows)] if rows else [])]


def _parameters(command: click.Command) -> list[tuple[str, str, str]]:
    """Return name, spelling and help of each option."""
    context, result = click.Context(command), []
    for param in command.params:
        record = param.get_help_record(context)
        if isinstance(param, click.Option) and record is not None:
            spelling, text = record[0], " ".join(record[1].split())
            if len(spelling) > _LONGEST_CHOICES:
                spelling = re.sub(r"\[.*\|.*\]", param.opts[0].lstrip("-").upper(), spelling)
            result.append((str(param.name), spelling, text))
    return result


def _table(rows: list[tuple[str, str, str]]) -> str:
    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")

    lines = [f"| `{spelling.replace('|', chr(92) + '|')}` | {cell(text)} |" for _, spelling, text in rows]
    return "\n".join(["| option | |", "| --- | --- |", *lines])


def outputs_of_page() -> dict[str, tuple[str, str]]:
    """Return the example and its output for each command, from the page."""
    values_by_key = {}
    for path, block in re.findall(
        r"^### pykafka ([^\n]+)\n.*?^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        example, _, output = block.removeprefix("$ ").partition("\n")
        values_by_key[path] = (example, output)
    return values_by_key


def shortened(output: str) -> str:
    """Return the first lines of an output."""
    lines = output.splitlines()
    return "\n".join(lines[:_MOST_LINES] + ["…"] * (len(lines) > _MOST_LINES))


if __name__ == "__main__":
    from tests.cli.reference_examples import run_examples

    print(markdown(run_examples().outputs), end="")
