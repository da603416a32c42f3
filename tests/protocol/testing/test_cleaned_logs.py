"""Retention and compaction of `FakeKafka`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import protocol
from protocol.testing import FakeKafka, ManualClock


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(3) as running:
        running.create_topic("orders", 2, 2)
        yield running


def values(fake: FakeKafka, topic: str = "orders", partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in fake.records(topic, partition)]


def test_old_records_stay_until_logs_are_cleaned(fake: FakeKafka) -> None:
    fake.create_topic("old", config={"retention.ms": "60000"})
    fake.produce("old", "a", "b", timestamp_ms=1)
    fake.produce("old", "c")
    assert values(fake, "old") == [b"a", b"b", b"c"]
    fake.clean_logs("old")
    assert [(record.offset, record.value) for record in fake.records("old")] == [(2, b"c")]


def test_retention_bytes_keep_the_last_batches(fake: FakeKafka) -> None:
    fake.create_topic("big", config={"retention.bytes": "1500"})
    for number in range(5):
        fake.produce("big", b"%d" % number * 600)
    fake.clean_logs()
    assert [record.offset for record in fake.records("big")] == [2, 3, 4]


def test_compaction_keeps_the_last_record_of_each_key(fake: FakeKafka) -> None:
    fake.create_topic("table", config={"cleanup.policy": "compact"})
    for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "1")):
        fake.produce("table", value, key=key)
    fake.clean_logs("table")
    rows = [(record.offset, record.key, record.value) for record in fake.records("table")]
    assert rows == [(2, b"a", b"2"), (3, b"b", None), (4, b"c", b"1")]
    table = protocol.read({"bootstrap.servers": fake.bootstrap_servers}, "table").read_all()
    assert table["offset"].to_pylist() == [2, 3, 4]


def test_old_tombstones_are_compacted_away(fake: FakeKafka) -> None:
    fake.create_topic("table", config={"cleanup.policy": "compact", "delete.retention.ms": "1000"})
    fake.produce("table", "1", key="a")
    fake.produce("table", None, key="a", timestamp_ms=1)
    fake.produce("table", "1", key="b")
    fake.clean_logs()
    assert [record.key for record in fake.records("table")] == [b"b"]


def test_compaction_removes_aborted_records_only(fake: FakeKafka) -> None:
    fake.create_topic("table", config={"cleanup.policy": "compact"})
    fake.produce("table", "1", key="a")
    client = {"bootstrap.servers": fake.bootstrap_servers}
    with protocol.TransactionalProducer(client, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("table", b"2", key=b"a")
        producer.flush()
        producer.abort_transaction()
    fake.clean_logs()
    assert [record.value for record in fake.records("table", isolation_level="read_uncommitted")] == [b"1"]


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
