"""Decode message sets of magic 0 and 1, which Kafka wrote before 0.11, into the columns of `decode`.

A message is an entry of the log, or is compressed together with others into the value of a wrapper message. These
formats are rare today, so the code favours clarity: one Python object per message. Used by `decode`, and by
`memory_records`, which treats each entry of the log as a record batch.

Sources: KIP-31 (offsets within a wrapper), KIP-32 (timestamps), KAFKA-3160 (checksums of lz4 frames).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import Corrupt, ProtocolError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP_MS
from protocol.records.arrow_numpy import binary_column, numpy_type, record_batch, to_arrow
from protocol.records.batch_header import (
    COMPRESSION_MASK,
    FRAME,
    LARGEST_OFFSET,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
)
from protocol.records.compression import Bytes, Codec, decompress

T = TypeVar("T")

NO_TIMESTAMP_TYPE = -1
"""Timestamp type of messages of magic 0; the Java client's `TimestampType` has the numbers -1, 0 and 1."""
_LOG_APPEND_TIME_TYPE = 1

_MESSAGE_START = struct.Struct(">qiIbb")
"""Offset, size, CRC-32, magic, attributes: the start of a message of either magic."""
_CRC_DATA_AT = 16
_ATTRIBUTES_AT = 17
_INT64, _INT32 = struct.Struct(">q"), struct.Struct(">i")
_MIN_SIZE = (14, 22)
"""By magic: the size field of a message without key and value."""
_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)

_CHUNK_ROWS = 8_000
_CHUNK_BYTES = 16 << 20
_SCRATCH_BYTES = 1 << 20


class Message(NamedTuple):
    """A message and its position, `start` to `end`, in a byte array; a null key or value has length -1."""

    start: int
    end: int
    offset: int
    magic: int
    codec: int
    timestamp_ms: int
    timestamp_type: int
    key_at: int
    key_length: int
    value_at: int
    value_length: int


# -- for memory_records ---------------------------------------------------------------------------


def require_message(view: memoryview, position: int, size: int, offset: int, where: str) -> None:
    """Raise `Corrupt` if a log entry is too short for a message of its magic; magic 0 if `view` ends before that byte.

    `view`: records of one partition in a Fetch response.
    `position`: start of the entry in `view`.
    `size`: the entry's size field: bytes after it.
    `offset`: the entry's offset, for the error message.
    `where`: start of the error message, for example "orders-3".
    """
    magic = view[position + MAGIC_AT] if position + MAGIC_AT < len(view) else 0
    if magic >= MAGIC or size < _MIN_SIZE[magic]:
        raise Corrupt(f"{where}: the record batch at offset {offset} announces {size} bytes, less than its header")


def fill_message_headers(headers: npt.NDArray[Any], view: memoryview) -> None:
    """Correct the rows of `MemoryRecords.headers` of messages, which were read with the layout of magic 2.

    Each message is a batch of one record. Fields that messages do not have become -1, also timestamps: `decode` reads
    them. The base offset of a wrapper is not stored: it is assumed to follow the last offset of the batch before, or to
    be 0 if offsets go backwards. So is that of other messages, since the bit that tells them apart is not checked yet.
    """
    magic, offset = headers["magic"], headers["base_offset"].copy()
    rows = np.flatnonzero(magic < MAGIC)
    attributes = np.frombuffer(view, np.uint8)[headers["position"][rows] + _ATTRIBUTES_AT]
    # A message has its CRC-32 where magic 2 has the partition leader epoch.
    crc = headers["partition_leader_epoch"][rows].astype(np.uint32)
    for name, value in (
        ("partition_leader_epoch", NO_LEADER_EPOCH),
        ("crc", crc),
        ("first_timestamp_ms", NO_TIMESTAMP_MS),
        ("max_timestamp_ms", NO_TIMESTAMP_MS),
        ("attributes", attributes & (COMPRESSION_MASK | LOG_APPEND_TIME)),
        ("last_offset", offset[rows]),
        ("last_offset_delta", 0),
        ("count", 1),
        ("producer_id", NO_PRODUCER_ID),
        ("producer_epoch", NO_PRODUCER_EPOCH),
        ("base_sequence", NO_SEQUENCE),
    ):
        headers[name][rows] = value
    before = np.where(rows > 0, headers["last_offset"][rows - 1], -1)
    headers["base_offset"][rows] = np.where(before < offset[rows], before + 1, 0)


# -- for decode -----------------------------------------------------------------------------------


def decode_messages(
    view: memoryview,
    positions: Iterable[int],
    schema: pa.Schema,
    *,
    first_offset: int,
    end_offset: int,
    max_decompressed_bytes: int,
    check_crc: bool,
    where: str,
) -> Iterator[pa.RecordBatch]:
    """Decode the messages of the log that start at `positions` in `view`; other arguments as in `decode.decode`."""
    data = np.frombuffer(view, np.uint8)
    scratch = np.empty(_SCRATCH_BYTES, np.uint8)

    def parts() -> Iterator[tuple[Bytes, Iterable[Message]]]:
        outer = (_outer_message(view, position, check_crc, where) for position in positions)
        for wrapped, run in groupby(outer, key=lambda message: message.codec != Codec.NONE):
            if not wrapped:
                yield data, run
                continue
            for wrapper in run:
                unpacked = _decompress(data, wrapper, scratch, max_decompressed_bytes, where)
                yield unpacked, _inner_messages(unpacked, wrapper, check_crc, where)

    def chunks() -> Iterator[pa.RecordBatch]:
        for part, messages in _until_error(parts(), failures):
            read = (message for message in messages if first_offset <= message.offset < end_offset)
            for chunk in _chunked(_until_error(read, failures)):
                yield _record_batch(part, chunk, schema)
            if failures:
                return

    failures: list[ProtocolError] = []
    yield from _merge_small(chunks(), schema)
    if failures:
        raise failures[0]


def _until_error(items: Iterator[T], failures: list[ProtocolError]) -> Iterator[T]:
    """Yield the items before an error and append it: what precedes it is delivered first."""
    try:
        yield from items
    except ProtocolError as error:
        failures.append(error)


def _outer_message(view: memoryview, position: int, check_crc: bool, where: str) -> Message:
    offset, size = FRAME.unpack_from(view, position)
    try:
        return _message(view[: position + LOG_OVERHEAD_BYTES + size], position, check_crc)
    except ProtocolError as error:
        raise _with_offset(error, offset, where) from error


def _decompress(data: Bytes, wrapper: Message, scratch: Bytes, cap_bytes: int, where: str) -> Bytes:
    """Decompress the message set in a wrapper."""
    try:
        if wrapper.codec not in _CODECS:
            raise Corrupt(f"its compression codec is {wrapper.codec}, which magic {wrapper.magic} does not have")
        if wrapper.value_length < 0:
            raise Corrupt("the compressed message set is null")
        packed = data[wrapper.value_at : wrapper.value_at + wrapper.value_length].data
        if wrapper.codec == Codec.LZ4 and wrapper.magic == 0:
            packed = with_lz4_header_checksum(packed)
        return decompress(wrapper.codec, packed, scratch, cap_bytes)
    except ProtocolError as error:
        raise _with_offset(error, wrapper.offset, where) from error


def _inner_messages(data: Bytes, wrapper: Message, check_crc: bool, where: str) -> Iterator[Message]:
    """Yield the messages of a wrapper, with their offsets and timestamps in the log."""
    view = data.data
    try:
        first = _base_offset(view, wrapper)
        position = 0
        while position < len(view):
            message = _message(view, position, check_crc)
            if message.codec != Codec.NONE:
                raise Corrupt("it contains a compressed message")
            offset = first + message.offset
            if not 0 <= offset <= (wrapper.offset or LARGEST_OFFSET):
                raise Corrupt(f"a message in it has offset {offset}, outside the message set")
            message = message._replace(offset=offset)
            if message.magic > 0:
                message = message._replace(timestamp_type=wrapper.timestamp_type)
                if wrapper.timestamp_type == _LOG_APPEND_TIME_TYPE:
                    message = message._replace(timestamp_ms=wrapper.timestamp_ms)
            yield message
            position = message.end
    except ProtocolError as error:
        raise _with_offset(error, wrapper.offset, where) from error


def _base_offset(view: memoryview, wrapper: Message) -> int:
    """Return the number to add to the offsets in a wrapper.

    Magic 0: 0, since they are absolute. Magic 1: they are relative, and the wrapper has the offset of its last message.
    """
    position = last = 0
    if not len(view):
        raise Corrupt("the compressed message set is empty")
    if wrapper.magic == 0:
        return 0
    while position + LOG_OVERHEAD_BYTES <= len(view):
        last, size = FRAME.unpack_from(view, position)
        if size < _MIN_SIZE[0]:
            raise Corrupt(f"a message in it announces {size} bytes, less than its header")
        position += LOG_OVERHEAD_BYTES + size
    # Some versions of librdkafka set the wrapper's offset to 0.
    return wrapper.offset - last if wrapper.offset else 0


def _message(view: memoryview, start: int, check_crc: bool) -> Message:
    """Parse the message at `start`; raise `Corrupt` if it is truncated, damaged or not filled by its fields."""
    try:
        offset, size, crc, magic, attributes = _MESSAGE_START.unpack_from(view, start)
        end = start + LOG_OVERHEAD_BYTES + size
        if not 0 <= magic < MAGIC:
            raise Corrupt(f"a message has magic {magic}; known are 0 and 1")
        if size < _MIN_SIZE[magic] or end > len(view):
            raise Corrupt(f"a message announces {size} bytes, but {len(view) - start - LOG_OVERHEAD_BYTES} are left")
        if check_crc and (own_crc := zlib.crc32(view[start + _CRC_DATA_AT : end])) != crc:
            raise Corrupt(
                f"its CRC-32 is {own_crc:08x}, its header says {crc:08x}. Fetch it again, or from another replica; "
                "check.crcs=false reads it unverified",
                settings=("check.crcs",),
            )
        at = start + _MESSAGE_START.size
        timestamp_ms, timestamp_type = NO_TIMESTAMP_MS, NO_TIMESTAMP_TYPE
        if magic == 1:
            (timestamp_ms,), timestamp_type = _INT64.unpack_from(view, at), int(attributes & LOG_APPEND_TIME != 0)
            at += _INT64.size
        key_at, key_length = _field(view, at, end)
        value_at, value_length = _field(view, key_at + max(0, key_length), end)
    except struct.error as error:
        raise Corrupt(f"a message is cut off: {error}") from error
    if value_at + max(0, value_length) != end:
        raise Corrupt("the fields of a message do not fill it exactly")
    return Message(
        start,
        end,
        offset,
        magic,
        attributes & COMPRESSION_MASK,
        timestamp_ms,
        timestamp_type,
        key_at,
        key_length,
        value_at,
        value_length,
    )


def _field(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the start and length of a key or value."""
    length: int = _INT32.unpack_from(view, at)[0]
    at += _INT32.size
    if length < -1 or at + max(0, length) > end:
        raise Corrupt(f"a key or value has length {length}, but {end - at} bytes are left")
    return at, length


def _with_offset(error: ProtocolError, offset: int, where: str) -> ProtocolError:
    return type(error)(f"{where}: the message set at offset {offset} cannot be read: {error}", base_offset=offset)


# -- lz4 as Kafka wrote it in magic 0 -------------------------------------------------------------


def with_lz4_header_checksum(frame: memoryview) -> memoryview:
    """Return an lz4 frame with the header checksum that the lz4 format requires.

    In magic 0 Kafka includes the frame's magic number in the checksum, against the format (KAFKA-3160).
    """
    flags = frame[4] if len(frame) > 4 else 0
    at = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if at >= len(frame):
        return frame
    corrected = bytearray(frame)
    corrected[at] = _xxh32(frame[4:at]) >> 8 & 0xFF
    return memoryview(corrected)


def _xxh32(data: memoryview) -> int:
    """Compute xxHash-32 with seed 0 of fewer than 16 bytes."""
    value = 0x165667B1 + len(data)
    striped = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:striped]):
        value = _rotate_left(value + word * 0xC2B2AE3D, 17) * 0x27D4EB2F
    for byte in data[striped:]:
        value = _rotate_left(value + byte * 0x165667B1, 11) * 0x9E3779B1
    value &= 0xFFFFFFFF
    value = (value ^ value >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE3D & 0xFFFFFFFF
    return value ^ value >> 16


def _rotate_left(value: int, bits: int) -> int:
    value &= 0xFFFFFFFF
    return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF


# -- columns --------------------------------------------------------------------------------------


def _chunked(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield at most `_CHUNK_ROWS` messages at a time, fewer if they have more than `_CHUNK_BYTES`."""
    chunk: list[Message] = []
    for message in messages:
        if chunk and (len(chunk) == _CHUNK_ROWS or message.end - chunk[0].start > _CHUNK_BYTES):
            yield chunk
            chunk = []
        chunk.append(message)
    if chunk:
        yield chunk


def _record_batch(data: Bytes, messages: list[Message], schema: pa.Schema) -> pa.RecordBatch:
    columns = dict(zip(Message._fields, np.array(messages, np.int64).T.copy(), strict=True))

    def array(field: pa.Field) -> pa.Array:
        if field.name in ("key", "value"):
            return binary_column(data, columns[f"{field.name}_at"], columns[f"{field.name}_length"])
        if field.name == "headers":
            return pa.nulls(len(messages), field.type)
        return to_arrow(columns[field.name].astype(numpy_type(field.type)))

    return record_batch([array(field) for field in schema], len(messages), schema)


def _merge_small(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Combine small record batches: a wrapper may hold only a few messages."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > _CHUNK_ROWS or size_bytes + batch.nbytes > _CHUNK_BYTES):
            yield _concatenate(waiting, rows, schema)
            waiting, rows, size_bytes = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if waiting:
        yield _concatenate(waiting, rows, schema)


def _concatenate(batches: list[pa.RecordBatch], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = range(len(schema))
    return record_batch([pa.concat_arrays([batch.column(i) for batch in batches]) for i in columns], rows, schema)
