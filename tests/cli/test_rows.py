"""Printed rows: for a terminal, for a pipe, for programs."""

from __future__ import annotations

import csv
import json

import pytest

from spark_kafka_source.cli.rows import print_rows

COLUMNS = ("group", "log_end_offset", "lag_seconds")
ROWS = [("etl", 50, 1.25), ("with [red] and \x1b[31m, and a, comma", None, None)]


def test_table_in_pipe_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(COLUMNS, ROWS, "table")
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["GROUP", "LOG-END-OFFSET", "LAG-SECONDS"]
    assert first.split() == ["etl", "50", "1.250"]
    # Control characters are escaped, so that they do not reach the terminal.
    assert second.split("  ")[0] == r"'with [red] and \x1b[31m, and a, comma'"
    assert second.split()[-2:] == ["-", "-"]
    assert {line.index(word) for line, word in ((heading, "LOG"), (first, "50"))} == {second.index("  - ") + 2}


def test_table_in_terminal_has_bold_heading_and_borders(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_rows(COLUMNS, [("a" * 70, 50, 1.25), *ROWS], "table")
    output = capsys.readouterr().out
    assert "\x1b[1m" in output, "the headings are bold"
    assert "─" in output
    assert "\x1b[31m" not in output
    words = [word for line in output.splitlines() for word in line.split() if set(word) == {"a"}]
    assert "".join(words) == "a" * 70, "a value wider than the terminal is wrapped"
    assert len(words) > 1
    assert "[red]" in output


def test_json_and_csv_contain_raw_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(COLUMNS, ROWS, "json")
    assert json.loads(capsys.readouterr().out) == [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    print_rows(COLUMNS, ROWS, "csv")
    lines = capsys.readouterr().out.splitlines()
    assert list(csv.reader(lines)) == [list(COLUMNS), ["etl", "50", "1.25"], [ROWS[1][0], "", ""]]
    print_rows(COLUMNS, [], "json")
    assert json.loads(capsys.readouterr().out) == []
