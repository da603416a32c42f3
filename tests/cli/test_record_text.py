"""Positions, format strings, JSON lines and filters of `pykafka consume`, and printed rows, without a broker."""

from __future__ import annotations

import base64
import csv
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records.decode import SCHEMA
from spark_kafka_source.cli.consume import _Output
from spark_kafka_source.cli.positions import Position, Span, parse_span
from spark_kafka_source.cli.record_filters import RecordFilter
from spark_kafka_source.cli.record_text import json_format, text_format
from spark_kafka_source.cli.rows import print_rows

pytestmark = pytest.mark.soak

TIME_MS = 1_769_839_200_000


def batch_of(*records: tuple[Any, Any, list[tuple[str, bytes | None]] | None]) -> pa.RecordBatch:
    rows = [
        {
            "key": key,
            "value": value,
            "offset": 7 + number,
            "timestamp_ms": TIME_MS + number,
            "timestamp_type": 0,
            "headers": None if headers is None else [{"key": name, "value": value} for name, value in headers],
        }
        for number, (key, value, headers) in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("earliest", Position("earliest"), None),
        ("12", Position("offset", 12), None),
        ("+5", Position("after_earliest", 5), None),
        ("-5", Position("before_latest", 5), None),
        ("@2026-01-31T06:00Z", Position("time", TIME_MS), None),
        ("@1769839200000", Position("time", TIME_MS), None),
        ("@-1h", Position("age", 3_600_000), None),
        ("3:7", Position("offset", 3), Position("offset", 7)),
        (":7", Position("earliest"), Position("offset", 7)),
        ("7:", Position("offset", 7), None),
        ("@2026-01-31T06:00:00Z:@2026-01-31T06:00:00+00:00", Position("time", TIME_MS), Position("time", TIME_MS)),
        ("@-1h:latest", Position("age", 3_600_000), Position("latest")),
    ],
)
def test_position_text_is_parsed(text: str, start: Position, end: Position | None) -> None:
    assert parse_span(text) == Span(start, end)


@pytest.mark.parametrize("text", ["", "now", "@", "@2026-01-31T06:00", "1:2:3", "--5", "@-soon", "a:b"])
def test_malformed_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a position is earliest"):
        parse_span(text)


def test_format_renders_every_field() -> None:
    batch = batch_of((b"k", b"v", [("a", b"1"), ("b", None)]), (None, None, None), (b"", b"\xff\n", []))
    text = r"%t|%p|%o|%T|%k|%v|%h|%K|%S|%%|\x41\t\\" + "\\n"
    assert text_format(text).render("orders", 3, batch) == (
        f"orders|3|7|{TIME_MS}|k|v|a=1,b=|1|1|%|A\t\\\n".encode()
        + f"orders|3|8|{TIME_MS + 1}||||-1|-1|%|A\t\\\n".encode()
        + f"orders|3|9|{TIME_MS + 2}||".encode()
        + b"\xff\n||0|2|%|A\t\\\n"
    )


def test_format_of_slice_and_without_columns() -> None:
    batch = batch_of((b"a", b"1", None), (b"b", b"2", [("h", b"x")]), (b"c", b"3", None)).slice(1)
    assert text_format("%k=%v[%h] ").render("t", 0, batch) == b"b=2[h=x] c=3[] "
    assert text_format("%t").render("t", 0, batch) == b"tt"


@pytest.mark.parametrize(
    ("text", "says"), [("%z", "%z is not a field"), ("%", "at the end"), (r"\q", "escape"), ("json", "-J")]
)
def test_malformed_format_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        text_format(text)


def test_json_line_has_text_or_base64() -> None:
    batch = batch_of((b'say "x"\n', None, None), (b"\xff", "naïve".encode(), [("h", b"\xfe"), ("n", None)]))
    first, second = [json.loads(line) for line in json_format().render('t"', 1, batch).splitlines()]
    assert first == {
        "topic": 't"',
        "partition": 1,
        "offset": 7,
        "timestamp_ms": TIME_MS,
        "key": 'say "x"\n',
        "value": None,
        "headers": [],
    }
    assert (base64.b64decode(second["key_base64"]), second["value"]) == (b"\xff", "naïve")
    assert second["headers"] == [{"key": "h", "value_base64": "/g=="}, {"key": "n", "value": None}]


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.text()), min_size=1))
def test_json_lines_hold_any_text(records: list[tuple[str | None, str | None]]) -> None:
    rows = [tuple(None if cell is None else cell.encode(errors="ignore") for cell in row) for row in records]
    lines = json_format().render("t", 0, batch_of(*((*row, None) for row in rows))).split(b"\n")[:-1]
    printed = [json.loads(line) for line in lines]
    assert [(record["key"], record["value"]) for record in printed] == [
        tuple(None if cell is None else cell.decode() for cell in row) for row in rows
    ]


def test_control_characters_do_not_reach_a_terminal(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = _Output(RecordFilter(), None)
    output.format = text_format(r"%v\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.take(("t", 0), batch_of((None, "\x1b[2J \x9b2J\x7f na\u00efve\t\u00c2".encode(), None)))
    assert capsysbinary.readouterr().out == "?[2J ?2J? na\u00efve\t\u00c2\n".encode()


def test_filters_are_combined() -> None:
    batch = batch_of(
        (b"a", b"refused: x", [("v", b"1")]),
        (b"a", b"accepted", [("v", b"1")]),
        (None, b"refused", [("v", b"1")]),
        (b"a", b"refused", None),
        (b"a", b"refused", [("w", b"1"), ("v", b"2"), ("v", b"1")]),
        (b"a", None, [("v", b"1")]),
    )

    def offsets(chosen: RecordFilter) -> list[int]:
        return list(chosen.apply(batch)["offset"].to_pylist())

    assert offsets(RecordFilter()) == [7, 8, 9, 10, 11, 12]
    assert offsets(RecordFilter(key=b"a")) == [7, 8, 10, 11, 12]
    assert offsets(RecordFilter(pattern="^ref.*d")) == [7, 9, 10, 11]
    assert offsets(RecordFilter(headers=[("v", None)])) == [7, 8, 9, 11, 12]
    assert offsets(RecordFilter(headers=[("v", b"2"), ("w", None)])) == [11]
    assert offsets(RecordFilter(b"a", "refused", [("v", b"1")])) == [7, 11]
    with pytest.raises(ValueError, match="regular expression"):
        RecordFilter(pattern="(")


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
