"""Compress and decompress record batches, with a size cap that is checked before the memory is used.

Contains the framing that Kafka expects of each codec (xerial blocks for snappy, independent blocks for lz4). Handles
bytes only: `decode` adds the batch's offset to the errors.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import Corrupt, DecompressedTooLarge, Truncated
from protocol.wire.primitives import BytesLike, Reader

Bytes = npt.NDArray[np.uint8]


class Codec(enum.IntEnum):
    """The lowest three bits of a batch's attributes; the names are the values of `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = struct.Struct(">i")
_STREAM_NAMES = {Codec.GZIP: "gzip", Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}
_COUNTING_BYTES = 1 << 20
_LZ4_HAS_SIZE = 0x08
_LZ4_LARGEST_RATIO = 255
"""A byte of input makes at most this many bytes of output, so a small frame needs no cap."""
_DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.ZSTD: 3}
"""The Java client's defaults. The default of lz4 is its fast mode."""


def decompress(codec: int, data: BytesLike, scratch: Bytes, cap_bytes: int) -> Bytes:
    """Return the decompressed bytes of `data`.

    `codec`: number of a `Codec` other than `NONE`.
    `data`: compressed records of one batch.
    `scratch`: scratch memory. The result is a view of its start if it fits there, else a new array.
    `cap_bytes`: maximum size of the result.
    Raises `DecompressedTooLarge`: the result has more than `cap_bytes` bytes; raised before more memory than that is
    used. `Corrupt`: `data` is not valid output of `codec`, or the codec is unknown.
    """
    if len(scratch) > cap_bytes:
        scratch = scratch[:cap_bytes]
    packed = memoryview(data)
    try:
        if codec == Codec.SNAPPY:
            return _decompress_snappy(packed, scratch, cap_bytes)
        if codec == Codec.LZ4 and packed.nbytes <= len(scratch) // _LZ4_LARGEST_RATIO:
            small = _decompress_small_lz4(packed, scratch)
            if small is not None:
                return small
        return _decompress_stream(_STREAM_NAMES[Codec(codec)], data, scratch, cap_bytes)
    except (OSError, RuntimeError, pa.ArrowException, Truncated) as error:
        raise Corrupt(f"it is not valid {Codec(codec).name.lower()}: {error}") from error
    except (ValueError, KeyError) as error:
        raise Corrupt(f"its compression codec is {codec}; valid are 0 to {max(Codec)}") from error


def compress(codec: int, data: BytesLike, level: int | None = None) -> BytesLike:
    """Compress `data` so that the Java client, librdkafka and sarama can read it; `level` is on the codec's scale."""
    if codec == Codec.NONE:
        return data
    packed: bytes
    if codec == Codec.LZ4:
        # Kafka's own lz4 reader supports only independent blocks.
        packed = lz4.frame.compress(data, compression_level=level or 0, block_linked=False)
        return packed
    if codec == Codec.SNAPPY:
        return _pack_xerial(memoryview(data))
    kind = Codec(codec)
    level = _DEFAULT_LEVELS[kind] if level is None else level
    # asbytes: as a memoryview, the pa.Buffer returned otherwise has the length of its unshrunk allocation.
    packed = pa.Codec(_STREAM_NAMES[kind], compression_level=level).compress(data, asbytes=True)
    return packed


# -- gzip, lz4, zstd: streams ---------------------------------------------------------------------


def _decompress_stream(name: str, data: BytesLike, scratch: Bytes, cap_bytes: int) -> Bytes:
    stream = pa.CompressedInputStream(pa.BufferReader(data), name)
    size_bytes = _fill(stream, scratch)
    if size_bytes < len(scratch):
        return scratch[:size_bytes]
    if name == "zstd":
        # The stream holds a window of up to 128 MiB beside the output. So count first, then decompress in one call.
        size_bytes += _count(stream, cap_bytes - size_bytes, cap_bytes)
        del stream
        return np.frombuffer(pa.Codec(name).decompress(data, size_bytes), np.uint8)
    # The kernel maps memory when it is touched: a small batch under a large cap costs only its own size.
    large = np.empty(cap_bytes + 1, np.uint8)
    large[:size_bytes] = scratch
    size_bytes += _fill(stream, large[size_bytes:])
    if size_bytes > cap_bytes:
        raise _too_large(cap_bytes)
    return large[:size_bytes]


def _decompress_small_lz4(data: memoryview, scratch: Bytes) -> Bytes | None:
    """Decompress one frame of at most `len(scratch) / 255` bytes without a stream; its result fits in `scratch`.

    Returns None if the input needs a stream: it has several frames, or claims a large size.
    """
    head = bytes(data[:14])
    # The memory for the size that a frame claims would be allocated at once.
    if len(head) < 14 or (head[4] & _LZ4_HAS_SIZE and int.from_bytes(head[6:14], "little") > len(scratch)):
        return None
    unpacked, read_bytes = lz4.frame.decompress(data, return_bytes_read=True)
    if read_bytes != data.nbytes:
        return None
    size_bytes = len(unpacked)
    # For a batch of 16 KiB, NumPy takes longer to find out that no conversion is needed.
    scratch.data[:size_bytes] = unpacked
    return scratch[:size_bytes]


def _fill(stream: Any, target: Bytes) -> int:
    """Read until `target` is full or the stream ends; return the number of bytes read."""
    filled = 0
    while filled < len(target):
        got = stream.readinto(target[filled:])
        if not got:
            break
        filled += got
    return filled


def _count(stream: Any, at_most_bytes: int, cap_bytes: int) -> int:
    """Count the remaining bytes of a stream."""
    sink = np.empty(_COUNTING_BYTES, np.uint8)
    counted = 0
    while got := _fill(stream, sink):
        counted += got
        if counted > at_most_bytes:
            raise _too_large(cap_bytes)
    return counted


def _too_large(cap_bytes: int) -> DecompressedTooLarge:
    failure = f"its decompressed size exceeds {cap_bytes} bytes; increase max.decompressed.batch.bytes"
    return DecompressedTooLarge(failure, settings=("max.decompressed.batch.bytes",))


# -- snappy: one raw block, or xerial's sequence of them ------------------------------------------


def _decompress_snappy(data: memoryview, scratch: Bytes, cap_bytes: int) -> Bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        blocks = [data]
    else:
        reader = Reader(data)
        reader.advance(len(_XERIAL_HEADER))
        blocks = []
        while reader.left:
            blocks.append(reader.take(max(0, reader.int32())))
    sizes = [Reader(block).uvarint() for block in blocks]
    total = sum(sizes)
    if total > cap_bytes:
        raise _too_large(cap_bytes)
    codec = pa.Codec("snappy")
    if len(blocks) == 1 and total > len(scratch):
        return np.frombuffer(codec.decompress(blocks[0], total), np.uint8)
    out = scratch if total <= len(scratch) else np.empty(total, np.uint8)
    position = 0
    for block, size_bytes in zip(blocks, sizes, strict=True):
        out[position : position + size_bytes] = np.frombuffer(codec.decompress(block, size_bytes), np.uint8)
        position += size_bytes
    return out[:total]


def _pack_xerial(data: memoryview) -> bytes:
    codec = pa.Codec("snappy")
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)
