"""Compressed payloads of AWS Glue's values: invalid ones, and limits of memory."""

from __future__ import annotations

import json
import re
import types
import zlib
from typing import Any

import pyarrow as pa
import pytest

from protocol.schemas import glue
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.values import ColumnDecoder, with_union_types
from tests.protocol.schemas.conftest import ID, LONG, decoded, fixed_registry, glue_frame

BYTES = '"bytes"'
BOMB = zlib.compress(b"\0" * 3_000)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "does not begin with a byte 3 and the rest of AWS Glue's header; use a format such as confluent-avro"),
        (b"\0\0\0\0\x01\x02", "use a format such as confluent-avro for values that begin with a zero byte and an id"),
        (b"\x03\0" + bytes(15), "does not begin with"),
        (b"\x02\0" + bytes(17), "does not begin with"),
        (b"\x03\x01" + bytes(17), "compression in its header of AWS Glue is neither 0 .none. nor 5 .zlib."),
        (b"\x03\x05" + bytes(18), "its payload is not compressed by zlib"),
        (b"\x03\x05" + bytes(16) + zlib.compress(b"\x02")[:-1], "its compressed payload is truncated"),
        (b"\x03\x05" + bytes(16), "its compressed payload is truncated"),
        (b"\x03\x05" + bytes(16) + BOMB, "its payload exceeds 0 MiB decompressed"),
        (b"\x03\0" + bytes(17), "schema id 00000000-0000-0000-0000-000000000000: the registry does not have it"),
    ],
)
def test_hostile_value_is_invalid_and_its_neighbours_are_not(
    value: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glue, "_MAX_VALUE_BYTES", 2_000)
    decoder = ColumnDecoder(ReaderSchema("glue-avro", LONG), fixed_registry({ID: LONG}))
    neighbours = [glue_frame(ID, b"\x02", 5), glue_frame(ID, b"\x04")]
    column, invalid = decoder.decode(pa.array([neighbours[0], value, neighbours[1]], pa.binary()))
    column.validate(full=True)
    assert column.to_pylist() == [{"id": 1}, None, {"id": 2}]
    assert [failure.row for failure in invalid] == [1]
    assert re.search(reason, str(invalid[0]))


def test_large_payloads_of_a_column_have_a_common_limit_that_spares_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glue, "_MAX_EXCESS_BYTES", 2_000)
    large, small = b"\xd0\x0f" + b"x" * 1_000, b"\xc8\x01" + bytes(range(100))
    decoder = ColumnDecoder(ReaderSchema("glue-avro", BYTES), fixed_registry({ID: BYTES}))
    column, errors = decoded(decoder, [*[glue_frame(ID, large, 5)] * 4, glue_frame(ID, small, 5)])
    assert column == [large[2:]] * 2 + [None] * 2 + [small[2:]]
    assert len(errors) == 2
    assert all("or those that are more than 16 times as large as their values exceed" in text for text in errors)


@pytest.mark.parametrize("end", [b"", b"\xff\xff\xff\xff"])
def test_payloads_that_are_refused_count_against_the_common_limit(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of them would take minutes. `end`: what a payload has instead of its last bytes."""
    monkeypatch.setattr(glue, "_MAX_EXCESS_BYTES", 1 << 20)
    monkeypatch.setattr(glue, "_MAX_VALUE_BYTES", 400_000)
    inflated: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self._stream: Any = zlib.decompressobj()

        def decompress(self, packed: Any, max_bytes: int) -> bytes:
            inflated.append(max_bytes)
            part: bytes = self._stream.decompress(packed, max_bytes)
            inflated[-1] = len(part)
            return part

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    bomb = glue_frame(ID, bytes(399_000), 5)[:-8] + end if end else glue_frame(ID, bytes(500_000), 5)
    decoder = ColumnDecoder(ReaderSchema("glue-avro", BYTES), fixed_registry({ID: BYTES}))
    zlib_counting = types.SimpleNamespace(decompressobj=Counting, error=zlib.error)
    monkeypatch.setattr(glue, "zlib", zlib_counting)
    column, errors = decoded(decoder, [bomb] * 100)
    assert (column, len(errors)) == ([None] * 100, 100)
    assert sum(inflated) < 2 * (1 << 20) + 17 * 100 * len(bomb)


def test_limits_do_not_depend_on_the_size_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_registry` gets Spark's batches, which may be far larger than those of the source."""
    monkeypatch.setattr(glue, "_MAX_EXCESS_BYTES", 2_000)
    monkeypatch.setattr(glue, "_PART_BYTES", 50)
    value = b"\xd0\x0f" + b"x" * 1_000
    decoder = ColumnDecoder(ReaderSchema("glue-avro", BYTES), fixed_registry({ID: BYTES}))
    framed = glue_frame(ID, value, 5)
    assert len(framed) < 50
    expected: list[Any] = [value[2:], None] * 10
    assert decoded(decoder, [framed, None] * 10) == (expected, [])


def test_type_of_a_compressed_value_is_told_by_its_first_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter on types, and the column of types, would decompress the values once more each."""
    union = json.dumps(
        [json.loads(LONG), {**json.loads(LONG), "name": "S", "fields": [{"name": "t", "type": "bytes"}]}]
    )
    large = b"\x02\xd0\x0f" + b"x" * 1_000
    values = [glue_frame(ID, b"\0\x02", 5), glue_frame(ID, large, 5), None, glue_frame(ID, b"", 1)]
    decoder = ColumnDecoder(with_union_types(ReaderSchema("glue-avro", union)), fixed_registry({ID: union}))
    assert decoder.decode(pa.array(values))[0].to_pylist()[1] == {"R": None, "S": {"t": b"x" * 1_000}}
    monkeypatch.setattr(glue, "_decompress", lambda *_: pytest.fail("decompresses the whole value"))
    names, invalid = decoder.type_names(pa.array(values))
    assert names.to_pylist() == ["R", "S", None, None]
    assert [value.row for value in invalid] == [3]
