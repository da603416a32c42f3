"""The codecs: formats read and written, and a cap on the decompressed size, checked before memory is used."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest

from protocol.errors import Corrupt, DecompressedTooLarge, ProtocolError
from protocol.records.compression import Codec, compress, decompress
from protocol.records.legacy import with_lz4_header_checksum
from protocol.testing.fake_kafka import record_batches as reference
from protocol.testing.fake_kafka.record_batches import Record, sealed, sequence, write_batch, write_record
from tests.protocol.records.reading import rows
from tests.support.hostile import tracing

PACKED = [codec for codec in Codec if codec != Codec.NONE]
CAP = 8 << 20
ROOM = 1 << 20  # bytes of the output buffer that `decompress` is given


def unpack(codec: int, data: bytes, cap_bytes: int = CAP) -> bytes:
    return bytes(decompress(codec, data, np.empty(ROOM, np.uint8), cap_bytes))


def raw_snappy(data: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(data))


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("size", [0, 1, 1_000, 32 << 10, (32 << 10) + 1, ROOM - 1, ROOM, ROOM + 1, 3 << 20])
def test_compressed_data_is_decompressed(codec: Codec, size: int) -> None:
    data = (random.Random(size).randbytes(max(1, size // 3)) * 4)[:size]
    packed = bytes(compress(codec, data))
    assert unpack(codec, packed) == data
    assert reference.decompress(codec.name.lower(), packed) == data


@pytest.mark.parametrize("codec", PACKED)
def test_compression_level_is_applied(codec: Codec) -> None:
    data = b"".join(b"record %d " % (i * i) for i in range(20_000))
    for level in (1, 9):
        assert unpack(codec, bytes(compress(codec, data, level))) == data
    if codec != Codec.SNAPPY:
        assert len(compress(codec, data, 9)) != len(compress(codec, data, 1))


def test_lz4_blocks_are_independent_as_java_requires() -> None:
    descriptor = bytes(compress(Codec.LZ4, b"a" * 200_000))[4]
    assert descriptor >> 6 == 1, "version 1"
    assert descriptor & 0x20, "independent blocks"


def test_snappy_is_written_with_javas_framing() -> None:
    packed = bytes(compress(Codec.SNAPPY, b"a" * 100_000))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_concatenated_streams_are_read_as_one(codec: Codec) -> None:
    assert unpack(codec, bytes(compress(codec, b"first ")) + bytes(compress(codec, b"second"))) == b"first second"


def test_frames_without_a_content_size_are_read() -> None:
    data = b"abc" * 1_000_000
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    assert unpack(Codec.ZSTD, bytes(sink.getvalue())) == data
    assert unpack(Codec.LZ4, lz4.frame.compress(data, store_size=False)) == data


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("cap", [5_000, ROOM, ROOM + 5, 3 << 20])
def test_size_of_the_cap_is_accepted_and_one_more_byte_refused(codec: Codec, cap: int) -> None:
    assert len(unpack(codec, bytes(compress(codec, bytes(cap))), cap)) == cap
    with pytest.raises(DecompressedTooLarge, match=str(cap)):
        unpack(codec, bytes(compress(codec, bytes(cap + 1))), cap)


@pytest.mark.parametrize("codec", PACKED)
def test_truncated_data_is_an_error_or_a_prefix(codec: Codec) -> None:
    rng = random.Random(1).randbytes(300) * 3
    packed = bytes(compress(codec, rng))
    for length in range(len(packed)):
        with contextlib.suppress(Corrupt):
            assert rng.startswith(unpack(codec, packed[:length]))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_named(codec: int) -> None:
    batch = sequence([b"a"], base_offset=5, flags=codec)
    with pytest.raises(Corrupt, match=f"orders-3: .*offset 5 .*codec is {codec}"):
        rows(write_batch(batch))


def test_frame_with_a_false_large_size_takes_no_memory() -> None:
    frame = bytearray(compress(Codec.LZ4, b"abc" * 100))
    frame[6:14] = (2**40).to_bytes(8, "little")
    frame = bytearray(with_lz4_header_checksum(memoryview(frame)))
    with tracing():
        with pytest.raises(ProtocolError):
            unpack(Codec.LZ4, bytes(frame))
        peak = tracemalloc.get_traced_memory()[1]
    assert peak < 2 * ROOM


# -- decompression bombs --------------------------------------------------------------------------


def bomb(kind: str, size: int) -> bytes:
    """Return `size` zero bytes, compressed as small as the codec can."""
    chunk = bytes(1 << 20)
    if kind == "gzip":
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join(packer.compress(chunk) for _ in range(size >> 20)) + packer.flush()
    if kind == "snappy":
        block = raw_snappy(chunk)
        return b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1" + (len(block).to_bytes(4, "big") + block) * (size >> 20)
    if kind == "snappy-raw":
        return raw_snappy(bytes(size))
    if kind == "lz4":
        with lz4.frame.LZ4FrameCompressor() as packer:
            return b"".join([packer.begin(), *(packer.compress(chunk) for _ in range(size >> 20)), packer.flush()])
    if kind == "zstd-stream":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            for _ in range(size >> 20):
                stream.write(chunk)
        return bytes(sink.getvalue())
    return bytes(pa.Codec("zstd", compression_level=19).compress(bytes(size)))


BOMBS = ["gzip", "snappy", "snappy-raw", "lz4", "zstd", "zstd-stream"]

MEASURE = """
import os, sys
import pandas  # Arrow imports it with the first array, which must not count as growth
from protocol.errors import DecompressedTooLarge
from protocol.records.decode import decode
from protocol.records.memory_records import read_batch_headers
from tests.support.peak_memory import peak_rss_bytes

def read(path, cap):
    log = open(path, "rb").read()
    before = peak_rss_bytes()
    try:
        records = read_batch_headers(log)
        list(decode(records, first_offset=0, end_offset=9, max_decompressed_bytes=cap, where="orders-3"))
        message = "passed"
    except DecompressedTooLarge as error:
        message = str(error)
    print(message, (peak_rss_bytes() - before) >> 20, sep="\\n", flush=True)

for line in sys.stdin:
    path, cap = line.split("\\t")
    if os.fork() == 0:
        read(path, int(cap))
        os._exit(0)
    if os.wait()[1]:
        print("the process died", 0, sep="\\n", flush=True)
"""

ReadInProcess = Callable[[bytes, int], tuple[str, int]]


@pytest.fixture(scope="module")
def read_in_a_fresh_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadInProcess]:
    """Yield a function from a log and a cap in bytes to the outcome and the growth of peak memory in MiB."""
    path = tmp_path_factory.mktemp("bombs") / "log"
    # The process imports once and forks for each log, so that each log starts with fresh memory.
    with subprocess.Popen([sys.executable, "-c", MEASURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:

        def read(log: bytes, cap: int) -> tuple[str, int]:
            assert reader.stdin is not None
            assert reader.stdout is not None
            path.write_bytes(log)
            reader.stdin.write(f"{path}\t{cap}\n".encode())
            reader.stdin.flush()
            message, grown = reader.stdout.readline(), reader.stdout.readline()
            return message.decode().strip(), int(grown)

        yield read
        assert reader.stdin is not None
        reader.stdin.close()


@pytest.mark.parametrize("kind", BOMBS)
def test_decompression_bomb_is_refused_within_the_cap(kind: str, read_in_a_fresh_process: ReadInProcess) -> None:
    section = bomb(kind, 96 << 20)
    assert len(section) < 6 << 20
    batch = sequence([b"x"], base_offset=5, codec=kind.split("-")[0])
    message, grown_mib = read_in_a_fresh_process(sealed(batch, section), CAP)
    assert message.startswith("orders-3: the record batch at offset 5 ")
    assert "; increase max.decompressed.batch.bytes" in message
    assert grown_mib <= (CAP >> 20) + 32


@pytest.mark.parametrize("codec", reference.CODECS)
def test_batch_of_exactly_the_cap_is_read_within_the_cap(codec: str, read_in_a_fresh_process: ReadInProcess) -> None:
    cap = 64 << 20
    overhead = len(write_record(Record(bytes(cap - 20)))) - (cap - 20)
    batch = sequence([bytes(cap - overhead)], codec=codec)
    message, grown_mib = read_in_a_fresh_process(write_batch(batch), cap)
    assert message == "passed"
    # The row is returned in addition to the decompressed batch; a third copy would exceed the limit.
    assert grown_mib <= 2 * (cap >> 20) + 48
