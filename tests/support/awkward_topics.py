"""Topics with unusual log contents, written to a real broker by librdkafka and by Java.

Called by the tests that compare with Spark's JVM connector. Contents and order are fixed; only append times and the
number of cleaner runs differ between runs. Java's producer is used through Spark's JVM sink. The broker should compact
soon (log.cleaner.backoff.ms=500).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from tests.support.log_segments import CODECS, StoredBatch, stored_batches
from tests.support.topic_writers import (
    MIB,
    Headers,
    Record,
    Topic,
    admin,
    create,
    produce,
    produce_by_java,
    send,
    transactional,
)
from tests.support.wait_until import wait_until

_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.0001",
    "max.compaction.lag.ms": "500",
    "min.compaction.lag.ms": "0",
}
_ROLL_MS = 10_000  # a record this much later than the first of a segment rolls the segment

NULLS_AND_HEADERS = Topic("awkward-nulls-and-headers", 2)
TIMESTAMPS = Topic("awkward-timestamps", 1, {"message.timestamp.after.max.ms": str((1 << 63) - 1)})
SIZES = Topic("awkward-sizes", 3, {"max.message.bytes": str(10 * MIB)})
CODEC_MIX = Topic("awkward-codecs", 2)
BATCH_SIZES = Topic("awkward-batch-sizes", 4, {"max.message.bytes": str(10 * MIB)})
LOG_APPEND_TIME = Topic("awkward-log-append-time", 2, {"message.timestamp.type": "LogAppendTime"})
TIME_SWITCHED = Topic("awkward-time-switched")
TRANSACTIONS = Topic("awkward-transactions", 3)
OPEN_TRANSACTION = Topic("awkward-open-transaction")
DELETED_PREFIX = Topic("awkward-deleted-prefix")
EMPTY = Topic("awkward-empty", 2)
COMPACTED = Topic("awkward-compacted", 3, {**_COMPACTED, "delete.retention.ms": str(24 * 3_600_000)})
EMPTY_CONTROL_BATCHES = Topic("awkward-empty-control-batches", 1, {**_COMPACTED, "delete.retention.ms": "0"})

TOPICS = (
    *(NULLS_AND_HEADERS, TIMESTAMPS, SIZES, CODEC_MIX, BATCH_SIZES, LOG_APPEND_TIME, TIME_SWITCHED, TRANSACTIONS),
    *(OPEN_TRANSACTION, DELETED_PREFIX, EMPTY, COMPACTED, EMPTY_CONTROL_BATCHES),
)


def write_all(bootstrap: str, data_folder: Path, spark: SparkSession) -> list[str]:
    """Create and fill `TOPICS`; return their names. Compaction runs while the other topics are written."""
    create(bootstrap, TOPICS)
    write_compacted(bootstrap)
    now_ms = write_aborted_transaction_to_compact(bootstrap)
    write_nulls_and_headers(bootstrap, spark)
    write_timestamps(bootstrap)
    write_sizes(bootstrap, spark)
    write_codecs(bootstrap, spark)
    write_batch_sizes(bootstrap, spark)
    write_log_append_time(bootstrap)
    write_time_switched(bootstrap)
    write_transactions(bootstrap)
    write_open_transaction(bootstrap)
    write_deleted_prefix(bootstrap)
    wait_until_compacted(data_folder)
    overwrite_until_control_batch_is_empty(bootstrap, data_folder, now_ms)
    stop_the_cleaner(bootstrap, data_folder)
    return [topic.name for topic in TOPICS]


# -- one function for each topic --------------------------------------------------------------


def write_nulls_and_headers(bootstrap: str, spark: SparkSession) -> None:
    """Write each pair of null, empty and other keys and values with each kind of headers; partition 0 C, 1 Java."""
    keys = (None, b"", b"k", "ключ".encode(), bytes(range(256)), b"long" * 1_000)
    values = (None, b"", b"v", bytes(range(256)))
    headers: tuple[Headers | None, ...] = (
        None,
        [],
        [("a", b"1")],
        [("a", None)],
        [("a", b"")],
        [("a", b"1"), ("b", None), ("a", b"2"), ("a", None), ("a", b"1")],
        [("", b"empty key"), ("", None)],
        [("ключ-☃-𝄞", "значение".encode())],
        [(f"h{number}", bytes([number])) for number in range(200)],
        [("long" * 100, b"\0" * 20_000)],
    )
    shapes = list(itertools.product(keys, values, headers))
    produce(bootstrap, NULLS_AND_HEADERS, [Record(*shape) for shape in shapes])
    produce_by_java(spark, bootstrap, NULLS_AND_HEADERS, [Record(*shape, partition=1) for shape in shapes])


def write_timestamps(bootstrap: str) -> None:
    """Write timestamps from 1970 to 9999, out of order: in one batch (all sizes of deltas, both signs) and singly."""
    days_ms = 24 * 3_600_000
    base_ms = 1_700_000_000_000
    deltas = (0, 1, -1, 63, 64, -64, -65, 8_191, 8_192, -8_192, -8_193, days_ms, -days_ms, 400 * days_ms)
    stamps = [base_ms + delta for delta in deltas] + [1, 999, 1_000, 1_001, (1 << 31) - 1, 1 << 32, 253_402_300_799_999]
    records = [Record(None, str(stamp).encode(), timestamp_ms=stamp) for stamp in stamps]
    produce(bootstrap, TIMESTAMPS, records)
    for record in records:
        produce(bootstrap, TIMESTAMPS, [record])


def write_sizes(bootstrap: str, spark: SparkSession) -> None:
    """Write values of 0 bytes to 5 MB, around each change of a varint's length: plain, lz4, and zstd from Java."""
    edges = [1 << bits for bits in (0, 6, 7, 13, 14, 16)]
    sizes = sorted({0, *edges, *(edge - 1 for edge in edges), *(edge + 1 for edge in edges)})
    sizes += [MIB, 0, 5_000_000, 1, 100]
    rng = random.Random(20)

    def records(partition: int) -> list[Record]:
        return [Record(b"%d" % size, _bytes(rng, size), partition=partition) for size in sizes]

    limit = {"message.max.bytes": 10 * MIB}
    produce(bootstrap, SIZES, records(0), limit)
    produce(bootstrap, SIZES, records(1), {**limit, "compression.type": "lz4"})
    java = {"kafka.max.request.size": 10 * MIB, "kafka.compression.type": "zstd"}
    produce_by_java(spark, bootstrap, SIZES, records(2), java)


def write_codecs(bootstrap: str, spark: SparkSession) -> None:
    """Write with all codecs in turn, by librdkafka (partition 0) and by Java (1).

    The values include an incompressible one and one longer than a block of each codec.
    """
    rng = random.Random(30)
    values = [b"line %d, much like the others\n" % number * 5 for number in range(300)]
    values += [_bytes(rng, 300), b"", b"abc" * 50_000, _bytes(rng, 70_000), b"end"]
    for codec in CODECS:
        produce(bootstrap, CODEC_MIX, [Record(b"c", value) for value in values], {"compression.type": codec})
        java = {"kafka.compression.type": codec, "kafka.batch.size": 200_000}
        produce_by_java(spark, bootstrap, CODEC_MIX, [Record(b"java", value, partition=1) for value in values], java)


def write_batch_sizes(bootstrap: str, spark: SparkSession) -> None:
    """Write batches of 16 KiB (partition 0 C, 2 Java) and of 1 MiB (1 and 3), with more rows than one Arrow chunk."""
    limit = 10 * MIB
    for partition, size in enumerate((16 * 1024, MIB)):
        values = [b"%08d" % number + bytes([number % 251]) * 92 for number in range(10_000)]
        records = [Record(value[:8], value, partition=partition) for value in values]
        produce(bootstrap, BATCH_SIZES, records, {"batch.size": size, "message.max.bytes": limit})
        records = [Record(value[:8], value, partition=partition + 2) for value in values]
        produce_by_java(spark, bootstrap, BATCH_SIZES, records, {"kafka.batch.size": size})


def write_log_append_time(bootstrap: str) -> None:
    """Write timestamps that the broker replaces by its own (LogAppendTime). Partition 0 plain, 1 lz4."""
    for partition, codec in enumerate(("none", "lz4")):
        records = [Record(None, b"%d" % n, partition=partition, timestamp_ms=1 + n * 1_000_000) for n in range(50)]
        for _ in range(3):
            produce(bootstrap, LOG_APPEND_TIME, records, {"compression.type": codec})


def write_time_switched(bootstrap: str) -> None:
    """Write CreateTime, then LogAppendTime, then CreateTime in one log."""
    for kind in ("CreateTime", "LogAppendTime", "CreateTime"):
        _set_topic(bootstrap, TIME_SWITCHED, "message.timestamp.type", kind)
        _until(partial(_has_timestamp_type, bootstrap, kind), f"{kind} to take effect")
        produce(bootstrap, TIME_SWITCHED, [Record(b"k", b"%d" % number, timestamp_ms=1_000) for number in range(20)])


def write_transactions(bootstrap: str) -> None:
    """Write interleaved transactions of three producers, committed and aborted, and records without a transaction.

    Partition 0 ends in a commit marker, 1 in an abort marker, 2 holds aborted records only.
    """
    rng = random.Random(40)
    producers = [transactional(bootstrap, f"tx-{number}", CODECS[2 * number]) for number in range(3)]
    for round_number in range(8):
        for producer in producers:
            producer.begin_transaction()
        for part, producer in itertools.product(range(3), producers):
            value = b"%d-%d" % (round_number, part)
            records = [Record(b"tx", value * 5, partition=n % 2) for n in range(rng.randint(1, 30))]
            send(producer, TRANSACTIONS, records)
            produce(bootstrap, TRANSACTIONS, [Record(b"plain", value, partition=part % 2)])
        for producer in rng.sample(producers, len(producers)):
            producer.commit_transaction() if rng.random() < 0.5 else producer.abort_transaction()
    for partition, commit in ((0, True), (1, False), (2, False), (2, False)):
        producers[partition].begin_transaction()
        send(producers[partition], TRANSACTIONS, [Record(b"last", b"%d" % n, partition=partition) for n in range(10)])
        producers[partition].commit_transaction() if commit else producers[partition].abort_transaction()


def write_open_transaction(bootstrap: str) -> None:
    """Write records, a committed transaction, a transaction that stays open for 15 minutes, and more records."""
    produce(bootstrap, OPEN_TRANSACTION, [Record(None, b"before") for _ in range(5)])
    producer = transactional(bootstrap, "tx-open", timeout_ms=900_000)
    producer.begin_transaction()
    send(producer, OPEN_TRANSACTION, [Record(None, b"committed") for _ in range(5)])
    producer.commit_transaction()
    producer.begin_transaction()
    send(producer, OPEN_TRANSACTION, [Record(None, b"open") for _ in range(5)])
    produce(bootstrap, OPEN_TRANSACTION, [Record(None, b"after") for _ in range(5)])


def write_deleted_prefix(bootstrap: str) -> None:
    """Write a log that begins within a batch: DeleteRecords up to offset 137."""
    produce(bootstrap, DELETED_PREFIX, [Record(b"k", b"%d" % number) for number in range(300)])
    [deleted] = admin(bootstrap).delete_records([TopicPartition(DELETED_PREFIX.name, 0, 137)]).values()
    deleted.result()


def write_compacted(bootstrap: str) -> None:
    """Write the topic that `wait_until_compacted` waits for."""
    start_ms = int(time.time() * 1000) - 600_000
    many = [b"k%d" % number for number in range(2_000)]
    _compact(bootstrap, 0, start_ms, [(many, b"old"), (many[1:], b"new")])
    few = many[:100]
    _compact(bootstrap, 1, start_ms, [(few, b"old"), (few[::3], b"new"), (few[::5], None)], {"compression.type": "lz4"})
    # The cleaner keeps the last batch of an idempotent producer, even without records.
    _compact(bootstrap, 2, start_ms, [(few[:10], b"old")], {"enable.idempotence": True})
    _compact(bootstrap, 2, start_ms + 2 * _ROLL_MS, [(few, b"new")])


def wait_until_compacted(data_folder: Path, delete_horizon: bool = True) -> None:
    """Wait for a batch with 1 of 2,000 records (partition 0), gaps and tombstones (1), and empty batches (2).

    Brokers before 3.1 set no `delete_horizon`.
    """

    def logs() -> list[list[StoredBatch]]:
        return [stored_batches(data_folder, COMPACTED.name, partition) for partition in range(3)]

    def compacted() -> bool:
        tail_gap, middle_gaps, empty = logs()
        return (
            (tail_gap[0].last_offset, tail_gap[0].records) == (1_999, 1)
            and 0 < middle_gaps[0].records < 100
            and any(batch.delete_horizon for batch in middle_gaps) == delete_horizon
            and any(batch.records == 0 for batch in empty)
        )

    _until(compacted, "the cleaner to compact", timeout_s=120, observed=logs)


def write_aborted_transaction_to_compact(bootstrap: str) -> int:
    """Write a committed and a fenced (aborted) transaction; return the time afterwards, in ms."""
    keys = [b"x%d" % number for number in range(10)]
    producer = transactional(bootstrap, "tx-compacted")
    producer.begin_transaction()
    send(producer, EMPTY_CONTROL_BATCHES, [Record(key, b"committed") for key in keys])
    producer.commit_transaction()
    producer.begin_transaction()
    send(producer, EMPTY_CONTROL_BATCHES, [Record(key, b"aborted") for key in keys])
    transactional(bootstrap, "tx-compacted")
    return int(time.time() * 1000)


def overwrite_until_control_batch_is_empty(bootstrap: str, data_folder: Path, start_ms: int) -> None:
    """Write new values for the same keys, each in a new segment, until the cleaner has emptied a control batch."""
    stamps = itertools.count(start_ms + _ROLL_MS, _ROLL_MS)
    keys = [b"x%d" % number for number in range(10)]

    def emptied() -> bool:
        stamp = next(stamps)
        produce(bootstrap, EMPTY_CONTROL_BATCHES, [Record(key, b"%d" % stamp, timestamp_ms=stamp) for key in keys])
        batches = stored_batches(data_folder, EMPTY_CONTROL_BATCHES.name)
        return any(batch.control and batch.records == 0 for batch in batches)

    _until(emptied, "the cleaner to empty a control batch", every_s=0.3)


def stop_the_cleaner(bootstrap: str, data_folder: Path) -> None:
    """Stop compaction, so that all readers find the same records."""
    for topic in (COMPACTED, EMPTY_CONTROL_BATCHES):
        _set_topic(bootstrap, topic, "cleanup.policy", "delete")
    logs = [(topic.name, p) for topic in (COMPACTED, EMPTY_CONTROL_BATCHES) for p in range(topic.partitions)]
    before: list[object] = []

    def settled() -> bool:
        now = [stored_batches(data_folder, *log) for log in logs]
        unchanged = now == before
        before[:] = now
        return unchanged

    _until(settled, "the cleaner to end", every_s=1.2)  # more than two rounds of the cleaner


# -- details ----------------------------------------------------------------------------------


def _bytes(rng: random.Random, size: int) -> bytes:
    """Return bytes of which half are random."""
    return rng.randbytes(size // 2) + b"\x2a" * (size - size // 2)


def _compact(
    bootstrap: str,
    partition: int,
    start_ms: int,
    generations: Sequence[tuple[Sequence[bytes], bytes | None]],
    settings: Mapping[str, object] | None = None,
) -> None:
    """Write each generation of keys to a separate segment, then one more record: the last segment is never cleaned."""
    stamps = itertools.count(start_ms, _ROLL_MS)
    for keys, value in generations:
        stamp = next(stamps)
        records = [Record(key, value, partition=partition, timestamp_ms=stamp) for key in keys]
        produce(bootstrap, COMPACTED, records, settings)
    produce(bootstrap, COMPACTED, [Record(b"last", b"last", partition=partition, timestamp_ms=next(stamps))])


def _set_topic(bootstrap: str, topic: Topic, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[entry])
    [changed] = admin(bootstrap).incremental_alter_configs([resource]).values()
    changed.result()


def _has_timestamp_type(bootstrap: str, expected: str) -> bool:
    [answer] = produce(bootstrap, TIME_SWITCHED, [Record(b"who stamps?", None)])
    return bool((answer.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME) == (expected == "LogAppendTime"))


def _until(
    condition: Callable[[], bool],
    label: str,
    timeout_s: float = 60,
    every_s: float = 0.1,
    observed: Callable[[], object] = lambda: "",
) -> None:
    describe = lambda: f"waited {timeout_s:.0f} s without success for {label}; {observed()}"  # noqa: E731
    wait_until(condition, describe, timeout_s, every_s)
