"""Messages of magic 0 and 1, written here by their specification, by kafka-python, or by hand."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from protocol.errors import Corrupt, DecompressedTooLarge, ProtocolError
from protocol.records.legacy import with_lz4_header_checksum
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka import record_batches as reference
from tests.protocol.records.reading import chunks
from tests.protocol.records.test_hostile_bytes import provoke
from tests.support.hostile import cases, corrupted, tracing

pytestmark = pytest.mark.soak

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "raw snappy": 2, "lz4": 3}
PACKED = [name for name in CODECS if name != "none"]
LOG_APPEND_TIME = 8
THEN_MS = 1_460_000_000_000
BOTH = pytest.mark.parametrize("magic", [0, 1])


@dataclass(frozen=True)
class Message:
    offset: int
    value: bytes | None = b"value"
    key: bytes | None = None
    magic: int = 1
    timestamp: int = THEN_MS
    attributes: int = 0

    def row(self, **changed: Any) -> dict[str, Any]:
        times = {"timestamp_ms": self.timestamp, "timestamp_type": int(self.attributes & LOG_APPEND_TIME != 0)}
        if self.magic == 0:
            times = {"timestamp_ms": -1, "timestamp_type": -1}
        return {"key": self.key, "value": self.value, "offset": self.offset, **times, "headers": None, **changed}


def nullable(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def write(message: Message, crc: int | None = None) -> bytes:
    body = struct.pack(">bb", message.magic, message.attributes)
    if message.magic:
        body += struct.pack(">q", message.timestamp)
    body += nullable(message.key) + nullable(message.value)
    return struct.pack(">qiI", message.offset, len(body) + 4, zlib.crc32(body) if crc is None else crc) + body


def written(messages: Iterable[Message]) -> bytes:
    return b"".join(map(write, messages))


def pack(codec: str, data: bytes, magic: int) -> bytes:
    if codec == "raw snappy":
        return bytes(pa.Codec("snappy").compress(data))
    if codec == "snappy":  # in blocks, as the xerial library of the Java client
        blocks = [data[at : at + 1000] for at in range(0, len(data), 1000)]
        packed = [bytes(pa.Codec("snappy").compress(block)) for block in blocks]
        return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"".join(struct.pack(">i", len(block)) + block for block in packed)
    packed_data = bytearray(reference.compress(codec, data))
    if codec == "lz4" and magic == 0:
        packed_data[14] ^= 0x5A  # the frame header's checksum is wrong in magic 0 (KAFKA-3160)
    return bytes(packed_data)


def wrap(messages: list[Message], codec: str, **changed: Any) -> Message:
    """Return a wrapper as a broker stores it. In magic 1 its inner offsets start at 0."""
    magic, first = messages[0].magic, messages[0].offset
    inner = [replace(message, offset=message.offset - first if magic else message.offset) for message in messages]
    last, newest = messages[-1].offset, max(message.timestamp for message in messages)
    packed = pack(codec, written(inner), magic)
    return replace(Message(last, packed, None, magic, newest, CODECS[codec]), **changed)


def read(log: bytes, *offsets: int, **options: Any) -> list[dict[str, Any]]:
    """Return the rows, of the range of offsets if there is one."""
    several = list(chunks(log, *offsets, **options))
    assert all(chunk.num_rows <= 8_000 for chunk in several)
    return [row for chunk in several for row in chunk.to_pylist()]


def some(magic: int, first: int = 100, count: int = 5) -> list[Message]:
    """Return messages with nulls, empty values, and a gap in the offsets, as compaction leaves it."""
    values: list[bytes | None] = [b"a", None, b"", b"text " * 300, b"z"]
    keys: list[bytes | None] = [None, b"key", b"", b"k" * 70]
    return [
        Message(first + i + (i > 2), values[i % len(values)], keys[i % len(keys)], magic, THEN_MS + 7 * i)
        for i in range(count)
    ]


# -- valid messages -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("0000000000000005 00000012 9391e657 00 00 00000001 6b 00000003 616263", Message(5, b"abc", b"k", magic=0)),
        ("0000000000000006 00000019 aeb5ae95 01 08 000001540000abcd ffffffff 00000003 616263",
         Message(6, b"abc", None, 1, 0x1540000ABCD, LOG_APPEND_TIME)),
    ],
    ids=["magic 0", "magic 1"],
)  # fmt: skip
def test_handwritten_message_is_read(log: str, message: Message) -> None:
    assert read(bytes.fromhex(log)) == [message.row()]


@BOTH
def test_each_message_counts_as_a_batch(magic: int) -> None:
    plain, wrapper = Message(7, magic=magic, attributes=LOG_APPEND_TIME * magic), wrap(some(magic), "gzip")
    records = read_batch_headers(write(plain) + write(wrapper))
    rows = [dict(zip(records.headers.dtype.names or (), row.tolist(), strict=True)) for row in records.headers]
    unknown = ("partition_leader_epoch", "first_timestamp_ms", "max_timestamp_ms", "producer_id", "producer_epoch")
    for row, log, base_offset, last_offset in ((rows[0], write(plain), 0, 7), (rows[1], write(wrapper), 8, 105)):
        assert [row[name] for name in (*unknown, "base_sequence")] == [-1] * 6
        assert (row["magic"], row["count"], row["length"]) == (magic, 1, len(log) - 12)
        assert (row["base_offset"], row["last_offset"]) == (base_offset, last_offset)
        assert row["crc"] == zlib.crc32(log[16:])
    assert [row["attributes"] for row in rows] == [plain.attributes, 1]
    assert bytes(records.batch(1)) == write(wrapper)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=200)), min_size=1),
    st.sampled_from([0, 1]),
    st.sampled_from(list(CODECS)),
    st.data(),
)
def test_any_range_of_messages_is_read(
    pairs: list[tuple[bytes | None, bytes | None]], magic: int, codec: str, data: st.DataObject
) -> None:
    messages = [Message(10 + i, value, key, magic, THEN_MS + i) for i, (key, value) in enumerate(pairs)]
    cut = data.draw(st.integers(0, len(messages) - 1))
    sets = [part for part in (messages[:cut], messages[cut:]) if part]
    log = written(messages) if codec == "none" else b"".join(write(wrap(part, codec)) for part in sets)
    first, end = sorted(data.draw(st.tuples(*[st.integers(8, 12 + len(messages))] * 2)))
    assert read(log, first, end) == [message.row() for message in messages if first <= message.offset < end]


@pytest.mark.parametrize("codec", PACKED)
def test_log_append_time_of_the_wrapper_applies_to_its_messages(codec: str) -> None:
    messages = some(1)
    log = write(wrap(messages, codec, timestamp=4242, attributes=CODECS[codec] | LOG_APPEND_TIME))
    assert read(log) == [message.row(timestamp_ms=4242, timestamp_type=1) for message in messages]


def test_wrapper_with_offset_0_keeps_the_inner_offsets() -> None:
    messages = some(1, first=0)
    assert read(write(wrap(messages, "gzip", offset=0))) == [message.row() for message in messages]


@pytest.mark.parametrize("codec", CODECS)
def test_log_with_all_formats_is_read(codec: str) -> None:
    """As after upgrades of message.format.version, and one downgrade."""
    parts: list[tuple[bytes, list[dict[str, Any]]]] = []
    for nth, magic in enumerate([0, 0, 1, 2, 2, 1, 0, 2]):
        first = nth * 10
        if magic == 2:
            batch = reference.sequence([b"new", b"newer"], base_offset=first, codec=codec.split()[-1])
            parts.append((reference.write_batch(batch), list(reference.rows([batch]))))
        else:
            messages = some(magic, first)
            log = written(messages) if codec == "none" else write(wrap(messages, codec))
            parts.append((log, [message.row() for message in messages]))
    complete, rows = b"".join(log for log, _ in parts), [row for _, rows in parts for row in rows]
    assert read(complete) == rows
    for first, end in ((3, 33), (12, 13), (31, 71), (75, 99), (6, 10)):
        assert read(complete, first, end) == [row for row in rows if first <= row["offset"] < end]
    assert read_batch_headers(complete).next_offset == 72


def test_small_message_sets_are_merged_and_large_ones_split() -> None:
    small = b"".join(write(wrap(some(1, first, count=3), "gzip")) for first in range(0, 4_000, 4))
    assert [chunk.num_rows for chunk in chunks(small)] == [3_000]
    large = write(wrap([Message(i, b"x" * (i % 9)) for i in range(20_000)], "gzip"))
    assert [row["offset"] for row in read(large, columns=["offset"])] == list(range(20_000))


def test_aborted_transactions_do_not_affect_messages() -> None:
    log = written(some(1)) + reference.write_batch(reference.sequence([b"a"], base_offset=110, flags=16, producer_id=7))
    aborted = [{"producer_id": -1, "first_offset": 0}, {"producer_id": 7, "first_offset": 0}]
    assert read(log, aborted_transactions=aborted) == [message.row() for message in some(1)]
    # Attribute bits that only record batches have are ignored.
    marked = Message(7, attributes=16 | 32)
    assert read(write(marked), aborted_transactions=aborted) == [marked.row()]


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 3)])
def test_messages_of_kafka_python_are_read(magic: int, codec: int) -> None:
    messages = some(magic, first=0, count=3)
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for message in messages:
        builder.append(message.offset, message.timestamp, message.key, message.value)
    assert read(bytes(builder.build())) == [message.row() for message in messages]


def test_wrong_checksum_of_an_lz4_frame_is_accepted_only_in_magic_0() -> None:
    with pytest.raises(Corrupt, match="message set at offset 105 cannot be read: it is not valid lz4"):
        read(write(wrap(some(1), "lz4", value=pack("lz4", written(some(1)), magic=0))))
    sound = wrap(some(0), "lz4", value=pack("lz4", written(some(0)), magic=1))
    assert len(read(write(sound))) == 5


@pytest.mark.parametrize("sized", [True, False])
def test_checksum_of_an_lz4_frame_is_corrected_exactly(sized: bool) -> None:
    import lz4.frame

    sound = bytearray(lz4.frame.compress(b"abc" * 1000, store_size=sized, block_linked=False))
    for wrong in range(256):
        broken = sound.copy()
        broken[14 if sized else 6] = wrong
        assert with_lz4_header_checksum(memoryview(broken)) == sound
    for size in range(7):
        assert bytes(with_lz4_header_checksum(memoryview(bytes(size)))) == bytes(size), "too short for a checksum"


# -- truncated messages ---------------------------------------------------------------------------


@BOTH
def test_truncated_message_reports_its_size(magic: int) -> None:
    complete, cut = write(Message(7, b"", None, magic)), write(Message(8, b"b" * 100, None, magic))
    for length in range(len(cut)):
        records = read_batch_headers(complete + cut[:length])
        assert (len(records), records.next_offset) == (1, 8)
        assert records.partial_bytes == (0 if length == 0 else 61 if length < 12 else len(cut))
        assert [row["offset"] for row in read(complete + cut[:length])] == [7]


# -- invalid messages -----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_messages_before_an_invalid_one_are_read(codec: str | None, magic: int) -> None:
    good = [Message(offset, b"good", None, magic) for offset in range(3)]
    stored = good if codec is None else [wrap([message], codec, offset=message.offset) for message in good]
    log = written(stored) + write(Message(3, b"bad", None, magic), crc=1) + written(some(magic))
    offsets: list[int] = []
    with pytest.raises(Corrupt, match="the message set at offset 3 "):  # noqa: PT012 (rows come before the error)
        for chunk in chunks(log):
            offsets.extend(chunk["offset"].to_pylist())
    assert offsets == [0, 1, 2]


@BOTH
def test_message_checksum_is_checked(magic: int) -> None:
    good, bad = Message(6, b"good", None, magic), write(Message(7, b"bad", None, magic), crc=1)
    with pytest.raises(Corrupt, match=r"orders-3: the message set at offset 7 .*CRC-32 is .*; check\.crcs=false"):
        read(write(good) + bad)
    around = wrap([good, good], "gzip", value=pack("gzip", write(good) + bad, magic), offset=9)
    for log in (write(around), write(wrap([good], "gzip", offset=9), crc=5)):
        with pytest.raises(Corrupt, match=r"orders-3: the message set at offset 9 .*CRC-32 is"):
            read(log)
    assert [row["value"] for row in read(write(good) + bad, check_crc=False)] == [b"good", b"bad"]


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (wrap([wrap(some(1, 0), "gzip")], "gzip", offset=9), "contains a compressed message"),
        (wrap(some(1), "gzip", value=None), "null"),
        (wrap(some(1), "gzip", value=pack("gzip", b"", 1)), "is empty"),
        (wrap(some(0), "gzip", value=pack("gzip", b"", 0)), "is empty"),
        (wrap(some(1), "gzip", value=pack("gzip", written(some(1))[:-1], 1)), "announces .* bytes"),
        (wrap(some(1), "gzip", value=pack("gzip", written(some(1, 0)) + b"cut", 1)), "cut"),
        (wrap(some(1), "gzip", value=pack("gzip", reference.write_batch(reference.sequence([b"a"])), 1)), "magic 2"),
        (wrap(some(1), "gzip", offset=4), "offset -1, outside"),
        (wrap(some(0), "gzip", offset=104), "offset 105, outside"),
        (wrap(some(1), "gzip", attributes=4), "codec is 4, which magic 1 does not have"),
        (wrap(some(0), "gzip", attributes=7), "codec is 7"),
        (wrap(some(1), "gzip", attributes=2), "not valid snappy"),
    ],
)
def test_invalid_wrapper_is_corrupt(wrapper: Message, words: str) -> None:
    place = f"orders-3: the message set at offset {wrapper.offset}"
    with pytest.raises(Corrupt, match=f"{place} cannot be read: .*{words}"):
        read(write(wrapper))


def test_wrapper_without_a_codec_is_a_message() -> None:
    assert len(read(write(wrap(some(1), "gzip", attributes=0, value=None, key=b"k")))) == 1


@BOTH
def test_damaged_wrapper_that_looks_uncompressed_is_corrupt(magic: int) -> None:
    """It would begin at its last offset, behind the end of the range."""
    sets = ([Message(offset, b"a", None, magic) for offset in range(first, first + 10)] for first in (0, 10))
    before, wrapper = (bytearray(write(wrap(messages, "gzip"))) for messages in sets)
    wrapper[17] ^= 1
    with pytest.raises(Corrupt, match="the message set at offset 19 "):
        read(bytes(before + wrapper), 0, 15)


def test_damaged_wrapper_that_looks_like_a_batch_is_corrupt() -> None:
    wrapper = bytearray(write(wrap([Message(offset, b"a", None, 0) for offset in range(10, 20)], "gzip")))
    wrapper[16] ^= 2
    for before in (b"", reference.write_batch(reference.sequence([b"a"] * 10))):
        with pytest.raises(Corrupt, match="the record batch at offset 19 is corrupt: its CRC-32C is"):
            read(before + wrapper, 10, 15)


def test_wrapper_after_a_later_message_hides_no_row() -> None:
    log = [Message(offset, b"a", None, 1) for offset in (0, 12)]
    wrapper = wrap([Message(offset, b"a", None, 1) for offset in range(1, 11)], "gzip")
    assert [row["offset"] for row in read(written([*log, wrapper]), 0, 10)] == list(range(10))


@pytest.mark.parametrize("offset", [-5, 2**63 - 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_invalid_offset_is_corrupt(codec: str, offset: int) -> None:
    log = write(Message(offset, b"", attributes=CODECS[codec]))
    assert len(read_batch_headers(write(Message(3)) + log)) == 1
    with pytest.raises(Corrupt, match=f"orders-3: the record batch at offset {offset} has base_offset {offset}"):
        read_batch_headers(log, where="orders-3")


@BOTH
@pytest.mark.parametrize("codec", PACKED)
def test_decompression_bomb_is_refused(codec: str, magic: int) -> None:
    log = write(wrap([Message(3, bytes(4 << 20), None, magic)], codec))
    with tracing():
        with pytest.raises(DecompressedTooLarge, match=r"orders-3: the message set at offset 3 .*exceeds 1048576 byt"):
            read(log, max_decompressed_bytes=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    assert peak < 5 << 20
    assert len(read(log, max_decompressed_bytes=5 << 20)) == 1


@BOTH
def test_mutated_messages_raise_only_protocol_errors(magic: int) -> None:
    inner = written(some(magic, count=40))
    seeds = [inner, *(write(wrap(some(magic, count=40), codec)) for codec in PACKED)]
    for rng in cases(f"messages {magic}", 200):
        provoke(corrupted(rng.choice(seeds), rng, seeds))
        provoke(write(wrap(some(magic, count=40), "gzip", value=pack("gzip", corrupted(inner, rng, seeds), magic))))


@BOTH
@pytest.mark.parametrize("length", [-(2**31), -2, 0, 1, 2**31 - 1])
def test_lengths_inside_a_message_are_checked(magic: int, length: int) -> None:
    complete = write(Message(4, b"value", b"key", magic))
    at = 26 if magic else 18
    for lying in (at, at + 7):
        body = complete[16:lying] + struct.pack(">i", length) + complete[lying + 4 :]
        with pytest.raises(ProtocolError, match=r"orders-3: the message set at offset 4 cannot be read"):
            read(complete[:12] + struct.pack(">I", zlib.crc32(body)) + body)
