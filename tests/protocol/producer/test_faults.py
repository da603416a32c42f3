"""Killed brokers, moved leaders, lost replies: each row is written once and in order, or flush reports it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import KafkaError
from protocol.producer.idempotence import IdempotentSession, ProducerIdentity
from protocol.producer.producer import Producer
from protocol.wire.messages.m00_produce import PRODUCE
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.producer.on_fake import SkippingClock, trouble
from tests.protocol.producer.producing import assert_all_once_in_order, numbered, producer_of, send_numbered, servers
from tests.support.internals import sender_of
from tests.support.kafka_proxy import Exchange, Fate, KafkaProxy
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
        """Slow: a broker is killed and starts again, and each cut connection waits for the replicas."""
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


class TestErrorReplies:
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


def test_flush_without_brokers_ends_at_the_delivery_timeout(topic: TopicFactory, proxy: KafkaProxy) -> None:
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
