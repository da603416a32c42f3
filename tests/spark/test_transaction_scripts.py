"""Random scripts of interleaved transactions: this client, librdkafka and Java (Spark's JVM connector) read equal rows.

A script writes to one partition with up to four transactional producers and one plain producer. Half of the
transactions are aborted; some partitions are compacted afterwards. `make soak` runs a thousand scripts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.log_segments import CODECS, stored_batches
from tests.support.soak import SOAK, scaled
from tests.support.wait_for_brokers import wait_until_decided
from tests.support.wait_until import comes_true, wait_until
from tests.support.whole_rows import Partition, rows_of_java, rows_of_librdkafka, rows_of_ours

pytestmark = pytest.mark.soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = scaled("SCRIPTS", 12, 1_000)
SCRIPTS_AT_ONCE = 100
# Share of the partitions that are not compacted.
UNCOMPACTED_SHARE = 0.75

VALUE_BYTES = (0, 1, 12, 300, 3_000)
HEADERS = (None, [("trace", b"abc")], [("a", None), ("a", b""), ("b", b"\xff")])
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.0001",
    "max.compaction.lag.ms": "500",
}
_ROLL_MS = 10_000  # a record this much later than the first of a segment rolls the segment


@pytest.fixture(scope="module")
def writers(kafka1: LocalKafka) -> list[Producer]:
    """Transactional producers, two per codec: with small and with large record batches."""
    made = []
    for number in range(2 * len(CODECS)):
        settings = {
            "transactional.id": f"script-{number}-{time.time_ns()}",
            "compression.codec": CODECS[number % len(CODECS)],
            "batch.num.messages": 3 if number % 2 else 10_000,
        }
        made.append(Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0, **settings}))
        made[-1].init_transactions(30)
    return made


@pytest.fixture(scope="module")
def non_transactional(kafka1: LocalKafka) -> Producer:
    return Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})


@pytest.mark.skipif(not SOAK, reason="takes half a minute; `make soak` runs it")
@pytest.mark.timeout(3_600)
def test_random_transaction_scripts_give_rows_of_librdkafka_and_java(
    kafka1: LocalKafka, topic1: TopicFactory, spark: SparkSession, writers: list[Producer], non_transactional: Producer
) -> None:
    settings = {"retention.ms": "-1"}
    for first in range(0, SCRIPTS, SCRIPTS_AT_ONCE):
        scripts = range(first, min(first + SCRIPTS_AT_ONCE, SCRIPTS))
        retained = max(1, int(len(scripts) * UNCOMPACTED_SHARE))
        topics = {topic1(retained, config=settings): retained}
        if retained < len(scripts):
            topics[topic1(len(scripts) - retained, config=settings | _COMPACTED)] = len(scripts) - retained
        partitions = [(name, number) for name, count in topics.items() for number in range(count)]
        for script, (name, number) in zip(scripts, partitions, strict=True):
            write_script(random.Random(script), name, number, writers, non_transactional)
        wait_until_decided(kafka1, partitions)
        for compacted in list(topics)[1:]:
            compact_for_once(kafka1, compacted, topics[compacted], non_transactional)
        read = {level: compare(kafka1, spark, partitions, level) for level in ("read_uncommitted", "read_committed")}
        assert 0 < read["read_committed"] < read["read_uncommitted"]
        print(f"scripts {scripts.start} to {scripts.stop - 1}: {read} rows")


def compare(kafka: LocalKafka, spark: SparkSession, partitions: Sequence[Partition], isolation_level: str) -> int:
    """Read with all three clients and compare; return the number of rows."""
    ours = rows_of_ours(kafka, partitions, isolation_level)
    for client, expected in (
        ("librdkafka", rows_of_librdkafka(kafka, partitions, isolation_level)),
        ("Java", rows_of_java(kafka, spark, partitions, isolation_level)),
    ):
        for number, partition in enumerate(partitions):
            where = f"{partition}, script {number} of its round, {isolation_level}, against {client}"
            assert ours.get(partition, []) == expected.get(partition, []), where
    return sum(map(len, ours.values()))


# -- writing --------------------------------------------------------------------------------------


def write_script(
    rng: random.Random, topic: str, partition: int, writers: Sequence[Producer], non_transactional: Producer
) -> None:
    chosen = rng.sample(writers, rng.randint(1, 4))
    in_transaction: list[Producer] = []
    for _ in range(rng.randint(6, 16)):
        writer = rng.choice([*chosen, non_transactional])
        if writer in in_transaction and rng.random() < 0.5:
            in_transaction.remove(writer)
            end_transaction(rng, writer)
            continue
        if writer is not non_transactional and writer not in in_transaction:
            writer.begin_transaction()
            in_transaction.append(writer)
        write_some(rng, writer, topic, partition)
    for writer in in_transaction:
        end_transaction(rng, writer)


def write_some(rng: random.Random, writer: Producer, topic: str, partition: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    for _ in range(rng.choice((1, 2, 5, 20))):
        value = None if rng.random() < 0.2 else rng.randbytes(rng.choice(VALUE_BYTES))
        # Compacted topics refuse null keys.
        key = b"key %d" % rng.randrange(8)
        timestamp_ms = now_ms - rng.randrange(1_000)
        writer.produce(topic, value, key, partition, headers=rng.choice(HEADERS), timestamp=timestamp_ms)
    # Append these records before the next writer's.
    assert writer.flush(30) == 0


def end_transaction(rng: random.Random, writer: Producer) -> None:
    if rng.random() < 0.5:
        writer.abort_transaction(30)
    else:
        writer.commit_transaction(30)


def compact_for_once(kafka: LocalKafka, topic: str, partitions: int, non_transactional: Producer) -> None:
    """Wait until every partition is compacted, then stop the cleaner: all readers must see the same log."""
    folder = kafka.data_folder(1)
    now_ms = time.time_ns() // 1_000_000
    # This record begins a new segment in each partition; the cleaner compacts the segments before it.
    last: dict[Partition, int] = {}
    for number in range(partitions):
        non_transactional.produce(
            topic,
            b"",
            b"last",
            number,
            timestamp=now_ms + _ROLL_MS,
            on_delivery=lambda _, sent: last.update({(topic, sent.partition()): sent.offset()}),
        )
    assert non_transactional.flush(30) == 0
    cleaned = partial(cleaned_to, folder)
    wait_until(lambda: all(cleaned().get(key, 0) >= offset for key, offset in last.items()), cleaned, 120, 0.2)
    # Offsets include those of removed records and of markers.
    assert records_stored(folder, topic, partitions) < sum(last.values())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    wait_until_still(lambda: [stored_batches(folder, topic, number) for number in range(partitions)])


def records_stored(folder: Path, topic: str, partitions: int) -> int:
    return sum(batch.records for number in range(partitions) for batch in stored_batches(folder, topic, number))


def cleaned_to(folder: Path) -> dict[Partition, int]:
    """Return the first offset not compacted, by partition, from the broker's checkpoint file of the cleaner."""
    lines = (folder / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    fields = (line.rsplit(" ", 2) for line in lines)
    return {(topic, int(partition)): int(offset) for topic, partition, offset in fields}


def wait_until_still(observe: Callable[[], object]) -> None:
    """Wait until `observe` returns the same for 1.5 s, which is longer than the cleaner's pause between rounds."""
    observed = observe()
    while comes_true(lambda: observe() != observed, 1.5):  # noqa: B023
        observed = observe()
