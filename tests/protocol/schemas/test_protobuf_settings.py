"""Settings of decoded Protobuf, with the results of Spark's `from_protobuf` for the options of the same names."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from protocol.errors import ConfigurationError
from protocol.schemas.protobuf_language import ProtobufLanguage
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.values import ColumnDecoder
from tests.protocol.schemas.conftest import decoded

WRAPPERS = """
syntax = "proto3"; import "google/protobuf/wrappers.proto";
message W {
  google.protobuf.Int64Value a = 1; google.protobuf.StringValue b = 2; google.protobuf.UInt64Value c = 3;
  repeated google.protobuf.Int32Value d = 4; map<string, google.protobuf.BoolValue> e = 5;
}
"""
TREE = """
syntax = "proto3"; message Tree { string name = 1; Tree left = 2; repeated Tree more = 3; map<int32, Tree> by = 4; }
"""


def decode(text: str, values: list[bytes], message: str | None = None, **settings: Any) -> list[Any]:
    schema = ReaderSchema("protobuf", text, protobuf=ProtobufSettings(message, **settings))
    rows, errors = decoded(ColumnDecoder(schema), values)
    assert errors == []
    return rows


def proto3(fields: str, before: str = "") -> str:
    return f'syntax = "proto3"; {before} message M {{ {fields} }}'


def test_absent_fields_are_null_or_zero_by_emit_default_values() -> None:
    fields = "int32 a = 1; string b = 2; optional int32 c = 3; oneof o { bool d = 4; } E e = 5; bytes f = 6; M m = 7;"
    text = proto3(fields, "enum E { NONE = 0; }")
    depth = {"recursive_fields_max_depth": 1}
    assert decode(text, [b""], **depth) == [dict.fromkeys("abcdef")]
    expected = {"a": 0, "b": "", "c": None, "d": None, "e": "NONE", "f": b""}
    assert decode(text, [b"", b"\x08\0"], emit_default_values=True, **depth) == [expected] * 2
    # A zero that is written counts if the field has presence.
    assert decode(text, [b"\x08\0\x18\0\x20\0"], **depth) == [{**dict.fromkeys("abcdef"), "c": 0, "d": False}]


def test_absent_proto2_fields_have_their_defaults() -> None:
    text = (
        "message M { optional int32 a = 1 [default = -0x10]; optional uint32 b = 2 [default = 4294967295]; "
        "optional string c = 3 [default = 'gr\\303\\266\\xc3\\x9fer\\n' \"!\"]; "
        "optional bytes d = 4 [default = '\\001\\?']; "
        "optional float e = 5 [default = -inf]; optional E f = 6 [default = B]; optional bool g = 7 [default = true]; "
        "optional int64 h = 8; enum E { A = 1; B = 2; } }"
    )
    expected = {"a": -16, "b": -1, "c": "größer\n!", "d": b"\1?", "e": float("-inf"), "f": "B", "g": True, "h": None}
    assert decode(text, [b"", b"\x08\5"] * 20) == [expected, {**expected, "a": 5}] * 20
    assert decode(text, [b""], upcast_unsigned_ints=True)[0]["b"] == 2**32 - 1


def test_recursive_messages_end_at_the_depth() -> None:
    with pytest.raises(ConfigurationError, match=r"the field left is recursive: Tree contains itself"):
        decode(TREE, [b""])
    leaf = b"\x0a\1z"
    inner = b"\x0a\1y\x12\3" + leaf + b"\x1a\3" + leaf
    value = b"\x0a\1x\x12" + bytes([len(inner)]) + inner + b"\x22\7\x08\5\x12\3" + leaf
    assert decode(TREE, [value], recursive_fields_max_depth=1) == [{"name": "x"}]
    second = {"name": "y"}
    by = [(5, {"name": "z"})]
    assert decode(TREE, [value], recursive_fields_max_depth=2) == [{"name": "x", "left": second, "more": [], "by": by}]
    third = decode(TREE, [value], recursive_fields_max_depth=3)[0]
    assert third["left"] == {"name": "y", "left": {"name": "z"}, "more": [{"name": "z"}], "by": []}


def test_wrappers_are_structs_or_their_values() -> None:
    empty: dict[str, Any] = {"a": None, "b": None, "c": None, "d": [], "e": []}
    value = b"\x0a\2\x08\5\x12\3\x0a\1x\x1a\x0b\x08" + b"\xff" * 9 + b"\1" + b"\x22\2\x08\7\x22\0\x2a\3\x0a\1k"
    plain = {"a": {"value": 5}, "b": {"value": "x"}, "c": {"value": -1}, "d": [{"value": 7}, {"value": None}],
             "e": [("k", {"value": None})]}  # fmt: skip
    assert decode(WRAPPERS, [b"", value]) == [empty, plain]
    unwrapped = {"a": 5, "b": "x", "c": -1, "d": [7, 0], "e": [("k", False)]}
    assert decode(WRAPPERS, [b"", value], unwrap_wrappers=True) == [empty, unwrapped]
    zero = b"\x0a\0\x12\0"
    assert decode(WRAPPERS, [zero], unwrap_wrappers=True) == [empty]
    expected = {**empty, "a": 0, "b": ""}
    assert decode(WRAPPERS, [zero], unwrap_wrappers=True, emit_default_values=True) == [expected]
    assert decode(WRAPPERS, [b"\x0a\2\x08\5\x0a\0"], unwrap_wrappers=True) == [{**empty, "a": 5}]  # merged
    settings = ProtobufSettings(unwrap_wrappers=True)
    inputs = [b"", b"\x12\3\x0a\1x", b"", b"\x12\3\x0a\1\xff", b""]
    rows, errors = decoded(ColumnDecoder(ReaderSchema("protobuf", WRAPPERS, protobuf=settings)), inputs)
    assert (rows, len(errors)) == ([empty, {**empty, "b": "x"}, empty, None, empty], 1)
    upcast = decode(WRAPPERS, [value], unwrap_wrappers=True, upcast_unsigned_ints=True)
    assert int(upcast[0]["c"]) == 2**64 - 1


def test_enums_and_unsigned_numbers_have_the_types_of_the_settings() -> None:
    text = proto3("E a = 1; repeated E b = 2; uint32 c = 3; repeated uint64 d = 4; fixed32 e = 5;",
                  "enum E { option allow_alias = true; A = 0; B = 1; C = 1; }")  # fmt: skip
    value = b"\x08\1\x12\2\0\5\x18\xff\xff\xff\xff\x0f\x22\x0a" + b"\xff" * 9 + b"\1" + b"\x2d\xff\xff\xff\xff"
    names = ["A", "UNKNOWN_ENUM_VALUE_E_5"]
    assert decode(text, [value]) == [{"a": "B", "b": names, "c": -1, "d": [-1], "e": -1}]
    assert decode(text, [value], enums_as_ints=True) == [{"a": 1, "b": [0, 5], "c": -1, "d": [-1], "e": -1}]
    (row,) = decode(text, [value], upcast_unsigned_ints=True)
    assert (row["c"], [int(number) for number in row["d"]], row["e"]) == (2**32 - 1, [2**64 - 1], -1)


def test_times_are_microseconds_of_any_message_with_their_form() -> None:
    parts = "{ int64 seconds = 1; int32 nanos = 2; }"
    further = f"message Timestamp {parts} message Duration {parts} message Other {{ int64 seconds = 1; }}"
    text = proto3("Timestamp a = 1; Duration b = 2; Other c = 3;", further)
    schema = ReaderSchema("protobuf", text, protobuf=ProtobufSettings("M"))
    assert schema.type.field("a").type == pa.timestamp("us", "UTC")
    assert schema.type.field("b").type == pa.duration("us")
    assert pa.types.is_struct(schema.type.field("c").type)
    minus = b"\x12\x16\x08" + b"\xff" * 9 + b"\1\x10\x82\xa3" + b"\xff" * 7 + b"\1"
    column, _ = ColumnDecoder(schema).decode(pa.array([b"\x0a\2\x10\x7f", minus, b""], pa.binary()))
    assert column.field("a").cast(pa.int64()).to_pylist() == [0, None, None]
    # -1 s and -11,902 ns, cut towards zero.
    assert column.field("b").cast(pa.int64()).to_pylist() == [None, -1_000_011, None]


def test_required_and_text_fields_are_checked() -> None:
    text = "message M { required int32 a = 1; optional string b = 2; }"
    assert decoded(ColumnDecoder(ReaderSchema("protobuf", text)), [b"", b"\x08\1\x12\1\xff"]) == (
        [None, {"a": 1, "b": "\N{REPLACEMENT CHARACTER}"}],
        ["field a: a required field is missing; the schema probably differs from the writer's"],
    )
    assert decoded(ColumnDecoder(ReaderSchema("protobuf", proto3("string b = 2;"))), [b"\x12\1\xff"]) == (
        [None],
        ["field b: a text that is not UTF-8; the schema probably differs from the writer's"],
    )


def chain(count: int) -> str:
    """Return `count` messages, each with the next one in it."""
    return "".join(f"message M{n} {{ M{n + 1} f = 1; int32 x = 2; }} " for n in range(count)) + f"message M{count} {{}}"


def test_deep_schema_of_a_writer_is_compared_as_deep_as_it_is_read() -> None:
    reader = ReaderSchema(
        "confluent-protobuf",
        'syntax = "proto3"; message M0 { M0 f = 1; int32 x = 2; }',
        protobuf=ProtobufSettings(recursive_fields_max_depth=3),
    )
    deep = f'syntax = "proto3"; {chain(3_000)}'
    resolver = ProtobufLanguage().resolver(deep, {}, reader, b"\0")
    assert resolver.type == reader.type
    wrong = deep.replace("message M2 { M3 f = 1; int32 x", "message M2 { M3 f = 1; string x")
    with pytest.raises(ConfigurationError, match=r"f\.f\.x, with the number 2, is string in the writer's schema"):
        ProtobufLanguage().resolver(wrong, {}, reader, b"\0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'syntax = "proto3"; package {"a." * 20_000}a; message M {{ int32 x = 1; }}', "name of more than 1000 char"),
        (f'syntax = "proto3"; message M {{ {"a." * 20_000}a x = 1; }}', "field M.x has the type a.a.a"),
        (f'syntax = "proto3"; {chain(3_000)}', "is nested deeper than 64 messages"),
    ],
    ids=["package", "type", "depth"],
)
def test_long_name_or_deep_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        decode(text, [])


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä"])
def test_invalid_name_in_a_descriptor_is_refused(name: str) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3")
    file.message_type.add(name="M").field.add(name=name, number=1, type=5, label=1)
    with pytest.raises(ConfigurationError, match="the message M has a field with an invalid name"):
        decode(base64.b64encode(file.SerializeToString()).decode(), [])


def test_extensions_are_unknown_fields() -> None:
    text = """
        syntax = "proto2";
        message Order { optional int32 id = 1; extensions 100 to 199; }
        extend Order { optional string note = 100; repeated group Part = 101 { optional int32 x = 1; } }
        message Other { extend Order { optional Other other = 102; } optional int32 y = 1; }
    """
    value = b"\x08\x07" + b"\xa2\x06\x01n" + b"\xab\x06\x08\x01\xac\x06" + b"\xb2\x06\x02\x08\x05"
    assert decode(text, [value]) == [{"id": 7}]
