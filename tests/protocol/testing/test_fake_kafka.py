"""The public methods of `FakeKafka`: records, controls, retention and compaction."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import protocol
from protocol.errors import BrokerError, KafkaError, UsageError
from protocol.testing import FakeKafka, ManualClock
from tests.support.wait_until import wait_until


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(3) as running:
        running.create_topic("orders", 2, 2)
        yield running


def values(kafka: FakeKafka, topic: str = "orders", partition: int | None = None) -> list[bytes | None]:
    return [each.value for each in kafka.records(topic, partition)]


class TestRecords:
    def test_produced_records_are_returned_with_all_fields(self, kafka: FakeKafka) -> None:
        assert kafka.produce("orders", "a", None, key="k", headers=[("h", b"1")], partition=1, timestamp_ms=5) == [0, 1]
        first, second = kafka.records("orders")
        assert first == ("orders", 1, 0, 5, 0, b"k", b"a", [("h", b"1")])
        assert (second.offset, second.value) == (1, None)

    def test_records_without_key_go_to_the_partitions_in_turn(self, kafka: FakeKafka) -> None:
        assert kafka.produce("orders", "a", "b", "c") == [0, 0, 1]
        assert (values(kafka, partition=0), values(kafka, partition=1)) == ([b"a", b"c"], [b"b"])

    def test_key_chooses_the_same_partition_as_the_producer(self, kafka: FakeKafka) -> None:
        with protocol.Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for number in range(20):
                producer.send("orders", b"theirs", key=b"%d" % number)
        for number in range(20):
            kafka.produce("orders", b"ours", key=b"%d" % number)
        partitions: dict[bytes | None, set[int]] = {}
        for each in kafka.records("orders"):
            partitions.setdefault(each.key, set()).add(each.partition)
        assert all(len(found) == 1 for found in partitions.values())
        assert len(kafka.records("orders")) == 40

    def test_consumer_reads_produced_records(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", *map(str, range(100)))
        table = protocol.read({"bootstrap.servers": kafka.bootstrap_servers}, "orders").read_all()
        assert sorted(table["value"].to_pylist()) == sorted(str(number).encode() for number in range(100))

    def test_records_of_open_and_aborted_transactions_are_hidden(self, kafka: FakeKafka) -> None:
        client = {"bootstrap.servers": kafka.bootstrap_servers}
        with protocol.TransactionalProducer(client, transactional_id="t") as producer:
            producer.init_transactions()
            for value, commit in ((b"committed", True), (b"aborted", False)):
                producer.begin_transaction()
                producer.send("orders", value, partition=0)
                producer.flush()
                assert values(kafka, partition=0) == [b"committed"] * (value == b"aborted")
                producer.commit_transaction() if commit else producer.abort_transaction()
        assert values(kafka, partition=0) == [b"committed"]
        everything = kafka.records("orders", isolation_level="read_uncommitted")
        assert [each.value for each in everything] == [b"committed", b"aborted"]

    def test_committed_offsets_of_a_group_are_returned(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", "a", partition=0)
        client = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        with protocol.KafkaConsumer(client) as consumer:
            consumer.assign([("orders", 0)])
            wait_until(lambda: consumer.poll(1000).num_rows == 1)
            consumer.commit_sync()
        assert kafka.committed_offsets("g") == {("orders", 0): 1}

    def test_unknown_topic_or_partition_is_a_usage_error(self, kafka: FakeKafka) -> None:
        with pytest.raises(UsageError, match="nothing does not exist in this cluster; call create_topic first"):
            kafka.produce("nothing", b"a")
        with pytest.raises(UsageError, match="orders-2 does not exist"):
            kafka.produce("orders", b"a", partition=2)


class TestControls:
    def test_request_kinds_and_codes_are_named_as_in_kafka(self, kafka: FakeKafka) -> None:
        kafka.refuse("Produce", "TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            kafka.produce("orders", b"a", partition=0)
        assert kafka.produce("orders", b"a", partition=0) == [0]

    def test_unknown_names_are_usage_errors_with_a_suggestion(self, kafka: FakeKafka) -> None:
        with pytest.raises(UsageError, match="Produced is no kind of request; did you mean Produce"):
            kafka.lose_requests("Produced")
        with pytest.raises(UsageError, match="NOT_LEADER_OR_FOLOWER is no error code of Kafka; did you mean NOT_LEAD"):
            kafka.refuse("Produce", "NOT_LEADER_OR_FOLOWER")

    def test_cleared_faults_do_not_happen(self, kafka: FakeKafka) -> None:
        kafka.refuse("Produce", "TOPIC_AUTHORIZATION_FAILED", 5)
        kafka.clear_faults()
        assert kafka.produce("orders", b"a", partition=0) == [0]

    def test_producer_continues_after_dropped_connections(self, kafka: FakeKafka) -> None:
        with protocol.Producer(bootstrap_servers=kafka.bootstrap_servers, retry_backoff_ms=20) as producer:
            for number in range(5):
                producer.send_and_wait("orders", b"%d" % number, partition=0)
                kafka.drop_connections()
        assert values(kafka, partition=0) == [b"0", b"1", b"2", b"3", b"4"]

    def test_shuffled_leaders_keep_the_records(self, kafka: FakeKafka) -> None:
        kafka.create_topic("single")
        kafka.produce("single", b"a")
        before = [kafka.controller.topic(name).partitions[0].leader for name in ("orders", "single")]
        kafka.shuffle_leaders()
        after = [kafka.controller.topic(name).partitions[0].leader for name in ("orders", "single")]
        assert all(now != then for now, then in zip(after, before, strict=True))
        assert values(kafka, "single") == [b"a"]
        assert kafka.produce("single", b"b") == [1]

    def test_rehashed_coordinators_keep_the_group(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", "a", partition=0)
        client = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        with protocol.KafkaConsumer(client) as consumer:
            consumer.subscribe(["orders"])
            wait_until(lambda: consumer.poll(100).num_rows == 1)
            before = dict(kafka.coordinators)
            kafka.rehash_coordinators()
            assert kafka.coordinators != before
            consumer.commit_sync()
        assert kafka.committed_offsets("g")["orders", 0] == 1

    def test_added_broker_leads_partitions(self, kafka: FakeKafka) -> None:
        assert kafka.add_broker() == 4
        kafka.produce("orders", b"a", partition=0)
        kafka.move_leader("orders", 0, 4)
        assert kafka.produce("orders", b"b", partition=0) == [1]
        table = protocol.read({"bootstrap.servers": kafka.address(4)}, "orders").read_all()
        assert table["value"].to_pylist() == [b"a", b"b"]

    def test_shrunk_log_begins_at_the_given_offset(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", "a", "b", "c", partition=0)
        kafka.shrink_log("orders", 0, 2)
        assert [each.offset for each in kafka.records("orders", 0)] == [2]

    def test_closing_twice_is_harmless(self) -> None:
        kafka = FakeKafka()
        kafka.close()
        kafka.close()

    def test_brokers_listen_on_consecutive_ports(self) -> None:
        with FakeKafka() as probe:
            port = probe.addresses[1][1]
        with FakeKafka(port=port) as kafka:
            assert kafka.bootstrap_servers == f"127.0.0.1:{port}"


class TestCleaning:
    def test_old_records_stay_until_logs_are_cleaned(self, kafka: FakeKafka) -> None:
        kafka.create_topic("old", config={"retention.ms": "60000"})
        kafka.produce("old", "a", "b", timestamp_ms=1)
        kafka.produce("old", "c")
        assert values(kafka, "old") == [b"a", b"b", b"c"]
        kafka.clean_logs("old")
        assert [(each.offset, each.value) for each in kafka.records("old")] == [(2, b"c")]

    def test_retention_bytes_keep_the_last_batches(self, kafka: FakeKafka) -> None:
        kafka.create_topic("big", config={"retention.bytes": "1500"})
        for number in range(5):
            kafka.produce("big", b"%d" % number * 600)
        kafka.clean_logs()
        assert [each.offset for each in kafka.records("big")] == [2, 3, 4]

    def test_compaction_keeps_the_last_record_of_each_key(self, kafka: FakeKafka) -> None:
        kafka.create_topic("table", config={"cleanup.policy": "compact"})
        for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "1")):
            kafka.produce("table", value, key=key)
        kafka.clean_logs("table")
        assert [(each.offset, each.key, each.value) for each in kafka.records("table")] == [
            (2, b"a", b"2"),
            (3, b"b", None),
            (4, b"c", b"1"),
        ]
        table = protocol.read({"bootstrap.servers": kafka.bootstrap_servers}, "table").read_all()
        assert table["offset"].to_pylist() == [2, 3, 4]

    def test_old_tombstones_are_compacted_away(self, kafka: FakeKafka) -> None:
        kafka.create_topic("table", config={"cleanup.policy": "compact", "delete.retention.ms": "1000"})
        kafka.produce("table", "1", key="a")
        kafka.produce("table", None, key="a", timestamp_ms=1)
        kafka.produce("table", "1", key="b")
        kafka.clean_logs()
        assert [each.key for each in kafka.records("table")] == [b"b"]

    def test_compaction_removes_aborted_records_only(self, kafka: FakeKafka) -> None:
        kafka.create_topic("table", config={"cleanup.policy": "compact"})
        kafka.produce("table", "1", key="a")
        client = {"bootstrap.servers": kafka.bootstrap_servers}
        with protocol.TransactionalProducer(client, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("table", b"2", key=b"a")
            producer.flush()
            producer.abort_transaction()
        kafka.clean_logs()
        assert [each.value for each in kafka.records("table", isolation_level="read_uncommitted")] == [b"1"]

    def test_compacted_topic_refuses_a_record_without_key(self, kafka: FakeKafka) -> None:
        kafka.create_topic("table", config={"cleanup.policy": "compact"})
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            kafka.produce("table", "1")

    def test_cluster_with_a_check_interval_cleans_by_itself(self) -> None:
        clock = ManualClock()
        with FakeKafka(clock=clock, settings={"log.retention.check.interval.ms": "300000"}) as kafka:
            kafka.create_topic("old")
            kafka.produce("old", "a", timestamp_ms=1)
            clock.advance(299)
            kafka.create_topic("other")
            assert values(kafka, "old") == [b"a"]
            clock.advance(2)
            kafka.create_topic("another")
            assert values(kafka, "old") == []

    def test_log_append_time_replaces_the_records_timestamp(self, kafka: FakeKafka) -> None:
        kafka.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
        kafka.produce("stamped", "a", timestamp_ms=1)
        (record,) = kafka.records("stamped")
        assert record.timestamp_type == 1
        assert abs(record.timestamp_ms - time.time() * 1000) < 600_000


def test_unknown_topic_config_is_refused(kafka: FakeKafka) -> None:
    admin = protocol.Admin(bootstrap_servers=kafka.bootstrap_servers)
    with admin, pytest.raises(KafkaError, match="INVALID_CONFIG"):
        admin.create_topics([protocol.admin.NewTopic("new", 1, configs={"no.such.config": "1"})])


def test_closed_connections_are_forgotten(kafka: FakeKafka) -> None:
    for _ in range(3):
        with protocol.Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            admin.list_topics()
    wait_until(lambda: not any(each.connections for each in kafka.listeners.values()))


def test_requests_are_not_kept_unless_wanted() -> None:
    with FakeKafka(record_requests=False) as kafka, protocol.Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.list_topics()
        assert kafka.requests == kafka.listeners[1].requests == []
