"""Ten thousand keys go to the same partitions as with Java's producer, sarama and librdkafka, row by row."""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import random
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from protocol.config import PartitionStrategy, parse_producer
from protocol.producer.partitioner import Partitioner, partition_of
from tests import sarama
from tests.support.janino import java_command

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
