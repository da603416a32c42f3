"""Records of files and standard input, without a broker: `pykafka produce` sends what `read_records` yields."""

from __future__ import annotations

import io
import json
import math
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_source.cli.record_inputs import InputError, InputFormat, format_of_suffix, read_records

TIME_MS = 1_769_839_200_000
CSV_BLOCK_BYTES = 1 << 20


class Pipe(io.BufferedReader):
    """Standard input in parts of a few bytes; no seeking."""

    def __init__(self, data: bytes, part_bytes: int = 1 << 16) -> None:
        class Raw(io.RawIOBase):
            def __init__(self) -> None:
                self.rest = data

            def readable(self) -> bool:
                return True

            def readinto(self, buffer: Any) -> int:
                part, self.rest = self.rest[:part_bytes], self.rest[part_bytes:]
                buffer[: len(part)] = part
                return len(part)

        super().__init__(Raw(), buffer_size=part_bytes)


def rows(source: bytes | BinaryIO, kind: str, **arguments: Any) -> list[dict[str, Any]]:
    """Return the records of an input."""
    stream = io.BufferedReader(io.BytesIO(source)) if isinstance(source, bytes) else source  # type: ignore[arg-type]
    return [row for batch in read_records(stream, InputFormat(kind, **arguments)) for row in batch.to_pylist()]


def saved(table: pa.Table, kind: str) -> bytes:
    """Return a table as a file; `stream` is Arrow's format without a footer."""
    sink = io.BytesIO()
    if kind == "csv":
        from pyarrow import csv

        csv.write_csv(table, sink)
    elif kind == "parquet":
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(sink, table.schema) as file:
            file.write_table(table)
    return sink.getvalue()


@given(st.binary(max_size=40), st.integers(1, 7))
def test_lines_are_the_same_in_any_parts(text: bytes, part_bytes: int) -> None:
    expected = text.split(b"\n")
    expected = expected[:-1] if expected[-1] == b"" else expected
    assert [row["value"] for row in rows(Pipe(text, part_bytes), "lines")] == expected


def test_lines_have_keys_and_nulls() -> None:
    text = b"k:v:w\nonly\ngone:\n:x\n\n"
    assert [tuple(row.values()) for row in rows(text, "lines", separator=b":")] == [
        (b"k", b"v:w"), (None, b"only"), (b"gone", b""), (b"", b"x"), (None, b""),
    ]  # fmt: skip
    assert [tuple(row.values()) for row in rows(text, "lines", separator=b":", empty_as_null=True)] == [
        (b"k", b"v:w"), (None, b"only"), (b"gone", None), (None, b"x"), (None, None),
    ]  # fmt: skip


def test_json_lines_have_all_fields() -> None:
    lines: list[Any] = [
        {"key": "k", "value": "v", "headers": {"h": "1", "n": None}, "timestamp_ms": float(TIME_MS), "partition": 1},
        {"key_base64": "/w==", "value": {"id": 7, "name": "naïve"}, "offset": 3, "topic": "t"},
        {"value": None, "headers": [{"key": "h", "value_base64": "/g=="}]},
    ]
    text = b"\n\n".join(json.dumps(line).encode() for line in lines)
    assert rows(text, "json") == [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
         "timestamp_ms": TIME_MS, "partition": 1},
        {"key": b"\xff", "value": '{"id":7,"name":"naïve"}'.encode(), "headers": None, "timestamp_ms": None,
         "partition": None},
        {"key": None, "value": None, "headers": [{"key": "h", "value": b"\xfe"}], "timestamp_ms": None,
         "partition": None},
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "stream"])
@pytest.mark.parametrize("seekable", [False, True])
def test_tables_are_records_or_rows_as_json(kind: str, seekable: bool) -> None:
    def found(table: pa.Table, **arguments: Any) -> list[dict[str, Any]]:
        data = saved(table, kind)
        return rows(data if seekable else Pipe(data), "arrow" if kind == "stream" else kind, **arguments)

    records = pa.table({"key": ["a"], "value": ["1"], "timestamp_ms": [TIME_MS], "partition": [2], "offset": [9]})
    assert found(records) == [{"value": b"1", "timestamp_ms": TIME_MS, "partition": 2, "key": b"a"}]
    orders = pa.table({"id": [7], "name": ["naïve"], "paid": [1.5]})
    assert found(orders) == [{"value": '{"id": 7, "name": "naïve", "paid": 1.5}'.encode()}]
    assert found(orders, key_column="id", value_column="name") == [{"value": "naïve".encode(), "key": b"7"}]
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["note", "note", "name"])
    assert kind == "parquet" or found(twice, value_column="name") == [{"value": b"c"}]


def test_csv_values_contain_newlines() -> None:
    line = b'"%s\na"\n' % (b"x" * 101)
    assert {row["value"] for row in rows(b"value\n" + line * (3 * CSV_BLOCK_BYTES // len(line)), "csv")} == {line[1:-2]}


def test_columns_of_other_types_are_their_text() -> None:
    table = pa.table({
        "key": pa.array([b"k"], pa.large_binary()),
        "value": pa.array(["v"]).dictionary_encode(),
        "headers": [[{"key": "h", "value": b"1"}]],
    })  # fmt: skip
    assert rows(saved(table, "arrow"), "arrow") == [
        {"value": b"v", "headers": [{"key": "h", "value": b"1"}], "key": b"k"}
    ]


def test_rows_are_json_as_decoded_values_are() -> None:
    table = pa.table({
        "hash": pa.array([b"\0\xff"], pa.large_binary()),
        "id": pa.array([b"\0\xff"], pa.binary(2)),
        "price": [math.nan],
        "times": pa.array([[0]], pa.large_list(pa.timestamp("ms", "UTC"))),
        "grade": pa.array([2]).dictionary_encode(),
    })  # fmt: skip
    assert rows(saved(table, "arrow"), "arrow") == [{
        "value": b'{"hash": "AP8=", "id": "AP8=", "price": "NaN", "times": ["1970-01-01T00:00:00Z"], "grade": 2}'
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "text", "says"),
    [
        ("json", {}, b"[1]", "line 1: a record is a JSON object"),
        ("json", {}, b'{"value": 1}\n{', "line 2: "),
        ("json", {}, b'{"value": "x", "val": 1}', "'val' is not one of the fields key, key_base64, value"),
        ("json", {}, b'{"key": "x"}', "line 1: the field value is missing"),
        ("json", {}, b'{"value_base64": "?"}', "line 1: value_base64: "),
        ("json", {}, b'{"value_base64": 1}', "line 1: value_base64: "),
        ("json", {}, b'{"value": "x", "partition": "one"}', "line 1: partition: 'one' is not an integer of 32 bits"),
        ("json", {}, b'{"value": "x", "partition": 1.5}', "line 1: partition: 1.5 is not an integer of 32 bits"),
        ("json", {}, b'{"value": "x", "timestamp_ms": 1e30}', "line 1: timestamp_ms: 1e.30 is not an integer"),
        ("json", {}, b'{"value": "x", "headers": [{"name": "h"}]}', "line 1: a header is a JSON object"),
        ("json", {}, b'{"value": "x", "headers": "h"}', "line 1: a header is a JSON object"),
        ("json", {}, b'{"value": "x", "headers": {"\\ud800": "1"}}', "line 1: .* surrogates not allowed"),
        pytest.param("json", {}, b"[" * 100_000, "line 1: maximum recursion depth", id="deep"),
        ("csv", {}, b"value,note\n1,2\n", "note is not a column of a record; name the one to send: --value-column"),
        ("csv", {"key_column": "id"}, b"value\n1\n", "there is no column id; the columns are value"),
        ("csv", {}, b"value,partition\n1,one\n", "not csv: "),
        ("csv", {}, b"value,value\n1,2\n", "two columns have the name value; the columns are value, value"),
        ("parquet", {}, b"PAR0", "not parquet: "),
        ("arrow", {}, b"ARROW0", "not arrow: "),
    ],
)
def test_wrong_input_is_refused(kind: str, options: dict[str, Any], text: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says.replace("?", r"\?")):
        rows(text + b"\n" if kind == "json" else text, kind, **options)


@pytest.mark.parametrize("part_bytes", [15, 1 << 16])
def test_records_before_wrong_line_are_yielded(part_bytes: int) -> None:
    batches = read_records(Pipe(b'{"value": "x"}\n' * 3 + b"{}\n", part_bytes), InputFormat("json"))
    counts: list[int] = []
    with pytest.raises(InputError, match="line 4: the field value is missing"):
        counts.extend(batch.num_rows for batch in batches)
    assert sum(counts) == 3


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".CSV", "csv"), (".jsonl", "json"), (".feather", "arrow"), ("", "lines")]
)
def test_suffix_names_the_format(suffix: str, kind: str) -> None:
    assert format_of_suffix(suffix) == kind
