"""Logs in the message formats of Kafka 0.9 and 0.10, on a broker of version 2.8.

The rows equal those of Spark's JVM connector and of librdkafka. `tests/protocol/records/test_legacy.py` decodes
such logs without a broker.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from spark_kafka_source.local_kafka import LocalKafka
from tests.support.librdkafka import use
from tests.support.soak import SOAK
from tests.support.spark_home import BRIEF_LIFE

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.soak,
    pytest.mark.skipif(not SOAK, reason="brokers since 4.0 have no such logs; `make soak` writes them with an old one"),
]

CODECS = ("none", "gzip", "snappy", "lz4")
FORMATS = {"legacy-0": "0.9.0", "legacy-1": "0.10.0", "legacy-append-time": "0.10.0", "legacy-mixed": "0.9.0"}
LARGE_BYTES = 300_000


@pytest.fixture(scope="module")
def old_kafka() -> Iterator[LocalKafka]:
    """Run Kafka 2.8 with the topics of `FORMATS`, each written with every codec of its message format."""
    with LocalKafka(version="2.8.2", jvm_options=BRIEF_LIFE) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        topics = []
        for name, version in FORMATS.items():
            # The records' timestamps are in the past.
            config = {"message.format.version": version, "retention.ms": "-1"}
            if name == "legacy-append-time":
                config["message.timestamp.type"] = "LogAppendTime"
            topics.append(NewTopic(name, 1, 1, config=config))
        for made in admin.create_topics(topics).values():
            made.result(30)
        for name in FORMATS:
            write(kafka, name)
        for version, magic in (("0.10.0", 1), ("2.8", 2), ("0.10.0", 1)):
            set_format(admin, "legacy-mixed", version)
            # The broker applies the new setting with a delay.
            write_until(kafka, "legacy-mixed", lambda magics, magic=magic: magics[-1] == magic)  # type: ignore[misc]
        yield kafka


def write(kafka: LocalKafka, topic: str, codecs: tuple[str, ...] = CODECS) -> None:
    for nth, codec in enumerate(codecs):
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "compression.codec": codec, "linger.ms": 1_000}
        )
        for i in range(60):
            key = None if i % 4 == 0 else b"key %d" % i
            value = None if i % 7 == 0 else b"%s %d " % (codec.encode(), i) * (i % 5)
            producer.produce(topic, value, key, timestamp=1_500_000_000_000 + nth * 1_000 + i)
        assert producer.flush(30) == 0
        if nth == 0:
            # One message that is larger than the first fetch of a reader.
            producer.produce(topic, bytes(range(250)) * (LARGE_BYTES // 250), timestamp=1_500_000_000_000)
            assert producer.flush(30) == 0


def write_until(kafka: LocalKafka, topic: str, done: Callable[[list[int]], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while True:
        write(kafka, topic, ("gzip",))
        if done([magic for magic, _ in stored(kafka, topic)]):
            return write(kafka, topic)
        assert time.monotonic() < deadline_s, "the broker does not take its new message format"


def set_format(admin: AdminClient, topic: str, version: str) -> None:
    entry = ConfigEntry("message.format.version", version, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def stored(kafka: LocalKafka, topic: str) -> list[tuple[int, int]]:
    """Return magic and codec of every entry of a topic's log on disk."""
    collected = []
    for segment in sorted((kafka.data_folder(1) / f"{topic}-0").glob("*.log")):
        content, position = segment.read_bytes(), 0
        while position + 23 <= len(content):
            size, magic = struct.unpack_from(">ixxxxb", content, position + 8)
            collected.append((magic, content[position + (22 if magic == 2 else 17)] & 7))
            position += 12 + size
    return collected


def test_logs_contain_all_legacy_formats_and_codecs(old_kafka: LocalKafka) -> None:
    for name, magics in {
        "legacy-0": {0},
        "legacy-1": {1},
        "legacy-append-time": {1},
        "legacy-mixed": {0, 1, 2},
    }.items():
        assert set(stored(old_kafka, name)) == {(magic, codec) for magic in magics for codec in range(4)}
    magics = [magic for magic, _ in stored(old_kafka, "legacy-mixed")]
    assert [a for a, b in zip(magics, [*magics[1:], None], strict=True) if a != b] == [0, 1, 2, 1]


def rows_of(kafka: LocalKafka, spark: SparkSession, source: str, **options: str) -> list[Row]:
    """Return the rows of all topics, read by a format of Spark."""
    reader = spark.read.format(source).option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    rows = reader.options(subscribe=",".join(FORMATS), startingOffsets="earliest", **options).load()
    return sorted(rows.collect(), key=lambda row: (row.topic, row.offset))


def test_legacy_rows_equal_jvm_connector(old_kafka: LocalKafka, spark: SparkSession) -> None:
    expected = rows_of(old_kafka, spark, "kafka")
    assert len(expected) > len(FORMATS) * len(CODECS) * 60
    assert rows_of(old_kafka, spark, "pykafka-group") == expected
    small = {"kafka.max.partition.fetch.bytes": str(LARGE_BYTES // 4)}
    assert rows_of(old_kafka, spark, "pykafka-group", **small) == expected
    types = {name: {row.timestampType for row in expected if row.topic == name} for name in FORMATS}
    assert types == {"legacy-0": {-1}, "legacy-1": {0}, "legacy-append-time": {1}, "legacy-mixed": {-1, 0}}


def test_legacy_rows_equal_librdkafka(old_kafka: LocalKafka, spark: SparkSession) -> None:
    rows = rows_of(old_kafka, spark, "pykafka-group")
    ours = [(row.topic, row.offset, bytes_of(row.key), bytes_of(row.value), row.timestampType) for row in rows]
    settings = {"group.id": "judge", "enable.partition.eof": True, "check.crcs": True}
    consumer = Consumer({"bootstrap.servers": old_kafka.bootstrap_servers, **settings})
    expected, ended = [], 0
    try:
        consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING) for name in FORMATS])
        while ended < len(FORMATS):
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
                continue
            # librdkafka's timestamp types: 0 none, 1 CreateTime, 2 LogAppendTime.
            kind = message.timestamp()[0] - 1
            expected.append((message.topic(), message.offset(), message.key(), message.value(), kind))
    finally:
        consumer.close()
    assert ours == sorted(expected, key=lambda row: row[:2])


def bytes_of(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_local_kafka_of_old_version_serves_after_restart(old_kafka: LocalKafka) -> None:
    """The broker can only restart after ZooKeeper has expired its session."""
    use(old_kafka)
    old_kafka.kill(1)
    old_kafka.start(1)
