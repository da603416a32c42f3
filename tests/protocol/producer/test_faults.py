"""Killed brokers, moved leaders, lost replies: each row is written once and in order, or flush reports it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError
from protocol.producer.idempotence import IdempotentSession, ProducerIdentity
from protocol.producer.producer import Producer
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m03_metadata import METADATA
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import move_leader
from tests.protocol.producer.producing import (
    assert_all_once_in_order,
    numbered,
    producer_of,
    send_numbered,
    servers,
)
from tests.protocol.producer.test_sender import SkippingClock, trouble
from tests.support.background import background
from tests.support.internals import sender_of
from tests.support.kafka_proxy import Exchange, Fate, KafkaProxy
from tests.support.read_back import read_back
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

SAFE = {"min.insync.replicas": "2"}


@pytest.fixture
def proxy(kafka: LocalKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy.of(kafka) as running:
        yield running


def leader_of(producer: Producer, topic: str, partition: int) -> int:
    return producer.client.leader(topic, partition)[0].node_id


def in_flight(producer: Producer) -> int:
    return sender_of(producer).in_flight


class TestBrokers:
    def test_rows_survive_killed_leaders_and_lost_replies_under_load(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
    ) -> None:
        name = topic(12, replication_factor=3, config=SAFE)
        count, kills = (1_000_000, 8) if SOAK else (50_000, 1)
        proxy.replies[PRODUCE] = lambda reply: Fate.CUT if reply.number % 40 == 0 else Fate.PASS
        max_in_flight, killed, down = 0, 0, None
        # Rows in memory must be written within delivery.timeout.ms, also by brokers of a busy machine.
        properties = {"batch.size": 2_048, "buffer.memory": 4 << 20}
        try:
            with producer_of(servers(proxy.bootstrap_servers), properties) as producer:
                for first in range(0, count, 1_000):
                    send_numbered(producer, name, first, 1_000, 12)
                    max_in_flight = max(max_in_flight, in_flight(producer))
                    if down is None and first * (kills + 1) >= (killed + 1) * count and in_flight(producer):
                        down = leader_of(producer, name, killed % 12)
                        kafka.kill(down)
                        killed += 1
                    elif down is not None and first * 2 * (kills + 1) >= (2 * killed + 1) * count:
                        kafka.start(down)
                        down = None
                producer.flush()
        finally:
            if down is not None:
                kafka.start(down)
        assert killed == kills
        assert max_in_flight >= 5
        assert_all_once_in_order(kafka, name, count, 12)

    def test_rows_survive_a_leader_that_resumes_after_another_took_over(
        self, kafka: LocalKafka, topic: TopicFactory
    ) -> None:
        name = topic(6, replication_factor=3, config=SAFE)
        with producer_of(kafka.bootstrap_servers, {"request.timeout.ms": 2_000}) as producer:
            send_numbered(producer, name, 0, 6, 6)
            producer.flush()
            victim = leader_of(producer, name, 0)
            try:
                kafka.pause(victim)
                for first in range(6, 6_006, 600):
                    send_numbered(producer, name, first, 600, 6)
                producer.flush()
            finally:
                kafka.resume(victim)
            # Requests still in the old leader's sockets must have no effect.
            for first in range(6_006, 9_006, 600):
                send_numbered(producer, name, first, 600, 6)
            producer.flush()
        assert_all_once_in_order(kafka, name, 9_006, 6)

    def test_rows_survive_a_leader_that_moves(self, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path) -> None:
        name = topic(1, replication_factor=1)
        with producer_of(kafka.bootstrap_servers) as producer:
            send_numbered(producer, name, 0, 10, 1)
            producer.flush()
            old = leader_of(producer, name, 0)
            new = next(number for number in kafka.broker_ids if number != old)
            sent = 10
            with background(lambda: move_leader(kafka, name, 0, new, tmp_path)):
                deadline_s = time.monotonic() + 60
                while leader_of(producer, name, 0) == old and time.monotonic() < deadline_s:
                    send_numbered(producer, name, sent, 100, 1)
                    producer.flush()
                    sent += 100
            assert leader_of(producer, name, 0) == new
            send_numbered(producer, name, sent, 100, 1)
            producer.flush()
        assert_all_once_in_order(kafka, name, sent + 100, 1)


class TestLostReplies:
    def test_rows_survive_loss_of_every_seventh_reply(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
    ) -> None:
        name = topic(3, replication_factor=3, config=SAFE)
        proxy.replies[PRODUCE] = lambda reply: Fate.CUT if reply.number % 7 == 0 else Fate.PASS
        with producer_of(servers(proxy.bootstrap_servers)) as producer:
            for first in range(0, 6_000, 300):
                send_numbered(producer, name, first, 300, 3)
        assert proxy.frame_counts["Produce", "reply"] > 70
        assert_all_once_in_order(kafka, name, 6_000, 3)

    def test_rows_survive_lost_requests(self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy) -> None:
        name = topic(3, replication_factor=3, config=SAFE)
        proxy.requests[PRODUCE] = lambda request: Fate.CUT if request.number % 5 == 0 else Fate.PASS
        proxy.replies[PRODUCE] = lambda reply: Fate.CUT if reply.number % 11 == 0 else 0.002
        with producer_of(servers(proxy.bootstrap_servers)) as producer:
            for first in range(0, 3_000, 300):
                send_numbered(producer, name, first, 300, 3)
        assert_all_once_in_order(kafka, name, 3_000, 3)

    def test_acks_1_loses_no_rows(self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy) -> None:
        name = topic(1)
        proxy.replies[PRODUCE] = lambda reply: Fate.CUT if reply.number % 5 == 0 else Fate.PASS
        with producer_of(servers(proxy.bootstrap_servers), {"acks": "1"}) as producer:
            for first in range(0, 2_000, 100):
                send_numbered(producer, name, first, 100, 1)
        written = [int((record.value or b"")[:9]) for record in read_back(kafka, name)]
        assert set(written) == set(range(2_000))
        assert len(written) > 2_000, "without idempotence a lost reply causes a duplicate"

    def test_reply_that_never_arrives_is_an_unknown_outcome(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
    ) -> None:
        name = topic(1)
        clock = SkippingClock()
        producer = producer_of(servers(proxy.bootstrap_servers), {"linger.ms": 0}, clock)
        send_numbered(producer, name, 0, 10, 1)
        producer.flush()
        proxy.replies[PRODUCE] = lambda reply: 60.0
        before = producer.requests
        send_numbered(producer, name, 10, 100, 1)
        wait_until(lambda: producer.requests > before)
        clock.skip(120)
        with pytest.raises(DeadlineExceeded) as raised:
            producer.flush()
        assert raised.value.context["topic"] == name
        assert raised.value.context["unknown_records"] > 0
        assert "unknown outcome (written or not)" in str(raised.value)
        assert "(delivery.timeout.ms)" in str(raised.value)
        # Afterwards the producer works again, in the next epoch, and the old rows are not repeated.
        del proxy.replies[PRODUCE]
        send_numbered(producer, name, 110, 100, 1)
        producer.flush()
        producer.close()
        written = [int((record.value or b"")[:9]) for record in read_back(kafka, name)]
        assert written == sorted(set(written))
        assert set(written) >= {*range(10), *range(110, 210)}

    def test_flush_ends_by_its_deadline_and_can_be_repeated(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
    ) -> None:
        name = topic(1)
        event = threading.Event()
        with producer_of(servers(proxy.bootstrap_servers)) as producer:
            send_numbered(producer, name, 0, 10, 1)
            producer.flush()
            proxy.replies[PRODUCE] = lambda reply: Fate.PASS if event.wait(30) else Fate.CUT
            send_numbered(producer, name, 10, 10, 1)
            started_s = time.monotonic()
            with pytest.raises(DeadlineExceeded, match=f"{name}-0"):
                producer.flush(300)
            assert time.monotonic() - started_s < 15
            event.set()
            producer.flush()
        assert_all_once_in_order(kafka, name, 20, 1)


class TestErrorReplies:
    def test_topic_missing_in_one_metadata_reply_resets_no_sequence(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
    ) -> None:
        name = topic(3, replication_factor=3, config=SAFE)
        vanished = 0

        def vanish(reply: Exchange) -> Fate | bytes:
            nonlocal vanished
            body = reply.reply()
            if vanished >= 3 or not body["topics"]:
                return Fate.PASS
            vanished += 1
            for row in body["topics"]:
                row.update(error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), partitions=[])
            return reply.reply_with(body)

        with producer_of(servers(proxy.bootstrap_servers)) as producer:
            for first in range(0, 6_000, 300):
                send_numbered(producer, name, first, 300, 3)
                if first == 3_000:
                    proxy.replies[METADATA] = vanish
                    proxy.cut()
                    # If all replies had arrived before the cut, no Metadata request would follow.
                    producer.client.expire_metadata([name])
        assert vanished == 3
        assert_all_once_in_order(kafka, name, 6_000, 3)

    @pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
    def test_written_records_with_an_error_reply_are_not_repeated(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy, code: ErrorCode
    ) -> None:
        name = topic(3, replication_factor=3, config=SAFE)

        def refuse(reply: Exchange) -> Fate | bytes:
            if reply.number % 6:
                return Fate.PASS
            body = reply.reply()
            for topic_row in body["responses"]:
                for row in topic_row["partition_responses"]:
                    row.update(error_code=int(code), base_offset=-1)
            return reply.reply_with(body)

        proxy.replies[PRODUCE] = refuse
        with producer_of(servers(proxy.bootstrap_servers)) as producer:
            for first in range(0, 3_000, 300):
                send_numbered(producer, name, first, 300, 3)
        assert_all_once_in_order(kafka, name, 3_000, 3)

    def test_duplicate_sequence_error_is_a_success(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
    ) -> None:
        name = topic(1)

        def duplicate(reply: Exchange) -> Fate | bytes:
            body = reply.reply()
            row = body["responses"][0]["partition_responses"][0]
            assert row["error_code"] == ErrorCode.NONE
            row.update(error_code=int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER), base_offset=-1)
            return reply.reply_with(body)

        proxy.replies[PRODUCE] = duplicate
        with producer_of(servers(proxy.bootstrap_servers)) as producer:
            send_numbered(producer, name, 0, 50, 1)
            producer.flush()
            assert producer.acknowledged[name, 0].count == 50
        assert_all_once_in_order(kafka, name, 50, 1)

    def test_unauthorised_write_fails_at_once_and_names_the_topic(
        self, kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
    ) -> None:
        name = topic(1)

        def forbid(reply: Exchange) -> Fate | bytes:
            body = reply.reply()
            body["responses"][0]["partition_responses"][0].update(
                error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), base_offset=-1, error_message="not you"
            )
            return reply.reply_with(body)

        proxy.replies[PRODUCE] = forbid
        producer = producer_of(servers(proxy.bootstrap_servers))
        producer.send_columns(name, numbered(0, 5))
        with pytest.raises(BrokerError, match=rf"5 records to {name}-0 .*not you.*TOPIC_AUTHORIZATION_FAILED"):
            producer.flush()
        producer.abort()


class TestEpochs:
    def test_last_epoch_is_followed_by_a_new_producer_id(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(1)
        with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
            session, deadline = IdempotentSession(client), client.deadline()
            first = session.identity(deadline)
            assert session.successor(first, deadline) == ProducerIdentity(first.producer_id, 1)
            last = ProducerIdentity(first.producer_id, 32_767)
            second = session.successor(last, deadline)
            assert second.producer_id != first.producer_id
            assert second.producer_epoch == 0
            assert session.successor(last, deadline) == second, "all partitions share one new id"
            with Producer(client, {"batch.size": 4_096}, session=session) as producer:
                send_numbered(producer, name, 0, 100, 1)
        assert_all_once_in_order(kafka, name, 100, 1)

    def test_deleted_records_do_not_stop_the_producer(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        name = topic(1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        with producer_of(kafka.bootstrap_servers) as producer:
            send_numbered(producer, name, 0, 100, 1)
            producer.flush()
            for future in admin.delete_records([TopicPartition(name, 0, -1)]).values():
                future.result()
            send_numbered(producer, name, 100, 100, 1)
        assert [int((record.value or b"")[:9]) for record in read_back(kafka, name)] == list(range(100, 200))


def test_flush_without_brokers_ends_at_the_delivery_timeout(
    kafka: LocalKafka, topic: TopicFactory, proxy: KafkaProxy
) -> None:
    name = topic(2)
    clock = SkippingClock()
    properties = {"linger.ms": 0, "request.timeout.ms": 1_000}
    producer = producer_of(servers(proxy.bootstrap_servers), properties, clock)
    producer.send_columns(name, numbered(0, 10), np.zeros(10, np.int32))
    producer.flush()
    proxy.close()
    started_s = time.monotonic()
    producer.send_columns(name, numbered(10, 10), np.zeros(10, np.int32))
    wait_until(lambda: trouble(producer, name, 0))
    clock.skip(120)
    with pytest.raises(KafkaError, match=name):
        producer.flush()
    assert time.monotonic() - started_s < 15
    producer.abort()
