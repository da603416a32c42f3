"""Reader and Writer: the encoding of each primitive, and rejected bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Corrupt, Truncated
from protocol.testing.fake_kafka.record_batches import varint
from protocol.wire.primitives import LARGE_BYTES, Reader, Writer

pytestmark = pytest.mark.soak


def written(put: Callable[[Writer], None]) -> bytes:
    writer = Writer()
    put(writer)
    joined = b"".join(writer.parts())
    assert writer.size_bytes == len(joined)
    return joined


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


ROUND_TRIPS: dict[str, st.SearchStrategy[Any]] = {
    "int8": signed(8),
    "int16": signed(16),
    "int32": signed(32),
    "uuid": st.binary(min_size=16, max_size=16),
    "uvarint": st.integers(0, 2**32 - 1),
    "varint": signed(32),
    "varlong": signed(64),
    "string": st.text(max_size=50),
    "compact_string": st.text(max_size=200),
    "data": st.binary(max_size=200),
    "compact_data": st.binary(max_size=200),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
@given(data=st.data())
def test_primitives_round_trip_and_prefixes_are_truncated(name: str, data: st.DataObject) -> None:
    value = data.draw(ROUND_TRIPS[name])
    encoded = varint(value) if name.startswith("var") else written(lambda writer: getattr(writer, name)(value))
    reader = Reader(encoded)
    assert getattr(reader, name)() == value
    assert reader.left == 0
    for cut in range(len(encoded)):
        with pytest.raises(Truncated):
            getattr(Reader(encoded[:cut]), name)()


# The bytes of null, and of a length that exceeds the bytes, of each kind of value.
LENGTHS = {
    "string": (b"\xff\xff", b"\x7f\xff"),
    **dict.fromkeys(("data", "array_length"), (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")),
    **dict.fromkeys(("compact_string", "compact_data", "compact_array_length"), (b"\0", b"\xff\xff\xff\xff\x0f")),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_null_is_accepted_only_where_allowed(name: str) -> None:
    null, _ = LENGTHS[name]
    assert getattr(Reader(null), name)(nullable=True) is None
    with pytest.raises(Corrupt, match="null"):
        getattr(Reader(null), name)()


@pytest.mark.parametrize("name", LENGTHS)
def test_length_beyond_the_bytes_left_is_truncated(name: str) -> None:
    with pytest.raises(Truncated):
        getattr(Reader(LENGTHS[name][1] + bytes(64)), name)()


def test_count_is_refused_if_its_smallest_elements_do_not_fit() -> None:
    count_of_ten = (10).to_bytes(4, "big")
    assert Reader(count_of_ten + bytes(40)).array_length(smallest_bytes=4) == 10
    with pytest.raises(Truncated):
        Reader(count_of_ten + bytes(39)).array_length(smallest_bytes=4)


@pytest.mark.parametrize(
    ("read", "data", "words"),
    [
        (lambda reader: reader.string(nullable=True), b"\xff\xfe", "-2"),
        (lambda reader: reader.data(nullable=True), b"\xff\xff\xff\xfe", "-2"),
        (lambda reader: reader.array_length(nullable=True), b"\xff\xff\xff\xfe", "-2"),
        *((Reader.uvarint, data, "bits") for data in (b"\xff" * 5, b"\xff\xff\xff\xff\x10")),
        (Reader.varlong, b"\xff" * 10, "bits"),
        (Reader.string, b"\x00\x01\xff", "UTF-8"),
    ],
)
def test_wrong_length_varint_or_text_is_corrupt(read: Callable[[Reader], object], data: bytes, words: str) -> None:
    with pytest.raises(Corrupt, match=words):
        read(Reader(data + bytes(64)))


def test_large_bytes_are_separate_buffers_and_small_ones_are_joined() -> None:
    small, large = bytes(LARGE_BYTES - 1), bytes(LARGE_BYTES)
    writer = Writer()
    for value in (small, large, small):
        writer.data(value)
    parts = writer.parts()
    assert [len(part) for part in parts] == [4 + len(small) + 4, len(large), 4 + len(small)]
    assert isinstance(parts[1], memoryview)
    assert parts[1].obj is large


def test_buffers_of_wider_items_count_in_bytes() -> None:
    wide = memoryview(bytes(LARGE_BYTES)).cast("q")
    assert written(lambda writer: writer.data(wide)) == LARGE_BYTES.to_bytes(4, "big") + bytes(LARGE_BYTES)
    assert Reader(memoryview(b"\0\0\0\0\0\0\0\x07").cast("q")).take(8) == bytes(7) + b"\7"


@pytest.mark.parametrize(("name", "value", "words"), [("uuid", b"a", "16"), ("compact_string", "x" * 2**15, "32767")])
def test_value_of_a_size_that_kafka_does_not_read_is_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(Writer(), name)(value)
