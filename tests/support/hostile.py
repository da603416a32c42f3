"""Helpers of the tests with hostile bytes: memory limits of readers, random corruptions, and the number of cases.

The cases are the same in every run, unless `SPARK_KAFKA_SOURCE_FUZZ_S` is set: then each random test runs that many
seconds, with new cases. A failing case is printed in hexadecimal digits.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from protocol.errors import ProtocolError
from tests.support.soak import scaled

_FUZZ_S = scaled("FUZZ_S", 0.0, 60.0)
_SEED = time.time_ns() if _FUZZ_S else 0

LARGEST_RATIO = 8
SPARE_BYTES = 1 << 20
LONGEST_S = 5.0

_NUMBERS = [
    number.to_bytes(size, "big", signed=True)
    for size in (2, 4, 8)
    for number in (-(1 << 8 * size - 1), -2, -1, 0, 1, 0x7F, (1 << 8 * size - 1) - 1)
]
_VARINTS = [b"\x00", b"\x01", b"\x80\x00", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08", b"\xff" * 9 + b"\x01"]


@contextmanager
def tracing() -> Iterator[None]:
    """Trace memory allocations in the block."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def provoke(read: Callable[[bytes], object], data: bytes, size_bytes: int | None = None) -> bool:
    """Return True if `read(data)` succeeds. Assert that it raises protocol errors only, in limited time and memory.

    Call it within `tracing()`. The memory limit is relative to `size_bytes`, by default the size of `data`.
    """
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    started_s = time.process_time()
    try:
        read(data)
        well = True
    except ProtocolError:
        well = False
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__}: {error}; the bytes were {data.hex()}") from error
    took_s = time.process_time() - started_s
    peak = tracemalloc.get_traced_memory()[1] - before
    allowed = LARGEST_RATIO * (len(data) if size_bytes is None else size_bytes) + SPARE_BYTES
    assert peak <= allowed, f"{peak} bytes of memory, {allowed} allowed; the bytes were {data.hex()}"
    assert took_s < LONGEST_S, f"took {took_s:.1f} s; the bytes were {data.hex()}"
    return well


def cases(name: str, count: int) -> Iterator[random.Random]:
    """Yield a random generator for each of `count` cases, and for more until the configured time has passed."""
    until_s = time.monotonic() + _FUZZ_S
    nth = 0
    while nth < count or time.monotonic() < until_s:
        yield random.Random(f"{name} {_SEED} {nth}")
        nth += 1


def corrupted(data: bytes, rng: random.Random, further: list[bytes]) -> bytes:
    """Return `data` with random corruptions: changed bits, numbers and varints; removed, repeated or moved bytes."""
    spoiling = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        if not spoiling:
            break
        at = rng.randrange(len(spoiling))
        size = rng.choice([1, 2, 4, 8, rng.randrange(1, len(spoiling) + 1)])
        kind = rng.randrange(8)
        if kind == 0:
            spoiling[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            spoiling[at] = rng.randrange(256)
        elif kind == 2:
            number = rng.choice(_NUMBERS)
            spoiling[at : at + len(number)] = number
        elif kind == 3:
            spoiling[at : at + rng.choice([1, 2, 5])] = rng.choice(_VARINTS)
        elif kind == 4:
            del spoiling[at : at + size]
        elif kind == 5:
            spoiling[at:at] = spoiling[at : at + size]
        elif kind == 6:
            choice = rng.choice(further)
            begin = rng.randrange(len(choice) + 1)
            spoiling[at : at + size] = choice[begin : begin + size]
        else:
            spoiling[at:at] = rng.randbytes(min(size, 64))
    return bytes(spoiling)
