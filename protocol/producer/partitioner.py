"""Which partition each row goes to: by the hash of its key, or spread where there is no key.

Called by `async_producer` with the columns of one batch, one `Partitioner` per topic. Knows no broker: it is told how
many partitions there are and which of them have a leader. The hashes are in `key_hash`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.config import PartitionStrategy
from protocol.errors import UsageError
from protocol.producer.key_hash import crc32, fnv1a, murmur2
from protocol.records.arrow_numpy import valid

# After so many bytes rows without a key go to another partition: Java's default (KIP-794). There it is `batch.size`,
# which is 16 KiB as well; here record batches are larger, and a task of some thousand rows would fill just one.
STICKY_BYTES = 16_384

Partitions = npt.NDArray[np.int32]


def by_murmur2(keys: pa.BinaryArray, partition_count: int) -> Partitions:
    """As Java's producer: the hash without its sign bit, modulo the partitions. An empty key is a key like others."""
    positive = murmur2(keys) & np.uint32(0x7FFFFFFF)
    return _int32(positive % np.uint32(partition_count))


def by_fnv1a(keys: pa.BinaryArray, partition_count: int) -> Partitions:
    """As sarama's hash partitioner: the remainder of the signed hash, without its sign."""
    signed = fnv1a(keys).view(np.int32).astype(np.int64)
    return _int32(np.abs(np.fmod(signed, partition_count)))


def by_crc32(keys: pa.BinaryArray, partition_count: int) -> Partitions:
    """As librdkafka's `consistent` partitioner."""
    return _int32(crc32(keys) % np.uint32(partition_count))


def _int32(numbers: npt.NDArray[Any]) -> Partitions:
    return numbers.astype(np.int32)


_BY_KEY: dict[str, Callable[[pa.BinaryArray, int], Partitions]] = {
    "murmur2": by_murmur2,
    "fnv1a": by_fnv1a,
    "crc32": by_crc32,
}


class Partitioner:
    """Chooses partitions for the rows of one topic, batch after batch.

    The hash strategies ("murmur2", Java's default; "fnv1a", sarama's; "crc32", librdkafka's) spread rows whose key is
    null: they stay with one partition for `sticky_bytes`, as in Java, then go on to the next, in an order drawn once.
    "random" and "round_robin" do not look at keys.
    """

    def __init__(
        self,
        strategy: PartitionStrategy = "murmur2",
        sticky_bytes: int = STICKY_BYTES,
        rng: random.Random | None = None,
    ) -> None:
        if strategy not in (*_BY_KEY, "random", "round_robin"):
            known = ", ".join((*_BY_KEY, "random", "round_robin"))
            raise UsageError(f"partitioner {strategy!r} is not known; choose one of {known}")
        self._strategy = strategy
        self._sticky_bytes = max(1, sticky_bytes)
        self._rng = rng or random.Random()  # noqa: S311
        self._order: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._turn = 0
        self._bytes_at_turn = 0

    def choose(
        self,
        keys: pa.BinaryArray | None,
        sizes: npt.NDArray[np.int64],
        partition_count: int,
        available: Sequence[int] | None = None,
    ) -> Partitions:
        """One partition per row, int32. `keys` None: no row has one. `sizes` are the records' bytes.

        `available` are the partitions that have a leader: rows without a key go only to them, if there are any.
        """
        rows = len(sizes)
        by_key = _BY_KEY.get(self._strategy)
        if by_key is None or keys is None or keys.null_count == rows:
            return self._spread(sizes, partition_count, available)
        chosen = by_key(keys, partition_count)
        if keys.null_count:
            without_key = np.flatnonzero(~valid(keys))
            chosen[without_key] = self._spread(sizes[without_key], partition_count, available)
        return chosen

    def _spread(
        self, sizes: npt.NDArray[np.int64], partition_count: int, available: Sequence[int] | None
    ) -> Partitions:
        order = self._drawn_order(available or range(partition_count))
        if self._strategy == "random":
            generator = np.random.default_rng(self._rng.getrandbits(64))
            return order[generator.integers(len(order), size=len(sizes))]
        if self._strategy == "round_robin":
            turns = self._turn + np.arange(len(sizes))
            self._turn += len(sizes)
            return order[turns % len(order)]
        # A row belongs to the turn in which its first byte falls.
        before = self._bytes_at_turn + np.cumsum(sizes) - sizes
        turns = self._turn + before // self._sticky_bytes
        total = self._bytes_at_turn + int(sizes.sum())
        self._turn += total // self._sticky_bytes
        self._bytes_at_turn = total % self._sticky_bytes
        return order[turns % len(order)]

    def _drawn_order(self, candidates: Sequence[int]) -> npt.NDArray[np.int32]:
        """The candidates in an order drawn once: many short-lived producers must not all begin with partition 0."""
        wanted = sorted(candidates)
        if sorted(self._order.tolist()) != wanted:
            self._rng.shuffle(wanted)
            self._order = np.array(wanted, np.int32)
        return self._order
