"""Print rows as a table, JSON, YAML or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

# Only a terminal needs rich, whose import takes as long as click's.
if TYPE_CHECKING:
    from rich.table import Table

Columns = Sequence[str]
Rows = Sequence[Sequence[Any]]


def print_rows(columns: Columns, rows: Rows, output: str) -> None:
    """Print rows to standard output. `columns` are names such as `log_end_offset`; None is an unknown value."""
    _PRINTERS[output](columns, rows)


def table_of(columns: Columns, rows: Rows) -> Table:
    """Return rows as a table for a terminal."""
    return _bordered(*_texts(columns, rows))


def _texts(columns: Columns, rows: Rows) -> tuple[list[str], list[list[str]]]:
    headings = [column.upper().replace("_", "-") for column in columns]
    return headings, [[_cell(value) for value in row] for row in rows]


def _bordered(headings: list[str], lines: list[list[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return table


def _print_table(columns: Columns, rows: Rows) -> None:
    headings, lines = _texts(columns, rows)
    if sys.stdout.isatty():
        _print_on_terminal(headings, lines)
    else:
        widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
        for line in (headings, *lines):
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_on_terminal(headings: list[str], lines: list[list[str]]) -> None:
    from rich.console import Console

    Console().print(_bordered(headings, lines))


def _print_json(columns: Columns, rows: Rows) -> None:
    click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))


def _print_yaml(columns: Columns, rows: Rows) -> None:
    # A JSON value is a YAML value.
    for row in rows:
        pairs = [f"{column}: {json.dumps(value)}" for column, value in zip(columns, row, strict=True)]
        click.echo("- " + "\n  ".join(pairs))
    if not rows:
        click.echo("[]")


def _print_csv(columns: Columns, rows: Rows) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    # A name in Kafka may contain control characters of a terminal.
    return text if text.isprintable() else ascii(text)


_PRINTERS: dict[str, Callable[[Columns, Rows], None]] = {
    "table": _print_table,
    "json": _print_json,
    "yaml": _print_yaml,
    "csv": _print_csv,
}


def _output_option(*names: str) -> Callable[[Any], Any]:
    formats = click.Choice(list(_PRINTERS))
    return click.option(*names, type=formats, default="table", show_default=True, help="Format of the rows.")


output_option = _output_option("-o", "--output")
# For commands in which -o is a position.
long_output_option = _output_option("--output")
