"""Hash many keys at once: murmur2 as in Java's producer, FNV-1a as in sarama, CRC-32 as in librdkafka.

Works on the buffers of an Arrow array in lockstep: step i processes the i-th word (or byte) of every key that is long
enough. The number of NumPy calls therefore depends on the length of the keys, not on their number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint32]
_Counts = npt.NDArray[np.int64]

# For fewer remaining long keys than this, a loop over the words of each costs less than NumPy calls.
_FEW = 8

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_M = 0x5BD1E995
_MURMUR2_R = 24
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619
_MASK = 0xFFFFFFFF


def murmur2(keys: pa.BinaryArray) -> Hashes:
    """Return Java's `Utils.murmur2` of every key as uint32; values at null keys are meaningless."""
    starts, lengths, data = _views(keys)
    words = lengths >> 2
    hashes = (lengths ^ _MURMUR2_SEED).astype(np.uint32)
    m = np.uint32(_MURMUR2_M)

    def mixed(word: Any) -> Any:
        word = word * m
        return (word ^ (word >> _MURMUR2_R)) * m

    # Every byte may start a word: one unaligned view instead of four gathers per word.
    at = np.ndarray((max(len(data) - 3, 0),), "<u4", data, strides=(1,))

    def step(hashes: Hashes, positions: _Counts) -> Hashes:
        result: Hashes = hashes * m ^ mixed(at[positions])
        return result

    def rest(value: int, start: int, count: int) -> int:
        for word in mixed(np.array(at[start : start + 4 * count : 4])).tolist():
            value = value * _MURMUR2_M & _MASK ^ word
        return value

    _fold(hashes, starts, words, 4, step, rest)
    _mix_tails(hashes, starts + 4 * words, lengths & 3, data)
    hashes ^= hashes >> 13
    hashes *= m
    hashes ^= hashes >> 15
    return hashes


def fnv1a(keys: pa.BinaryArray) -> Hashes:
    """Return the 32-bit FNV-1a hash of every key as uint32; values at null keys are meaningless."""
    starts, lengths, data = _views(keys)
    hashes = np.full(len(keys), _FNV_OFFSET, np.uint32)

    def step(hashes: Hashes, positions: _Counts) -> Hashes:
        result: Hashes = (hashes ^ data[positions]) * np.uint32(_FNV_PRIME)
        return result

    def rest(value: int, start: int, count: int) -> int:
        for byte in data[start : start + count].tobytes():
            value = (value ^ byte) * _FNV_PRIME & _MASK
        return value

    _fold(hashes, starts, lengths, 1, step, rest)
    return hashes


def crc32(keys: pa.BinaryArray) -> Hashes:
    """Return the CRC-32 (zlib) of every key as uint32; values at null keys are meaningless."""
    starts, lengths, data = _views(keys)
    view = memoryview(data)  # type: ignore[arg-type]  # the stubs for 3.10 do not know that arrays are buffers
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.fromiter((zlib.crc32(view[start:end]) for start, end in bounds), np.uint32, len(keys))


def _views(keys: pa.BinaryArray) -> tuple[_Counts, _Counts, npt.NDArray[np.uint8]]:
    """Return the start and length of each key, and the bytes of all keys, without copying the bytes."""
    _, offsets_buffer, data_buffer = keys.buffers()
    if not len(keys):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets[:-1], np.diff(offsets), data


def _fold(
    hashes: Hashes,
    starts: _Counts,
    counts: _Counts,
    width: int,
    step: Callable[[Hashes, _Counts], Hashes],
    fold_rest: Callable[[int, int, int], int],
) -> None:
    """Feed `counts[k]` units of `width` bytes of every key k into its hash, in place.

    `step(hashes, positions)` processes one unit of several keys; `fold_rest(hash, start, count)` many units of one key.
    """
    if not len(counts):
        return
    # Longest first, so that the keys that still take part are a prefix.
    order = np.argsort(-counts, kind="stable") if counts.min() != counts.max() else None
    work, starts, counts = (hashes, starts, counts) if order is None else (hashes[order], starts[order], counts[order])
    longest = int(counts[0])
    taking_part = len(counts) - np.searchsorted(counts[::-1], np.arange(min(longest, 1 << 16)), side="right")
    done = 0
    for number in taking_part.tolist():
        if number < _FEW and longest - done > _FEW:
            break
        work[:number] = step(work[:number], starts[:number] + width * done)
        done += 1
    for k in range(int((counts > done).sum())):
        work[k] = fold_rest(int(work[k]), int(starts[k]) + width * done, int(counts[k]) - done)
    if order is not None:
        hashes[order] = work


def _mix_tails(hashes: Hashes, starts: _Counts, counts: _Counts, data: npt.NDArray[np.uint8]) -> None:
    """Mix in murmur2's last one to three bytes, which do not fill a word."""
    for byte in (2, 1, 0):
        rows = np.flatnonzero(counts > byte)
        hashes[rows] ^= data[starts[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(counts)
    hashes[rows] *= np.uint32(_MURMUR2_M)
