"""The public methods of `FakeKafka`: records and controls."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

import protocol
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, KafkaError, UsageError
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.authorizer import ITSELF
from protocol.testing.fake_kafka.record_batches import Batch, Record, write_batch
from protocol.testing.fake_kafka.requests import Request
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import GROUP
from protocol.wire.messages.m20_delete_topics import DELETE_TOPICS
from spark_kafka_source.local_kafka.cluster import free_ports
from tests.support.wait_until import wait_until


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(3) as running:
        running.create_topic("orders", 2, 2)
        yield running


def values(fake: FakeKafka, topic: str = "orders", partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in fake.records(topic, partition)]


class TestRecords:
    def test_produced_records_are_returned_with_all_fields(self, fake: FakeKafka) -> None:
        assert fake.produce("orders", "a", None, key="k", headers=[("h", b"1")], partition=1, timestamp_ms=5) == [0, 1]
        first, second = fake.records("orders")
        assert first == ("orders", 1, 0, 5, 0, b"k", b"a", [("h", b"1")])
        assert (second.offset, second.value) == (1, None)

    def test_records_without_key_go_to_the_partitions_in_turn(self, fake: FakeKafka) -> None:
        assert fake.produce("orders", "a", "b", "c") == [0, 0, 1]
        assert (values(fake, partition=0), values(fake, partition=1)) == ([b"a", b"c"], [b"b"])

    def test_key_chooses_the_same_partition_as_the_producer(self, fake: FakeKafka) -> None:
        with protocol.Producer(bootstrap_servers=fake.bootstrap_servers) as producer:
            for number in range(20):
                producer.send("orders", b"theirs", key=b"%d" % number)
        for number in range(20):
            fake.produce("orders", b"ours", key=b"%d" % number)
        partitions: dict[bytes | None, set[int]] = {}
        for record in fake.records("orders"):
            partitions.setdefault(record.key, set()).add(record.partition)
        assert all(len(partition) == 1 for partition in partitions.values())
        assert len(fake.records("orders")) == 40

    def test_records_of_open_and_aborted_transactions_are_hidden(self, fake: FakeKafka) -> None:
        client = {"bootstrap.servers": fake.bootstrap_servers}
        with protocol.TransactionalProducer(client, transactional_id="t") as producer:
            producer.init_transactions()
            for value, commit in ((b"committed", True), (b"aborted", False)):
                producer.begin_transaction()
                producer.send("orders", value, partition=0)
                producer.flush()
                assert values(fake, partition=0) == [b"committed"] * (value == b"aborted")
                producer.commit_transaction() if commit else producer.abort_transaction()
        assert values(fake, partition=0) == [b"committed"]
        everything = fake.records("orders", isolation_level="read_uncommitted")
        assert [record.value for record in everything] == [b"committed", b"aborted"]

    def test_committed_offsets_of_a_group_are_returned(self, fake: FakeKafka) -> None:
        fake.produce("orders", "a", partition=0)
        client = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        with protocol.KafkaConsumer(client) as consumer:
            consumer.assign([("orders", 0)])
            wait_until(lambda: consumer.poll(1000).num_rows == 1)
            consumer.commit_sync()
        assert fake.committed_offsets("g") == {("orders", 0): 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fake: fake.produce("nothing", b"a"), "nothing does not exist in this cluster; call create_topic first"),
        (lambda fake: fake.produce("orders", b"a", partition=2), "orders-2 does not exist"),
        (lambda fake: fake.records("orders", 2), "orders-2 does not exist"),
        (lambda fake: fake.lose_requests("Produced"), "Produced is no kind of request; did you mean Produce"),
        (lambda fake: fake.refuse("Produce", "INVALID_RECRD"), "is no error code of Kafka; did you mean INVALID_RECO"),
        (lambda fake: fake.rebalance("absent"), "group absent is unknown; rebalance needs a classic group"),
        (lambda fake: fake.start(1), "broker 1 is running"),
    ],
)
def test_call_with_an_unknown_name_is_a_usage_error(
    fake: FakeKafka, call: Callable[[FakeKafka], object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        call(fake)


@pytest.mark.parametrize("method", ["stop", "start", "silence", "fence", "isolate", "move", "address"])
def test_unknown_broker_is_a_usage_error(fake: FakeKafka, method: str) -> None:
    with pytest.raises(UsageError, match="broker 99 does not exist"):
        getattr(fake, method)(99)


class TestControls:
    def test_partition_without_leader_refuses_records_with_kafkas_error(self, fake: FakeKafka) -> None:
        fake.move_leader("orders", 0, -1)
        for call in (lambda: fake.produce("orders", b"a", partition=0), lambda: fake.records("orders")):
            with pytest.raises(BrokerError, match=r"orders-0 has no leader: LEADER_NOT_AVAILABLE"):
                call()

    def test_cleared_faults_do_not_happen(self, fake: FakeKafka) -> None:
        fake.refuse("Produce", "TOPIC_AUTHORIZATION_FAILED", 5)
        fake.clear_faults()
        assert fake.produce("orders", b"a", partition=0) == [0]

    def test_shuffled_leaders_keep_the_records(self, fake: FakeKafka) -> None:
        fake.create_topic("single")
        fake.produce("single", b"a")
        before = {name: fake.leader(name, 0) for name in ("orders", "single")}
        fake.shuffle_leaders()
        assert all(fake.leader(name, 0) != leader for name, leader in before.items())
        assert values(fake, "single") == [b"a"]
        assert fake.produce("single", b"b") == [1]

    def test_rehashed_coordinators_keep_the_group(self, fake: FakeKafka) -> None:
        fake.produce("orders", "a", partition=0)
        client = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        with protocol.KafkaConsumer(client) as consumer:
            consumer.subscribe(["orders"])
            wait_until(lambda: consumer.poll(100).num_rows == 1)
            before = dict(fake.coordinators)
            fake.rehash_coordinators()
            assert fake.coordinators != before
            consumer.commit_sync()
        assert fake.committed_offsets("g")["orders", 0] == 1

    def test_added_broker_leads_partitions(self, fake: FakeKafka) -> None:
        assert fake.add_broker() == 4
        fake.produce("orders", b"a", partition=0)
        fake.move_leader("orders", 0, 4)
        assert fake.produce("orders", b"b", partition=0) == [1]
        table = protocol.read({"bootstrap.servers": fake.address(4)}, "orders").read_all()
        assert table["value"].to_pylist() == [b"a", b"b"]

    def test_replaced_broker_hands_over_its_logs(self, fake: FakeKafka) -> None:
        host, port = fake.addresses[fake.leader("orders", 0)]
        fake.produce("orders", b"a", partition=0)
        former = fake.leader("orders", 0)
        assert fake.replace_broker(former) == 4 == fake.leader("orders", 0)
        assert former not in fake.brokers
        assert fake.produce("orders", b"b", partition=0) == [1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), 5)
        for node_id in list(fake.brokers)[:2]:
            fake.replace_broker(node_id)
        assert values(fake, partition=0) == [b"a", b"b"]
        assert list(fake.brokers) == [4, 5, 6]

    def test_truncated_log_has_lost_its_end_on_all_replicas(self, fake: FakeKafka) -> None:
        fake.produce("orders", "a", "b", partition=0)
        fake.produce("orders", "c", partition=0)
        fake.truncate_log("orders", 0, 2)
        assert fake.produce("orders", "d", partition=0) == [2]
        for node_id in fake.brokers:
            fake.move_leader("orders", 0, node_id)
            assert values(fake, partition=0) == [b"a", b"b", b"d"]

    def test_truncated_log_ends_at_the_offset_after_compaction(self, fake: FakeKafka) -> None:
        fake.create_topic("latest", config={"cleanup.policy": "compact"})
        for value in ("a", "b", "c"):
            fake.produce("latest", value, key="k")
        fake.clean_logs("latest")
        fake.truncate_log("latest", 0, 2)
        assert fake.produce("latest", "d", key="k") == [2]

    def test_truncation_elects_no_leader_that_is_away(self, fake: FakeKafka) -> None:
        """It would go on in an epoch that it led before, in which these offsets had other records."""
        fake.create_topic("payments", 1, 2)
        fake.produce("payments", "a", "b")
        leader = fake.leader("payments", 0)
        (follower,) = {*fake.controller.topic("payments").partitions[0].replicas} - {leader}
        fake.silence(follower)
        fake.truncate_log("payments", 0, 1)
        fake.produce("payments", "c")
        assert fake.leader("payments", 0) == leader
        assert fake.log("payments", 0).epochs == [(0, 0), (1, 1)]

    def test_isolated_broker_forwards_a_deletion_to_the_controller(self, fake: FakeKafka) -> None:
        fake.isolate(1)
        fake.create_topic("payments")
        body = {"topics": [{"name": "payments", "topic_id": bytes(16)}], "timeout_ms": 1_000}
        assert fake.ask(1, DELETE_TOPICS, body)["responses"][0]["error_code"] == ErrorCode.NONE
        assert "payments" not in fake.controller.image.topics

    def test_records_of_a_former_leader_are_not_acknowledged(self, fake: FakeKafka) -> None:
        """The next leader's records reach the high watermark that the former leader waits for."""
        fake.create_topic("payments", 1, 2)
        leader = fake.leader("payments", 0)
        (follower,) = {*fake.controller.topic("payments").partitions[0].replicas} - {leader}
        fake.silence(follower)
        part = {"index": 0, "records": write_batch(Batch([Record(b"lost")]))}
        rows = [{"topic_id": fake.controller.topic("payments").topic_id, "partition_data": [part]}]
        body = {"acks": -1, "timeout_ms": 60_000, "topic_data": rows, "transactional_id": None}
        pending = fake.handle(leader, Request(PRODUCE, PRODUCE.last, body, "test", ITSELF))
        assert callable(pending)
        assert fake.look(pending) is None
        fake.isolate(leader)
        fake.move_leader("payments", 0, follower)
        fake.silence(follower, False)
        fake.produce("payments", "a", "b")
        fake.isolate(leader, False)
        reply = fake.look(pending)
        assert reply is not None
        (row,) = reply["responses"][0]["partition_responses"]
        assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert values(fake, "payments") == [b"a", b"b"]

    def test_records_of_an_isolated_former_leader_count_for_no_high_watermark(self, fake: FakeKafka) -> None:
        """It is still an in-sync replica, with other records at the same offsets."""
        fake.create_topic("payments", 1, 2)
        leader = fake.leader("payments", 0)
        (follower,) = {*fake.controller.topic("payments").partitions[0].replicas} - {leader}
        fake.isolate(leader)
        fake.move_leader("payments", 0, follower)

        def produce(broker: int, acks: int) -> object:
            part = {"index": 0, "records": write_batch(Batch([Record(b"a")]))}
            rows = [{"topic_id": fake.controller.topic("payments").topic_id, "partition_data": [part]}]
            body = {"acks": acks, "timeout_ms": 60_000, "topic_data": rows, "transactional_id": None}
            return fake.handle(broker, Request(PRODUCE, PRODUCE.last, body, "test", ITSELF))

        produce(leader, 1)
        pending = produce(follower, -1)
        assert callable(pending)
        assert fake.look(pending) is None
        fake.isolate(leader, False)
        assert fake.look(pending) is not None

    def test_marker_is_on_all_in_sync_replicas_at_once(self, fake: FakeKafka) -> None:
        fake.create_topic("payments", 1, 2)
        assert fake.write_marker(("payments", 0), 1, 0, commit=True)
        topic = fake.controller.topic("payments")
        ends = [fake.brokers[id].replicas[topic.topic_id, 0].log.end_offset for id in topic.partitions[0].isr]
        assert ends == [1, 1]

    def test_denied_operation_is_allowed_again(self) -> None:
        settings = {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
        with FakeKafka(settings=settings) as fake:
            fake.create_topic("orders")
            allow = fake.deny("Write", "Topic", "orders")
            with protocol.Producer(bootstrap_servers=fake.bootstrap_servers) as producer:
                with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                    producer.send_and_wait("orders", b"a")
                allow()
                producer.send_and_wait("orders", b"b")
        with FakeKafka() as fake, pytest.raises(UsageError, match=r"needs the setting authorizer\.class\.name"):
            fake.deny("Write", "Topic", "orders")

    def test_unstable_offsets_are_refused_by_partition(self, fake: FakeKafka) -> None:
        fake.refuse("OffsetFetch", "UNSTABLE_OFFSET_COMMIT")
        with protocol.KafkaConsumer(bootstrap_servers=fake.bootstrap_servers, group_id="g") as consumer:
            consumer.commit_sync({("orders", 0): protocol.CommittedOffset(3)})
        asked = {"group_id": "g", "topics": None}
        body = {"groups": [asked], "require_stable": True}
        coordinator = fake.coordinator(GROUP, "g")
        codes = []
        for _ in range(2):
            (group,) = fake.ask(coordinator, OFFSET_FETCH, body)["groups"]
            ((row,),) = (topic["partitions"] for topic in group["topics"])
            codes.append((group["error_code"], row["error_code"], row["committed_offset"]))
        assert codes == [(0, ErrorCode.UNSTABLE_OFFSET_COMMIT, -1), (0, 0, 3)]

    def test_shrunk_log_begins_at_the_given_offset(self, fake: FakeKafka) -> None:
        fake.produce("orders", "a", "b", "c", partition=0)
        fake.shrink_log("orders", 0, 2)
        assert [record.offset for record in fake.records("orders", 0)] == [2]
        fake.shrink_log("orders", 0, 1)
        assert fake.log("orders", 0).start_offset == 2, "a log start offset never decreases"

    def test_transaction_ends_after_its_topic_was_recreated_with_fewer_partitions(self, fake: FakeKafka) -> None:
        properties = {"bootstrap.servers": fake.bootstrap_servers, "transactional.id": "t"}
        with protocol.TransactionalProducer(properties) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_and_wait("orders", b"a", partition=1)
            fake.delete_topic("orders")
            fake.create_topic("orders", 1)
            producer.abort_transaction()
        assert fake.produce("orders", b"b") == [0]

    def test_closing_twice_is_harmless(self) -> None:
        fake = FakeKafka()
        fake.close()
        fake.close()

    def test_broker_listens_on_the_given_port(self) -> None:
        (port,) = free_ports(1)
        with FakeKafka(port=port) as fake:
            assert fake.bootstrap_servers == f"127.0.0.1:{port}"


def test_unknown_topic_config_is_refused(fake: FakeKafka) -> None:
    admin = protocol.Admin(bootstrap_servers=fake.bootstrap_servers)
    with admin, pytest.raises(KafkaError, match="INVALID_CONFIG"):
        admin.create_topics([protocol.admin.NewTopic("new", 1, configs={"no.such.config": "1"})])


def test_closed_connections_are_forgotten(fake: FakeKafka) -> None:
    for _ in range(3):
        with protocol.Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
            admin.list_topics()
    wait_until(lambda: not any(listener.connections for listener in fake.listeners.values()))


def test_connection_is_closed_when_the_client_has_ended(fake: FakeKafka) -> None:
    with socket.create_connection(fake.addresses[1], 20) as client:
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_fetch_beyond_the_session_cache_slots_gets_records_without_a_session() -> None:
    with FakeKafka(settings={"max.incremental.fetch.session.cache.slots": "1"}) as fake:
        topic_id = fake.create_topic("orders").topic_id
        fake.produce("orders", b"a")
        limits = {"partition_max_bytes": 1_000, "current_leader_epoch": -1, "last_fetched_epoch": -1}
        topics = [{"topic_id": topic_id, "partitions": [{"partition": 0, "fetch_offset": 0, **limits}]}]
        body = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1_000, "isolation_level": 0, "topics": topics}
        requests = [(0, 0), (0, 0), (1, -1), (0, 0)]
        sessions = []
        for session_id, epoch in requests:
            reply = fake.ask(1, FETCH, {**body, "session_id": session_id, "session_epoch": epoch})
            assert reply["responses"][0]["partitions"][0]["records"]
            sessions.append(reply["session_id"])
        assert sessions == [1, 0, 0, 2], "the second finds no slot, and the third closes the first session"


def test_requests_are_not_kept_unless_wanted() -> None:
    with FakeKafka(record_requests=False) as fake, protocol.Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
        admin.list_topics()
        assert fake.requests == fake.listeners[1].requests == []
