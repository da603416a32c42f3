"""Record bounds: the fast methods find exactly the loop's result, or leave the work to the loop."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from protocol.errors import ProtocolError
from protocol.records.record_bounds import record_bounds, record_bounds_in_parts
from protocol.testing.fake_kafka.record_batches import Record, write_record

Sizes = Callable[[random.Random], int]
VALUE_SIZES: dict[str, Sizes] = {
    "one size": lambda rng: 100,
    "varied": lambda rng: rng.randrange(40, 200),
    "tiny": lambda rng: rng.randrange(3),
    "around the second length byte": lambda rng: rng.randrange(50, 60),
    "mostly small": lambda rng: 5_000 if rng.random() < 0.01 else 20,
    "some of three length bytes": lambda rng: 10_000 if rng.random() < 0.001 else 60,
    "all of three length bytes": lambda rng: 9_000,
}


def some_records(
    sizes: Sizes, count: int, payload: Callable[[random.Random, int], bytes], headers: bool
) -> list[bytes]:
    rng = random.Random(count)
    pairs = (("trace", b"x" * 9),) if headers else ()
    return [write_record(Record(payload(rng, sizes(rng)), b"k", delta, delta // 9, pairs)) for delta in range(count)]


def noise(rng: random.Random, size: int) -> bytes:
    return rng.randbytes(size)


def zeros(rng: random.Random, size: int) -> bytes:
    return bytes(size)


def record_lookalikes(rng: random.Random, size: int) -> bytes:
    """Return values that look like chains of records, indistinguishable from the real ones."""
    return (write_record(Record(b"v" * rng.randrange(30))) * (size // 8 + 1))[:size]


def expected(records: Sequence[bytes], begin: int) -> list[int]:
    return list(accumulate(map(len, records), initial=begin))


@pytest.mark.parametrize(
    ("payload", "headers"), [(noise, False), (zeros, False), (record_lookalikes, False), (noise, True)]
)
@pytest.mark.parametrize("sizes", VALUE_SIZES)
def test_bounds_of_one_large_batch(sizes: str, payload: Any, headers: bool) -> None:
    count = 1_500 if sizes.startswith("all") else 9_000
    records = some_records(VALUE_SIZES[sizes], count, payload, headers)
    data = np.frombuffer(b"\xfe" * 61 + b"".join(records), np.uint8)
    for rows_at_once in (4_000, 20_000):
        parts = list(record_bounds_in_parts(data, 61, len(data), count, rows_at_once))
        assert all(len(part[0]) <= 2 * rows_at_once for part in parts)
        edges = expected(records, 61)
        assert np.concatenate([part[0] for part in parts]).tolist() == edges[:-1]
        assert np.concatenate([part[1] for part in parts]).tolist() == edges[1:]


@pytest.mark.parametrize("payload", [noise, zeros, record_lookalikes])
@pytest.mark.parametrize("counts", [[1] * 400, [30] * 100, [5, 4_000, 7] * 2, list(range(1, 120)), [3_000] * 3])
def test_bounds_of_many_batches(counts: list[int], payload: Any) -> None:
    records = some_records(VALUE_SIZES["varied"], sum(counts), payload, headers=False)
    log, begins, ends, edges = bytearray(), [], [], []
    remaining = iter(records)
    for count in counts:
        log += b"\0" * 61
        begins.append(len(log))
        own = [next(remaining) for _ in range(count)]
        edges += list(zip(expected(own, len(log)), expected(own, len(log))[1:], strict=False))
        log += b"".join(own)
        ends.append(len(log))
    result = record_bounds(np.frombuffer(log, np.uint8), *map(np.array, (begins, ends, counts)))
    assert list(zip(*(column.tolist() for column in result), strict=True)) == edges


@pytest.mark.parametrize(("sizes", "way"), [("varied", "bounds_in_lockstep"), ("one size", "_bounds_at_stride")])
def test_fast_methods_are_used(sizes: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fast methods, this file would only test the loop."""
    records = some_records(VALUE_SIZES[sizes], 9_000, noise, headers=False)
    data = np.frombuffer(b"".join(records), np.uint8)
    collected: list[int] = []
    module = sys.modules[record_bounds.__module__]
    real = getattr(module, way)

    def watched(*arguments: Any) -> Any:
        bounds = real(*arguments)
        collected.append(0 if bounds is None else len(bounds[0]))
        return bounds

    monkeypatch.setattr(module, way, watched)
    list(record_bounds_in_parts(data, 0, len(data), 9_000, 20_000))
    assert sum(collected) > 8_000


@pytest.mark.parametrize("wrong", [-1, 1, 5, -8_000])
@pytest.mark.parametrize("sizes", ["one size", "varied"])
def test_wrong_count_is_corrupt(sizes: str, wrong: int) -> None:
    records = some_records(VALUE_SIZES[sizes], 9_000, noise, headers=False)
    data = np.frombuffer(b"".join(records), np.uint8)
    with pytest.raises(ProtocolError):
        list(record_bounds_in_parts(data, 0, len(data), 9_000 + wrong, 4_000))
    with pytest.raises(ProtocolError):
        record_bounds(data, np.array([0]), np.array([len(data)]), np.array([9_000 + wrong]))


def test_end_inside_a_record_is_corrupt() -> None:
    records = some_records(VALUE_SIZES["varied"], 9_000, noise, headers=False)
    data = np.frombuffer(b"".join(records), np.uint8)
    for cut in (1, 30, 500):
        for complete in (data, data[:-cut]):
            with pytest.raises(ProtocolError):
                list(record_bounds_in_parts(complete, 0, len(data) - cut, 9_000, 4_000))
