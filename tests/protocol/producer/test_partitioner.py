"""Keys go to the same partition as in Java, sarama and librdkafka; rows without a key are spread."""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from protocol.config import PartitionStrategy, parse_producer
from protocol.errors import UsageError
from protocol.producer.key_hash import crc32, fnv1a, murmur2
from protocol.producer.partitioner import Partitioner, by_each_key, by_fnv1a, by_murmur2, partition_of
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.server import FakeKafka
from tests import sarama
from tests.support.janino import java_command


def binary(keys: list[bytes | None]) -> pa.BinaryArray:
    return pa.array(keys, pa.binary())


def ones(count: int, size: int = 100) -> np.ndarray:
    return np.full(count, size, np.int64)


@pytest.mark.parametrize("chunks", [[[2, 1]], [[2], [1]]], ids=["one chunk", "two chunks"])
def test_partitions_may_be_a_column_of_a_table(chunks: list[list[int]]) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic("t", 3)
        with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
            sent = producer.send_columns("t", rows, pa.chunked_array(chunks, pa.int32()))
            producer.flush()
        assert sent.result()["partition"].to_pylist() == [2, 1]


def test_producer_partitions_by_the_configured_strategy() -> None:
    keys = [b"%d" % number for number in range(20)]
    with FakeKafka() as kafka:
        kafka.create_topic("t", 7)
        with Producer(bootstrap_servers=kafka.bootstrap_servers, partitioner_class="fnv1a") as producer:
            sent = producer.send_columns("t", pa.RecordBatch.from_pydict({"key": keys, "value": keys}))
        assert sent.result()["partition"].to_pylist() == by_fnv1a(binary([*keys]), 7).tolist()


class TestHashes:
    def test_slice_of_an_array_is_hashed_correctly(self) -> None:
        keys = [b"%d" % number * (number % 9) for number in range(1_000)]
        assert murmur2(binary(keys).slice(123, 456)).tolist() == murmur2(binary(keys[123:579])).tolist()

    @pytest.mark.parametrize("hashed", [murmur2, fnv1a, crc32])
    def test_empty_array_has_no_hashes_and_empty_keys_are_hashed(self, hashed: Callable[..., np.ndarray]) -> None:
        assert hashed(binary([])).tolist() == []
        assert hashed(binary([])[:0]).tolist() == []
        assert len(set(hashed(binary([b"", b""])).tolist())) == 1


class TestRowsWithoutKey:
    def test_rows_stay_with_one_partition_for_the_sticky_bytes(self) -> None:
        partitioner = Partitioner(sticky_bytes=1_000, rng=random.Random(3))
        chosen = partitioner.choose(None, ones(40), 4)
        runs = [int(chosen[first]) for first in range(0, 40, 10)]
        assert sorted(runs) == [0, 1, 2, 3]
        assert chosen.tolist() == [partition for partition in runs for _ in range(10)]

    def test_sticky_partition_continues_in_the_next_call(self) -> None:
        complete = Partitioner(sticky_bytes=1_000, rng=random.Random(3)).choose(None, ones(64), 4)
        partitioner = Partitioner(sticky_bytes=1_000, rng=random.Random(3))
        parts = [partitioner.choose(None, ones(count), 4) for count in (3, 17, 30, 14)]
        assert np.concatenate(parts).tolist() == complete.tolist()

    def test_rows_are_spread_evenly_and_every_16_kib_by_default_as_in_java(self) -> None:
        chosen = Partitioner(sticky_bytes=1_000).choose(None, ones(12_000), 12)
        assert np.bincount(chosen, minlength=12).tolist() == [1_000] * 12
        chosen = Partitioner(rng=random.Random(3)).choose(None, ones(320, 1_024), 20)
        assert np.bincount(chosen, minlength=20).tolist() == [16] * 20

    @pytest.mark.parametrize(("available", "chosen"), [([1, 2], {1, 2}), ([], {0, 1, 2})], ids=["some", "none"])
    def test_rows_go_only_to_partitions_with_a_leader_if_there_are_any(
        self, available: list[int], chosen: set[int]
    ) -> None:
        assert set(Partitioner(sticky_bytes=100).choose(None, ones(100), 3, available=available).tolist()) == chosen

    def test_rows_with_a_key_keep_their_partition_among_others(self) -> None:
        keys: list[bytes | None] = [None if n % 3 == 0 else b"key-%d" % n for n in range(999)]
        chosen = Partitioner(sticky_bytes=100).choose(binary(keys), ones(999), 5)
        hashed = by_murmur2(binary(keys), 5)
        with_key = np.array([key is not None for key in keys])
        assert chosen[with_key].tolist() == hashed[with_key].tolist()
        assert set(chosen[~with_key].tolist()) == set(range(5))

    def test_short_lived_producers_start_with_different_partitions(self) -> None:
        firsts = {int(Partitioner().choose(None, ones(1), 8)[0]) for _ in range(200)}
        assert firsts == set(range(8))

    def test_partition_with_fewer_queued_batches_is_chosen_more_often(self) -> None:
        # As in Java: the longest queue plus one, minus the partition's own queue.
        chosen = Partitioner(sticky_bytes=100).choose(None, ones(12_000), 3, available=[0, 1, 2], queued=[3, 0, 1])
        share = np.bincount(chosen, minlength=3) / 12_000
        assert share == pytest.approx([1 / 8, 4 / 8, 3 / 8], abs=0.03)

    def test_sticky_partition_is_kept_for_any_queue(self) -> None:
        partitioner = Partitioner(sticky_bytes=1_000)
        (first,) = set(partitioner.choose(None, ones(5), 4, available=[0, 1, 2, 3]).tolist())
        queued = [9 if number == first else 0 for number in range(4)]
        remainder = partitioner.choose(None, ones(6), 4, available=[0, 1, 2, 3], queued=queued).tolist()
        assert remainder[:5] == [first] * 5

    def test_sticky_partition_is_left_without_a_leader(self) -> None:
        partitioner = Partitioner(sticky_bytes=1_000)
        (first,) = set(partitioner.choose(None, ones(5), 3, available=[0, 1, 2]).tolist())
        numbers = [number for number in range(3) if number != first]
        assert set(partitioner.choose(None, ones(4), 3, available=numbers).tolist()) < set(numbers)


class TestStrategies:
    def test_keys_are_ignored_by_configuration(self) -> None:
        keys = binary([b"same"] * 1_000)
        chosen = Partitioner(sticky_bytes=1_000, ignore_keys=True).choose(keys, ones(1_000), 4)
        assert np.bincount(chosen, minlength=4).tolist() == [250] * 4

    def test_manual_partitioner_refuses_rows_without_a_partition(self) -> None:
        with pytest.raises(UsageError, match=r"3 rows have no partition, and partitioner\.class is manual"):
            Partitioner("manual").choose(None, ones(3), 4)

    def test_function_of_one_key_becomes_one_of_columns(self) -> None:
        of_columns = by_each_key(lambda key, count: count - 1 if key is None else key[0] % count)
        rows = pa.RecordBatch.from_pydict({"key": binary([b"a", None, b"c"]), "value": binary([b"", b"", b""])})
        assert of_columns("t", rows, 5).tolist() == [ord("a") % 5, 4, ord("c") % 5]
        assert of_columns("t", rows.select(["value"]), 5).tolist() == [4, 4, 4]

    def test_round_robin_continues_across_calls_and_ignores_keys(self) -> None:
        partitioner = Partitioner("round_robin", rng=random.Random(1))
        keys = binary([b"same"] * 5)
        chosen = [*partitioner.choose(keys, ones(5), 3).tolist(), *partitioner.choose(keys, ones(4), 3).tolist()]
        assert sorted(chosen[:3]) == [0, 1, 2]
        assert chosen == chosen[:3] * 3

    def test_random_uses_every_partition(self) -> None:
        chosen = Partitioner("random").choose(binary([b"same"] * 1_000), ones(1_000), 4)
        assert min(np.bincount(chosen, minlength=4)) > 150

    def test_unknown_strategy_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(UsageError, match=r"murmur2, fnv1a, .*, random, round_robin, manual"):
            Partitioner("murmur3")


COUNTS = (7, 12)


def keys_of_all_kinds() -> list[bytes]:
    rng = random.Random(11)
    words = ["", " ", "kafka", "Köln", "東京", "Ω" * 30, "\0", "null", "🙂" * 9]
    long = [rng.randbytes(size) for size in (1_000, 4_097, 65_536, 100_003)]
    made = [*(word.encode() for word in words), *long]
    return made + [rng.randbytes(rng.choice([1, 2, 3, 4, 5, 8, 13, 16, 31, 200])) for _ in range(10_000 - len(made))]


KEYS = keys_of_all_kinds()
LINES = "".join(base64.b64encode(key).decode() + "\n" for key in KEYS)


def ours(strategy: PartitionStrategy, count: int, keys: list[bytes | None] | None = None) -> list[int]:
    column = pa.array(KEYS if keys is None else keys, pa.binary())
    return Partitioner(strategy).choose(column, np.full(len(column), 100), count).tolist()


def partitions_of_program(command: list[str]) -> list[list[int]]:
    """Return the numbers that a program prints for each key."""
    output = subprocess.run(command, input=LINES, capture_output=True, text=True, check=True, timeout=60).stdout
    partitions = [[int(number) for number in line.split()] for line in output.splitlines()]
    assert len(partitions) == len(KEYS)
    return partitions


def test_murmur2_partitions_equal_javas() -> None:
    """Slow the first time: downloads Apache Kafka."""
    reference = partitions_of_program(java_command(Path(__file__).with_name("JavaPartitioner.java")))
    for nth, count in enumerate(COUNTS):
        assert ours("murmur2", count) == [row[nth] for row in reference]
    assert [partition_of(key, 7) for key in KEYS[:50]] == [row[0] for row in reference[:50]]


def test_partitions_equal_saramas() -> None:
    """Slow the first time: downloads sarama and compiles it."""
    program = sarama.build()
    strategies: tuple[PartitionStrategy, ...] = ("fnv1a", "fnv1a_reference", "crc32", "murmur2")
    for count in COUNTS:
        reference = partitions_of_program([str(program), "partition", str(count)])
        for nth, strategy in enumerate(strategies):
            assert ours(strategy, count) == [row[nth] for row in reference], strategy


@pytest.fixture(scope="module")
def librdkafka() -> ctypes.CDLL:
    """Load the library bundled with confluent-kafka: its partitioners are functions of a key and a number."""
    spec = importlib.util.find_spec("confluent_kafka")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.parent.glob("confluent_kafka.libs/librdkafka*")
    import confluent_kafka  # noqa: F401  what the library needs is loaded with it

    return ctypes.CDLL(str(path))


@pytest.mark.parametrize(
    "name", ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"]
)
def test_partitions_equal_librdkafkas(librdkafka: ctypes.CDLL, name: str) -> None:
    strategy = parse_producer({"partitioner": name}).partitioner
    function = librdkafka[f"rd_kafka_msg_partitioner_{name}"]
    function.restype = ctypes.c_int32
    text, size, number = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32
    function.argtypes = (ctypes.c_void_p, text, size, number, ctypes.c_void_p, ctypes.c_void_p)
    # Without a topic, librdkafka cannot choose at random, which it does for keys that it does not hash.
    hashed = [key for key in KEYS if key or name != "consistent_random"]
    for count in COUNTS:
        reference = [function(None, key, len(key), count, None, None) for key in hashed]
        assert ours(strategy, count, list(hashed)) == reference
        if not name.endswith("_random"):
            of_null = function(None, None, 0, count, None, None)
            assert ours(strategy, count, [None, b"k", None])[::2] == [of_null] * 2
            assert Partitioner(strategy).choose(None, np.full(3, 100), count).tolist() == [of_null] * 3
    if name.endswith("_random"):
        assert len(set(ours(strategy, 12, [None] * 5_000))) == 12
    if name == "consistent_random":
        assert len(set(ours(strategy, 12, [b""] * 5_000))) == 12
