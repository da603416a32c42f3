"""Retention and compaction of `FakeKafka`."""

from __future__ import annotations

import protocol
from protocol.testing import FakeKafka, ManualClock


def values(fake: FakeKafka, topic: str = "orders", partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in fake.records(topic, partition)]


def test_old_records_stay_until_logs_are_cleaned(kafka_fake: FakeKafka) -> None:
    kafka_fake.create_topic("old", config={"retention.ms": "60000"})
    kafka_fake.produce("old", "a", "b", timestamp_ms=1)
    kafka_fake.produce("old", "c")
    assert values(kafka_fake, "old") == [b"a", b"b", b"c"]
    kafka_fake.clean_logs("old")
    assert [(record.offset, record.value) for record in kafka_fake.records("old")] == [(2, b"c")]


def test_retention_bytes_keep_the_last_batches(kafka_fake: FakeKafka) -> None:
    kafka_fake.create_topic("big", config={"retention.bytes": "1500"})
    for number in range(5):
        kafka_fake.produce("big", b"%d" % number * 600)
    kafka_fake.clean_logs()
    assert [record.offset for record in kafka_fake.records("big")] == [2, 3, 4]


def test_compaction_keeps_the_last_record_of_each_key(kafka_fake: FakeKafka) -> None:
    kafka_fake.create_topic("table", config={"cleanup.policy": "compact"})
    for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "1")):
        kafka_fake.produce("table", value, key=key)
    kafka_fake.clean_logs("table")
    rows = [(record.offset, record.key, record.value) for record in kafka_fake.records("table")]
    assert rows == [(2, b"a", b"2"), (3, b"b", None), (4, b"c", b"1")]
    table = protocol.read({"bootstrap.servers": kafka_fake.bootstrap_servers}, "table").read_all()
    assert table["offset"].to_pylist() == [2, 3, 4]


def test_old_tombstones_are_compacted_away(kafka_fake: FakeKafka) -> None:
    kafka_fake.create_topic("table", config={"cleanup.policy": "compact", "delete.retention.ms": "1000"})
    kafka_fake.produce("table", "1", key="a")
    kafka_fake.produce("table", None, key="a", timestamp_ms=1)
    kafka_fake.produce("table", "1", key="b")
    kafka_fake.clean_logs()
    assert [record.key for record in kafka_fake.records("table")] == [b"b"]


def test_compaction_removes_aborted_records_only(kafka_fake: FakeKafka) -> None:
    kafka_fake.create_topic("table", config={"cleanup.policy": "compact"})
    kafka_fake.produce("table", "1", key="a")
    client = {"bootstrap.servers": kafka_fake.bootstrap_servers}
    with protocol.TransactionalProducer(client, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("table", b"2", key=b"a")
        producer.flush()
        producer.abort_transaction()
    kafka_fake.clean_logs()
    assert [record.value for record in kafka_fake.records("table", isolation_level="read_uncommitted")] == [b"1"]


def test_cluster_with_a_check_interval_cleans_by_itself() -> None:
    clock = ManualClock()
    with FakeKafka(clock=clock, settings={"log.retention.check.interval.ms": "300000"}) as fake:
        fake.create_topic("old")
        fake.produce("old", "a", timestamp_ms=1)
        clock.advance(299)
        fake.create_topic("other")
        assert values(fake, "old") == [b"a"]
        clock.advance(2)
        fake.create_topic("another")
        assert values(fake, "old") == []
