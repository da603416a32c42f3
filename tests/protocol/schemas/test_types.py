"""Types of columns and of registered schemas: those of the tables in docs/schemas.md."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import fastavro
import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError
from protocol.schemas.encoding import encode
from protocol.schemas.formats import language_of
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.spark_schema import parse_spark
from protocol.schemas.values import ColumnDecoder
from tests.protocol.schemas.conftest import decoded
from tests.support.documents import ROOT

LOGICAL = {"date": "int", "decimal": "bytes"}
# Types of Spark that a schema of Spark cannot have, or that need more words.
OTHERS = {
    "interval day to second": pa.duration("us"),
    "decimal": pa.decimal128(9, 2),
    "struct": pa.struct([pa.field("x", pa.int32())]),
    "array": pa.list_(pa.int32()),
    "map with string keys": pa.map_(pa.string(), pa.int32()),
    "map with boolean or integer keys": pa.map_(pa.int32(), pa.int32()),
}


def rows(head: str) -> list[list[str]]:
    lines = (ROOT / "docs" / "schemas.md").read_text().split(f"\n{head}\n")[1].splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table][1:]


def spark(name: str) -> pa.DataType:
    return OTHERS.get(name) or parse_spark(name)


def avro(name: str) -> str:
    if "-" in name or name in LOGICAL:
        return json.dumps({"type": LOGICAL.get(name, "long"), "logicalType": name})
    return json.dumps(name)


def protobuf(name: str) -> str:
    kind = f"google.protobuf.{name}" if name[0].isupper() else name
    imports = "".join(f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "duration"))
    return f'syntax = "proto3"; {imports} message M {{ optional {kind} f = 1; }}'


@pytest.mark.parametrize(
    ("head", "format", "text", "scalars"),
    [
        ("| Avro | Spark |", "avro", avro, 13),
        ("| Protobuf | Spark |", "protobuf", protobuf, 17),
        ("| JSON Schema | Spark |", "json", lambda name: json.dumps({"type": name}), 5),
    ],
)
def test_scalar_types_are_read_as_the_tables_say(
    head: str, format: str, text: Callable[[str], str], scalars: int
) -> None:
    observed = 0
    for remaining, right in rows(head):
        names = re.findall("`([^`]+)`", remaining.split(" of ")[0])
        types = right.split(", ")
        if re.sub(r"`[^`]+`|, | of `google.protobuf`", "", remaining) or len(types) not in (1, len(names)):
            continue
        for name, kind in zip(names, types if len(types) > 1 else types * len(names), strict=True):
            if name in ("enum", "fixed", "record", "array", "map", "repeated", "$ref", "allOf", "const", "Any"):
                continue
            column = ReaderSchema(format, text(name)).type  # type: ignore[arg-type]
            assert (column.field(0).type if format == "protobuf" else column) == spark(kind), name
            observed += 1
    assert observed == scalars


def test_registered_schemas_have_the_types_of_the_table() -> None:
    checked = 0
    for remaining, *cells in rows("| Spark | Avro | Protobuf | JSON Schema |"):
        names = remaining.split(", ") if remaining not in OTHERS else [remaining]
        for format, cell in zip(("avro", "protobuf", "json"), cells, strict=True):
            for number, name in enumerate(names):
                column = pa.struct([pa.field("f", spark(name))])
                if cell == "refused":
                    with pytest.raises(ConfigurationError):
                        language_of(format).text_of(column)
                    continue
                words = re.findall("`([^`]+)`", cell)
                text = language_of(format).text_of(column)
                # One word for each type, or words that all of them have.
                expected = [words[number]] if len(names) == len(words) and len(words) > 1 else words
                for word in expected:
                    if word != "connect.type" or name != "double":
                        assert re.search(rf"\b{word}\b", text), (name, format, text)
                checked += 1
    assert checked > 40


@pytest.mark.parametrize("format", ["avro", "json", "protobuf"])
def test_arrays_without_items_whose_offsets_have_no_bytes_are_written(format: str) -> None:
    """Arrow takes such arrays, and its library for Java has written them."""
    empty = pa.py_buffer(b"")
    texts = pa.Array.from_buffers(pa.string(), 0, [None, empty, empty])
    lists = pa.Array.from_buffers(pa.list_(pa.string()), 0, [None, empty], children=[texts])
    kind = pa.map_(pa.string(), pa.string())
    pairs = pa.StructArray.from_arrays([texts, texts], fields=[kind.key_field, kind.item_field])
    maps = pa.Array.from_buffers(kind, 0, [None, empty], children=[pairs])
    items = pa.StructArray.from_arrays([texts, lists, maps], ["t", "l", "m"])
    arrays = pa.Array.from_buffers(pa.list_(items.type), 2, [None, pa.py_buffer(bytes(12))], children=[items])
    column = pa.StructArray.from_arrays([arrays], ["a"])
    language = language_of(format)
    text = language.text_of(column.type)
    written = encode(language.writer(text, {}, None, column.type)[0], column)
    decoder = ColumnDecoder(ReaderSchema(format, text))  # type: ignore[arg-type]
    assert decoded(decoder, written.to_pylist()) == ([{"a": []}] * 2, [])


NESTED = pa.struct([pa.field("x", pa.int32())])
OTHER = pa.struct([pa.field("y", pa.string())])


@pytest.mark.parametrize(
    "fields",
    [
        [("a", pa.struct([("b_c", NESTED)])), ("a_b", pa.struct([("c", OTHER)]))],
        [("a_b", NESTED), ("aB", OTHER)],
        [("f", NESTED), ("FValue", pa.int32())],
    ],
)
def test_types_of_a_registered_schema_have_different_names(fields: list[tuple[str, pa.DataType]]) -> None:
    column = pa.struct(fields)
    fastavro.parse_schema(json.loads(language_of("avro").text_of(column)))
    for format in ("avro", "protobuf"):
        text = language_of(format).text_of(column)
        read = ReaderSchema(format, text).type  # type: ignore[arg-type]
        assert str(read).replace("list<element", "list<item") == str(column), text
        # A message may not have the name of a field beside it.
        names = re.findall(r"message (\w+)|\w+ (\w+) =", text)
        assert not {message for message, _ in names if message} & {field for _, field in names}


@pytest.mark.parametrize(
    ("format", "field", "kind", "message"),
    [
        ("avro", "größe", pa.int32(), "größe is no name of an Avro field"),
        ("avro", "a", pa.struct([("b", pa.list_(pa.duration("us")))]), r"a\.b\[\] is duration\[us\], which Avro"),
        ("protobuf", "a b", pa.int32(), "a b is no name of a Protobuf field"),
        ("protobuf", "m", pa.map_(pa.float64(), pa.int32()), "m is map<double, int32>; keys of a map are texts"),
        ("json", "m", pa.map_(pa.int32(), pa.int32()), "m is map<int32, int32>, for which there is no JSON"),
        (
            "json",
            "a",
            pa.struct([("b", pa.list_(pa.duration("s")))]),
            r"^a\.b\[\] is duration\[s\], for which",
        ),
    ],
)
def test_column_without_a_schema_is_refused_with_its_path(
    format: str, field: str, kind: pa.DataType, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        language_of(format).text_of(pa.struct([(field, kind)]))
