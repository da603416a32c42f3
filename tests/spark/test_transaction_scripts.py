"""Random scripts of interleaved transactions: every row as librdkafka and Java (Spark's JVM connector) read it.

A script writes one partition: up to four transactional producers and one plain one take turns, with all codecs, half of
the transactions aborted, tombstones, headers; some partitions are compacted afterwards. `make soak` runs a thousand.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from protocol.cluster.client import Client
from protocol.config import ClientConfig, parse_consumer
from protocol.consumer.list_offsets import EARLIEST, LATEST, list_offsets
from protocol.consumer.range_consumer import Range, RangeConsumer
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.log_segments import stored_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = int(os.environ.get("SPARK_KAFKA_SOURCE_SCRIPTS", "24"))
SCRIPTS_AT_ONCE = 100
# The rest is compacted.
PLAIN_SHARE = 0.75

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VALUE_BYTES = (0, 1, 12, 300, 3_000)
HEADERS = (None, [("trace", b"abc")], [("a", None), ("a", b""), ("b", b"\xff")])
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.0001",
    "max.compaction.lag.ms": "500",
}
_ROLL_MS = 10_000  # a record this much younger than a segment's first begins a new segment

Partition = tuple[str, int]
# offset, key, value, headers, timestamp in milliseconds, timestamp type as Spark counts
Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...] | None, int, int]
Rows = dict[Partition, list[Row]]


@pytest.fixture(scope="module")
def writers(kafka1: LocalKafka) -> list[Producer]:
    """Transactional producers of every codec, with small and large record batches."""
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
def plain(kafka1: LocalKafka) -> Producer:
    return Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})


@pytest.mark.timeout(3_600)
def test_rows_are_those_of_librdkafka_and_of_the_java_consumer(
    kafka1: LocalKafka, topic1: TopicFactory, spark: SparkSession, writers: list[Producer], plain: Producer
) -> None:
    settings = {"retention.ms": "-1"}
    for first in range(0, SCRIPTS, SCRIPTS_AT_ONCE):
        scripts = range(first, min(first + SCRIPTS_AT_ONCE, SCRIPTS))
        kept = max(1, int(len(scripts) * PLAIN_SHARE))
        topics = {topic1(kept, config=settings): kept}
        if kept < len(scripts):
            topics[topic1(len(scripts) - kept, config=settings | _COMPACTED)] = len(scripts) - kept
        partitions = [(name, number) for name, count in topics.items() for number in range(count)]
        for script, (name, number) in zip(scripts, partitions, strict=True):
            write_script(random.Random(script), name, number, writers, plain)
        for compacted in list(topics)[1:]:
            compact_for_once(kafka1, compacted, topics[compacted], plain)
        read = {level: compare(kafka1, spark, partitions, level) for level in ("read_uncommitted", "read_committed")}
        assert 0 < read["read_committed"] < read["read_uncommitted"]
        print(f"scripts {scripts.start} to {scripts.stop - 1}: {read} rows")


def compare(kafka: LocalKafka, spark: SparkSession, partitions: Sequence[Partition], isolation_level: str) -> int:
    """Reads with all three; how many rows each has read."""
    ours = rows_of_ours(kafka, partitions, isolation_level)
    for who, theirs in (
        ("librdkafka", rows_of_librdkafka(kafka, partitions, isolation_level)),
        ("Java", rows_of_java(kafka, spark, partitions, isolation_level)),
    ):
        for number, partition in enumerate(partitions):
            where = f"{partition}, script {number} of its round, {isolation_level}, against {who}"
            assert ours.get(partition, []) == theirs.get(partition, []), where
    return sum(map(len, ours.values()))


# -- writing --------------------------------------------------------------------------------------


def write_script(draw: random.Random, topic: str, partition: int, writers: Sequence[Producer], plain: Producer) -> None:
    chosen = draw.sample(writers, draw.randint(1, 4))
    under_way: list[Producer] = []
    for _ in range(draw.randint(6, 16)):
        writer = draw.choice([*chosen, plain])
        if writer in under_way and draw.random() < 0.5:
            under_way.remove(writer)
            end(draw, writer)
            continue
        if writer is not plain and writer not in under_way:
            writer.begin_transaction()
            under_way.append(writer)
        write_some(draw, writer, topic, partition)
    for writer in under_way:
        end(draw, writer)


def write_some(draw: random.Random, writer: Producer, topic: str, partition: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    for _ in range(draw.choice((1, 2, 5, 20))):
        value = None if draw.random() < 0.2 else draw.randbytes(draw.choice(VALUE_BYTES))
        # A compacted topic takes no null keys.
        key = b"key %d" % draw.randrange(8)
        timestamp_ms = now_ms - draw.randrange(1_000)
        writer.produce(topic, value, key, partition, headers=draw.choice(HEADERS), timestamp=timestamp_ms)
    # So that they are in the log before the next writer's.
    assert writer.flush(30) == 0


def end(draw: random.Random, writer: Producer) -> None:
    if draw.random() < 0.5:
        writer.abort_transaction(30)
    else:
        writer.commit_transaction(30)


def compact_for_once(kafka: LocalKafka, topic: str, partitions: int, plain: Producer) -> None:
    """Lets the cleaner work on every partition, and stops it, so that all readers see the same log."""
    folder = kafka.data_folder(1)
    before = records_stored(folder, topic, partitions)
    now_ms = time.time_ns() // 1_000_000
    # The last record of each partition begins a new segment, and the cleaner takes all before it.
    last: dict[Partition, int] = {}
    for number in range(partitions):
        plain.produce(
            topic,
            b"",
            b"last",
            number,
            timestamp=now_ms + _ROLL_MS,
            on_delivery=lambda _, sent: last.update({(topic, sent.partition()): sent.offset()}),
        )
    assert plain.flush(30) == 0
    wait_until(lambda: all(cleaned_to(folder).get(key, 0) >= offset for key, offset in last.items()))
    assert records_stored(folder, topic, partitions) < before
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    wait_until_still(lambda: [stored_batches(folder, topic, number) for number in range(partitions)])


def records_stored(folder: Path, topic: str, partitions: int) -> int:
    return sum(batch.records for number in range(partitions) for batch in stored_batches(folder, topic, number))


def cleaned_to(folder: Path) -> dict[Partition, int]:
    """Up to which offset the broker's cleaner has been, by its own note: a version, a count, and a line for each."""
    lines = (folder / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    fields = (line.rsplit(" ", 2) for line in lines)
    return {(topic, int(partition)): int(offset) for topic, partition, offset in fields}


def wait_until(done: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 120
    while not done():
        assert time.monotonic() < give_up_s, "the cleaner has not done its work"
        time.sleep(0.2)


def wait_until_still(look: Callable[[], object]) -> None:
    """Longer than the cleaner rests between two rounds."""
    seen, since_s = look(), time.monotonic()
    while time.monotonic() - since_s < 1.5:
        time.sleep(0.2)
        now = look()
        if now != seen:
            seen, since_s = now, time.monotonic()


# -- reading --------------------------------------------------------------------------------------


def rows_of_ours(kafka: LocalKafka, partitions: Sequence[Partition], isolation_level: str) -> Rows:
    servers = tuple(
        (host, int(port)) for host, port in (each.split(":") for each in kafka.bootstrap_servers.split(","))
    )
    rows: Rows = {}
    with Client(ClientConfig(servers)) as client:
        starts = list_offsets(client, dict.fromkeys(partitions, EARLIEST))
        ends = list_offsets(client, dict.fromkeys(partitions, LATEST), isolation_level=isolation_level)
        ranges = [Range(*key, starts[key].offset, ends[key].offset) for key in partitions]
        config = parse_consumer({"isolation.level": isolation_level})
        for wanted, batch in RangeConsumer(client, config, ranges):
            rows.setdefault((wanted.topic, wanted.partition), []).extend(map(our_row, batch.to_pylist()))
    return rows


def our_row(row: Mapping[str, Any]) -> Row:
    headers = row["headers"]
    pairs = None if headers is None else tuple((header["key"], header["value"]) for header in headers)
    return row["offset"], row["key"], row["value"], pairs, row["timestamp_ms"], row["timestamp_type"]


def rows_of_librdkafka(kafka: LocalKafka, partitions: Sequence[Partition], isolation_level: str) -> Rows:
    rows: Rows = {}
    for message in messages_to_the_end(kafka, partitions, isolation_level):
        kind, timestamp_ms = message.timestamp()
        headers = message.headers()
        pairs = None if headers is None else tuple(headers)
        # librdkafka counts 1 for CreateTime and 2 for LogAppendTime.
        row = (message.offset(), message.key(), message.value(), pairs, timestamp_ms, kind - 1)
        rows.setdefault((message.topic(), message.partition()), []).append(row)
    return rows


def messages_to_the_end(kafka: LocalKafka, partitions: Sequence[Partition], isolation_level: str) -> Iterator[Any]:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "scripts", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": isolation_level, "enable.partition.eof": True})
    missing = set(partitions)
    give_up_s = time.monotonic() + 120
    try:
        consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in partitions])
        while missing:
            assert time.monotonic() < give_up_s, f"librdkafka does not come to the end of {missing}"
            for message in consumer.consume(10_000, timeout=1):
                if message.error() is None:
                    yield message
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    missing.discard((message.topic(), message.partition()))
    finally:
        consumer.close()


def rows_of_java(kafka: LocalKafka, spark: SparkSession, partitions: Sequence[Partition], isolation_level: str) -> Rows:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": ",".join(sorted({topic for topic, _ in partitions})),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": isolation_level,
        # The JVM connector's consumers wait that long once or twice in each task.
        "kafka.fetch.max.wait.ms": "20",
    }
    frame = spark.read.format("kafka").options(**options).load()
    columns = ("topic", "partition", "offset", "key", "value", "headers", "timestampType")
    rows: Rows = {}
    for row in frame.selectExpr(*columns, "unix_millis(timestamp) AS timestamp_ms").collect():
        pairs = None if row.headers is None else tuple((each.key, as_bytes(each.value)) for each in row.headers)
        ours = (row.offset, as_bytes(row.key), as_bytes(row.value), pairs, row.timestamp_ms, row.timestampType)
        rows.setdefault((row.topic, row.partition), []).append(ours)
    return {partition: sorted(found) for partition, found in rows.items()}


def as_bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
