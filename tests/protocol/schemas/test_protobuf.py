"""Protobuf messages as columns, judged by the protobuf package."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from protocol.schemas.decoding import InvalidValue
from protocol.schemas.encoding import encode
from protocol.schemas.protobuf_language import ProtobufLanguage
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.values import ColumnDecoder
from tests.protocol.schemas.protobuf_samples import Samples, as_column, message_class, plain, text_of
from tests.support.soak import scaled

pytestmark = pytest.mark.soak

SCHEMAS = scaled("PROTOBUF_SCHEMAS", 20, 10_000)
MUTATIONS = scaled("PROTOBUF_MUTATIONS", 600, 100_000)
MUTATED_OF_A_SCHEMA = 20
NOT_COMPARED = object()


def decode(decoder: ColumnDecoder, values: list[bytes]) -> tuple[pa.Array, list[InvalidValue]]:
    column, invalid = decoder.decode(pa.array(values, pa.binary()))
    column.validate(full=True)
    return column, invalid


@pytest.mark.parametrize("rows", [3, 40])
def test_random_messages_equal_those_of_the_protobuf_package(rows: int) -> None:
    for seed in range(SCHEMAS):
        samples = Samples(seed)
        file = samples.file()
        kind = message_class(file)
        values = samples.messages(kind, rows)
        # Two messages one after another are merged.
        values += [first + second for first, second in itertools.pairwise(values)]
        column, invalid = decode(ColumnDecoder(ReaderSchema("protobuf", text_of(file))), values)
        assert invalid == [], seed
        expected = [as_column(kind.FromString(value)) for value in values]
        assert repr(plain(column)) == repr(expected), seed


def test_encoded_columns_are_the_messages_that_they_were_decoded_from() -> None:
    for seed in range(SCHEMAS):
        samples = Samples(seed, unknown_symbols=False)
        file = samples.file()
        kind = message_class(file)
        values = samples.messages(kind, 30)
        text = text_of(file)
        column, _ = decode(ColumnDecoder(ReaderSchema("protobuf", text)), values)
        writer, _ = ProtobufLanguage().writer(text, {}, None, column.type)
        positions = pa.array([None if number % 7 == 6 else number for number in range(30)], pa.int64())
        encoded = encode(writer, column.take(positions).slice(3), b"prefix")
        for number, raw in enumerate(encoded.to_pylist(), 3):
            if number % 7 == 6:
                assert raw is None
                continue
            assert raw.startswith(b"prefix")
            expected = as_column(kind.FromString(values[number]))
            assert repr(as_column(kind.FromString(raw[6:]))) == repr(expected), (seed, number)


def same(ours: Any, reference: Any) -> bool:
    """Compare rows; the package drops entries of maps that have unknown fields, other implementations do not."""
    if isinstance(reference, dict):
        return list(ours) == list(reference) and all(same(ours[name], reference[name]) for name in reference)
    if isinstance(reference, list) and ours and isinstance(ours[0], tuple):
        return {repr(value) for value in reference} <= {repr(value) for value in ours}
    if isinstance(reference, list):
        return len(ours) == len(reference) and all(map(same, ours, reference))
    return repr(ours) == repr(reference)


def mutated(samples: Samples, kind: Any) -> bytes:
    """Return a message with some bytes changed, and maybe its end missing."""
    r = samples.random
    raw = bytearray(samples.messages(kind, 1)[0] or b"\x08")
    for _ in range(r.randrange(1, 4)):
        raw[r.randrange(len(raw))] = r.randrange(256)
    return bytes(raw[: r.randrange(1, len(raw) + 1)] if r.random() < 0.3 else raw)


def judged(samples: Samples, kind: Any, value: bytes) -> Any:
    """Return what the package reads: None for an error, NOT_COMPARED for texts that are not UTF-8."""
    try:
        column = as_column(kind.FromString(value))
    except DecodeError:
        return None
    except UnicodeDecodeError:
        return NOT_COMPARED
    # In proto2 the package returns such texts as bytes.
    as_bytes = any(quote in repr(column) for quote in ("b'", 'b"'))
    return NOT_COMPARED if as_bytes and not samples.proto3 else column


def test_mutated_messages_are_errors_or_values() -> None:
    outcomes = Counter[str]()
    different = []
    for seed in range(MUTATIONS // MUTATED_OF_A_SCHEMA):
        samples = Samples(seed)
        file = samples.file()
        kind = message_class(file)
        decoder = ColumnDecoder(ReaderSchema("protobuf", text_of(file)))
        valid = samples.messages(kind, 40)
        values = [mutated(samples, kind) for _ in range(MUTATED_OF_A_SCHEMA)]
        places = sorted(samples.random.sample(range(len(valid) + len(values)), len(values)))
        mixed = list(valid)
        for place, value in zip(places, values, strict=True):
            mixed.insert(place, value)
        column, invalid = decode(decoder, mixed)
        refused = {failure.row for failure in invalid}
        assert refused <= set(places), (seed, invalid)
        rows = plain(column)
        # The other messages of a batch are not affected.
        further = [row for number, row in enumerate(rows) if number not in places]
        assert repr(further) == repr([as_column(kind.FromString(message)) for message in valid]), seed
        for place, value in zip(places, values, strict=True):
            reference = judged(samples, kind, value)
            if reference is NOT_COMPARED:
                continue
            names = ("both", "refused") if reference is not None else ("read", "neither")
            outcomes[names[place in refused]] += 1
            if reference is not None and place not in refused and not same(rows[place], reference):
                different.append((seed, value, rows[place], reference))
        # Alone, and many of the same, which are read by other code.
        alone, alone_invalid = decode(decoder, values[:1])
        many, many_invalid = decode(decoder, values[:1] * 40)
        assert len(alone_invalid) == (places[0] in refused), (seed, values[0])
        assert len(many_invalid) == 40 * len(alone_invalid), (seed, values[0])
        assert repr(plain(alone)) == repr([rows[places[0]]]), (seed, values[0])
        assert repr(plain(many)) == repr(plain(alone) * 40), (seed, values[0])
    print(outcomes)
    assert different == []
    assert outcomes["both"]
    assert outcomes["neither"]


def test_numbers_of_packed_and_other_fields_keep_their_order() -> None:
    packed, single = b"\x0a\2\1\2", b"\x08\3"
    values = [packed + single, single + packed, packed, packed + single + packed]
    expected = [[1, 2, 3], [3, 1, 2], [1, 2], [1, 2, 3, 1, 2]]
    decoder = ColumnDecoder(ReaderSchema("protobuf", 'syntax = "proto3"; message M { repeated int32 a = 1; }'))
    for rows in (values[:1], values, values * 20):
        column, _ = decode(decoder, rows)
        assert column.field(0).to_pylist() == (expected * 20)[: len(rows)]


@pytest.mark.parametrize(
    ("of_file", "of_fields", "zero", "delimited"),
    [
        ("", "", 0, False),
        ("option features.(pb.go).api_level = API_OPAQUE; option features.field_presence = IMPLICIT;", "", None, False),
        ("", "[features.message_encoding = DELIMITED]", 0, True),
        ("option features = {message_encoding: DELIMITED, field_presence: IMPLICIT};", "", None, True),
        ("", "[features = {[pb.go] {api_level: X}, message_encoding: DELIMITED field_presence: IMPLICIT}]",
         None, True),
    ],
)  # fmt: skip
def test_features_of_an_edition_are_read(of_file: str, of_fields: str, zero: int | None, delimited: bool) -> None:
    fields = f"int32 a = 1 {of_fields}; N n = 2 {of_fields}; message N {{ int32 x = 1; }}"
    text = f'edition = "2023"; {of_file} message M {{ {fields} }}'
    values = [b"\x08\0", b"\x13\x08\5\x14" if delimited else b"\x12\2\x08\5"]
    column, _ = decode(ColumnDecoder(ReaderSchema("protobuf", text)), values)
    assert column.to_pylist() == [{"a": zero, "n": None}, {"a": None, "n": {"x": 5}}]


def test_message_with_the_option_map_entry_is_a_map_if_it_can_be_one() -> None:
    """AWS Glue's serialisers register maps in this form, which compilers refuse."""
    text = """syntax = "proto3"; message M { repeated E m = 1; string behind = 2;
        message E { option map_entry = true; %s key = 1; int32 value = %s; } }"""
    types = [str(ReaderSchema("protobuf", text % kinds).type.field("m").type) for kinds in (
        ("string", "2"), ("optional string", "2"), ("repeated string", "2"), ("float", "2"), ("string", "3"),
    )]  # fmt: skip
    assert types[:2] == ["map<string, int32>"] * 2
    assert all(kind.startswith("list<") for kind in types[2:])
    column = pa.array([b"\x0a\x05\x0a\x01a\x10\x07\x12\x01b"])
    decoded = [ColumnDecoder(ReaderSchema("protobuf", schema)).decode(column)[0].to_pylist() for schema in (
        text % ("string", "2"), 'syntax = "proto3"; message M { map<string, int32> m = 1; string behind = 2; }',
    )]  # fmt: skip
    assert decoded == [[{"m": [("a", 7)], "behind": "b"}]] * 2
