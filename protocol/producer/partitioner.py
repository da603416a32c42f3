"""Partition strategies: by the hash of the key, or spread for rows without a key.

Called by `partition_choice` with the columns of one call, one `Partitioner` per topic. `key_hash` has the hashes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.config import PartitionStrategy
from protocol.errors import UsageError
from protocol.producer.key_hash import crc32, fnv1a, murmur2
from protocol.records.arrow_numpy import binaries, to_numpy, valid

# Rows without a key change the partition after this many bytes: Java's default (KIP-794). In Java it is `batch.size`,
# also 16 KiB. Record batches are larger here; a task with some thousand rows would fill only one.
STICKY_BYTES = 16_384

Partitions = npt.NDArray[np.int32]
PartitionFunction = Callable[[str, pa.RecordBatch, int], Any]
"""A user's partitioner: (topic, columns, number of partitions) to an int32 array, one partition per row.

The strategy chooses for rows that are null in the array."""


# -- by key ---------------------------------------------------------------------------------------


def by_murmur2(keys: pa.BinaryArray, partition_count: int) -> Partitions:
    """Hash as Java's producer: the hash without its sign bit, modulo the partitions. An empty key is a normal key."""
    return _positive(murmur2(keys), partition_count)


def by_fnv1a(keys: pa.BinaryArray, partition_count: int) -> Partitions:
    """Hash as sarama's `HashPartitioner`: the absolute remainder of the signed hash."""
    signed = fnv1a(keys).view(np.int32).astype(np.int64)
    return _int32(np.abs(np.fmod(signed, partition_count)))


def by_fnv1a_reference(keys: pa.BinaryArray, partition_count: int) -> Partitions:
    """Hash as sarama's `ReferenceHashPartitioner`: the hash without its sign bit, modulo the partitions."""
    return _positive(fnv1a(keys), partition_count)


def by_crc32(keys: pa.BinaryArray, partition_count: int) -> Partitions:
    """Hash as librdkafka's `consistent` partitioner and sarama's `ConsistentCRCHashPartitioner`."""
    return _int32(crc32(keys) % np.uint32(partition_count))


def _positive(hashes: npt.NDArray[np.uint32], partition_count: int) -> Partitions:
    return _int32((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count))


def _int32(numbers: npt.NDArray[Any]) -> Partitions:
    return numbers.astype(np.int32)


class _ByKey(NamedTuple):
    """A hash, and the keys whose rows are spread instead. Null keys that are hashed count as empty."""

    hashed: Callable[[pa.BinaryArray, int], Partitions]
    spreads: Literal["null", "null and empty", "nothing"] = "null"


_BY_KEY: dict[str, _ByKey] = {
    "murmur2": _ByKey(by_murmur2),
    "fnv1a": _ByKey(by_fnv1a),
    "fnv1a_reference": _ByKey(by_fnv1a_reference),
    "crc32": _ByKey(by_crc32),
    "consistent": _ByKey(by_crc32, "nothing"),
    "consistent_random": _ByKey(by_crc32, "null and empty"),
    "murmur2_consistent": _ByKey(by_murmur2, "nothing"),
    "fnv1a_consistent": _ByKey(by_fnv1a, "nothing"),
}


def partition_of(key: bytes, partition_count: int, strategy: PartitionStrategy = "murmur2") -> int:
    """Return the partition of one key, for a strategy that hashes keys."""
    return int(_BY_KEY[strategy].hashed(binaries([key]), partition_count)[0])


def by_each_key(choose: Callable[[bytes | None, int], int]) -> PartitionFunction:
    """Make a partitioner from a function of one key (None: no key) and the number of partitions."""

    def partitions_of(topic: str, columns: pa.RecordBatch, partition_count: int) -> Partitions:
        if "key" not in columns.schema.names:
            keys: list[bytes | None] = [None] * columns.num_rows
        else:
            keys = columns.column("key").to_pylist()
        return np.array([choose(key, partition_count) for key in keys], np.int32)

    return partitions_of


# -- of a topic -----------------------------------------------------------------------------------


class Partitioner:
    """Chooses partitions for the rows of one topic, in successive calls.

    Rows that a strategy does not hash stay with one partition for `sticky_bytes`, then change it, as in Java. "random"
    and "round_robin" ignore keys, and so does any strategy with `ignore_keys`. "manual" chooses no partitions.
    """

    def __init__(
        self,
        strategy: PartitionStrategy = "murmur2",
        sticky_bytes: int = STICKY_BYTES,
        rng: random.Random | None = None,
        *,
        ignore_keys: bool = False,
    ) -> None:
        names = (*_BY_KEY, "random", "round_robin", "manual")
        if strategy not in names:
            raise UsageError(f"partitioner {strategy!r} is not known; choose one of {', '.join(names)}")
        self._strategy = strategy
        self._by_key = None if ignore_keys else _BY_KEY.get(strategy)
        self._rng = rng or random.Random()  # noqa: S311
        # With one byte per turn, each row starts a new turn.
        self._sticky = StickySpread(1 if strategy == "round_robin" else sticky_bytes, self._rng)

    def choose(
        self,
        keys: pa.BinaryArray | None,
        sizes: npt.NDArray[np.int64],
        partition_count: int,
        available: Sequence[int] | None = None,
        queued: Sequence[int] | None = None,
    ) -> Partitions:
        """Choose one partition per row. `keys` is None if no row has a key; `sizes` are the bytes of each record.

        `available` are the partitions with a leader; rows without a key go only to them, if there are any. `queued` has
        the number of waiting batches of each available partition.
        """
        if self._by_key is None:
            return self._spread(sizes, partition_count, available, queued)
        hashed, spreads = self._by_key
        if spreads == "nothing":
            return _hash_all(hashed, keys, len(sizes), partition_count)
        if keys is None or keys.null_count == len(sizes):
            return self._spread(sizes, partition_count, available, queued)
        chosen = hashed(keys, partition_count)
        spread = ~valid(keys) if keys.null_count else np.zeros(len(sizes), np.bool_)
        if spreads == "null and empty":
            spread |= to_numpy(pc.binary_length(keys)) == 0
        if spread.any():
            chosen[spread] = self._spread(sizes[spread], partition_count, available, queued)
        return chosen

    def _spread(
        self,
        sizes: npt.NDArray[np.int64],
        partition_count: int,
        available: Sequence[int] | None,
        queued: Sequence[int] | None,
    ) -> Partitions:
        candidates = available or range(partition_count)
        if self._strategy == "manual":
            raise UsageError(
                f"{len(sizes)} rows have no partition, and partitioner.class is manual: give every row one",
                settings=("partitioner.class",),
            )
        if self._strategy == "random":
            generator = np.random.default_rng(self._rng.getrandbits(64))
            return np.array(candidates, np.int32)[generator.integers(len(candidates), size=len(sizes))]
        known_queues = queued if available and self._strategy != "round_robin" else None
        return self._sticky.choose(sizes, candidates, known_queues)


def _hash_all(
    hashed: Callable[[pa.BinaryArray, int], Partitions], keys: pa.BinaryArray | None, rows: int, partition_count: int
) -> Partitions:
    """Hash all keys, null keys as if they were empty."""
    (of_null,) = hashed(binaries([b""]), partition_count)
    if keys is None:
        return np.full(rows, of_null)
    return np.where(valid(keys), hashed(keys, partition_count), of_null)


# -- without a key --------------------------------------------------------------------------------


class StickySpread:
    """Spreads rows without a key, as Java's `BuiltInPartitioner` (KIP-794): turns of `sticky_bytes` per partition.

    A row belongs to the turn of its first byte.
    """

    def __init__(self, sticky_bytes: int, rng: random.Random) -> None:
        self._sticky_bytes = max(1, sticky_bytes)
        self._rng = rng
        self._order: Partitions = np.empty(0, np.int32)
        self._begun = 0
        self._current: int | None = None
        self._bytes_at_turn = 0

    def choose(
        self, sizes: npt.NDArray[np.int64], candidates: Sequence[int], queued: Sequence[int] | None = None
    ) -> Partitions:
        """Choose one of `candidates` for each row. `sizes` are the bytes of each row.

        `queued` has the number of waiting batches of each candidate. Fewer make a candidate likelier, as in Java. If
        equal or not given, the candidates take turns.
        """
        if not len(sizes):
            return np.empty(0, np.int32)
        self._draw_order(candidates)
        numbers = (self._bytes_at_turn + np.cumsum(sizes) - sizes) // self._sticky_bytes
        if self._current is None:
            numbers += 1
        # A large row may span several turns; turns without the start of a row are skipped.
        turns = np.cumsum(np.diff(numbers, prepend=0) > 0)
        partitions = np.r_[self._current or 0, self._begin(int(turns[-1]), candidates, queued)].astype(np.int32)
        total = self._bytes_at_turn + int(sizes.sum())
        self._bytes_at_turn = total % self._sticky_bytes
        # The last row may have ended its turn.
        turn_is_full = total // self._sticky_bytes > int(numbers[-1]) - (self._current is None)
        self._current = None if turn_is_full else int(partitions[-1])
        chosen: Partitions = partitions[turns]
        return chosen

    def _begin(self, count: int, candidates: Sequence[int], queued: Sequence[int] | None) -> Partitions:
        """Return the partitions of the next `count` turns."""
        if queued is None or min(queued) == max(queued):
            turns = self._order[(self._begun + np.arange(count)) % len(self._order)]
            self._begun += count
            return turns
        ends = np.cumsum(max(queued) + 1 - np.array(queued))
        drawn = np.array([self._rng.randrange(int(ends[-1])) for _ in range(count)], np.int64)
        return np.array(candidates, np.int32)[np.searchsorted(ends, drawn, side="right")]

    def _draw_order(self, candidates: Sequence[int]) -> None:
        """Draw a random order once, so that short-lived producers do not all begin with partition 0."""
        ordered = sorted(candidates)
        if sorted(self._order.tolist()) != ordered:
            self._rng.shuffle(ordered)
            self._order = np.array(ordered, np.int32)
            if self._current not in ordered:
                self._current = None
