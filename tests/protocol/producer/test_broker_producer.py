"""Produce requests and the handling of their replies, with `FakeKafka` or with replies made by the test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.errors import TLSFailed, UnsupportedVersion
from protocol.net.connection import Reply
from protocol.producer.idempotence import IdempotentSession, ProducerIdentity
from protocol.records.batch_header import TRANSACTIONAL, WIRE
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.testing.fake_kafka.transactions import State, Transaction
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from tests.protocol.producer.producing import TOPIC, numbered, producer_of, send_numbered, send_rows
from tests.support.internals import broker_producers_of
from tests.support.older_brokers import limit_version

TOPIC_ID = b"0123456789abcdef"


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    """Yield a broker that leads eight partitions of the topic."""
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, 8, topic_id=TOPIC_ID)
        yield kafka


def produce_requests(broker: FakeKafka) -> list[tuple[int, dict[str, Any]]]:
    """Return (version, body) of all Produce requests."""
    return [(version, body) for name, version, body in broker.requests if name == "Produce"]


def headers_of(body: dict[str, Any]) -> list[Any]:
    parts = [part for row in body["topic_data"] for part in row["partition_data"]]
    return [np.frombuffer(part["records"], WIRE, count=1)[0] for part in parts]


class TestRequests:
    def test_producer_without_idempotence_requests_no_producer_id(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers, {"enable.idempotence": False}) as producer:
            send_rows(producer, 0, 3)
        assert broker.request_bodies(INIT_PRODUCER_ID) == []
        ((_, body),) = produce_requests(broker)
        assert [int(header["producer_id"]) for header in headers_of(body)] == [-1]
        assert body["acks"] == -1

    def test_request_has_one_record_batch_per_partition_within_max_request_size(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers, {"max.request.size": 5_000, "batch.size": 2_000}) as producer:
            send_numbered(producer, TOPIC, 0, 160, 8)
        for _, body in produce_requests(broker):
            (row,) = body["topic_data"]
            indexes = [part["index"] for part in row["partition_data"]]
            assert len(set(indexes)) == len(indexes)
            assert sum(len(part["records"]) for part in row["partition_data"]) <= 5_000
        assert max(len(headers_of(body)) for _, body in produce_requests(broker)) >= 2

    @pytest.mark.parametrize(("last", "key"), [(13, "topic_id"), (12, "name"), (3, "name")])
    def test_topics_are_named_by_id_if_the_broker_supports_ids(self, broker: FakeKafka, last: int, key: str) -> None:
        limit_version(broker, PRODUCE, last)
        with producer_of(broker.bootstrap_servers) as producer:
            send_rows(producer, 0, 3)
        ((version, body),) = produce_requests(broker)
        assert version == last
        assert body["topic_data"][0][key] == {"topic_id": TOPIC_ID, "name": TOPIC}[key]

    def test_zstd_is_refused_for_a_broker_without_zstd(self, broker: FakeKafka) -> None:
        limit_version(broker, PRODUCE, 6)
        producer = producer_of(broker.bootstrap_servers, {"compression.type": "zstd"})
        send_rows(producer, 0, 3)
        with pytest.raises(UnsupportedVersion, match="Produce"):
            producer.flush()

    def test_each_partition_is_sent_once_before_any_is_sent_again(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers, {"max.request.size": 3_000, "batch.size": 2_500}) as producer:
            send_numbered(producer, TOPIC, 0, 8, 8)
            producer.flush()
            del broker.requests[:]
            producer.send_columns(TOPIC, numbered(8, 1_000), np.repeat(np.arange(8, dtype=np.int32), 125))
        order = [
            part["index"] for _, body in produce_requests(broker) for part in body["topic_data"][0]["partition_data"]
        ]
        assert set(order[:8]) == set(range(8))


class TestTransactionSession:
    """The interface for transactions: a session determines identity and version."""

    class Session(IdempotentSession):
        transactional_id = "orders-1"
        last_produce_version = 11

        def __init__(self) -> None:
            self.added: list[Any] = []

        def identity(self, deadline: Deadline) -> ProducerIdentity:
            return ProducerIdentity(5, 3)

        def before_produce(self, partitions: Any, deadline: Deadline) -> None:
            self.added += partitions

    def test_session_determines_identity_version_and_partitions(self, broker: FakeKafka) -> None:
        session = self.Session()
        begun = Transaction(5, producer_epoch=3, state=State.ONGOING, partitions={(TOPIC, 2)}, timeout_ms=60_000)
        begun.started_s = broker.clock.now_s()
        broker.transactions.transactions["orders-1"] = begun
        with producer_of(broker.bootstrap_servers, session=session) as producer:
            send_rows(producer, 0, 3, partition=2)
        ((version, body),) = produce_requests(broker)
        assert version == 11
        assert body["transactional_id"] == "orders-1"
        (header,) = headers_of(body)
        assert (int(header["producer_id"]), int(header["producer_epoch"])) == (5, 3)
        assert int(header["attributes"]) & TRANSACTIONAL
        assert session.added == [(TOPIC, 2)]
        assert broker.log(TOPIC, 2).end_offset == 3


class TestReplies:
    def test_producer_sends_nothing_until_its_throttle_time_has_passed(self, broker: FakeKafka) -> None:
        broker.edit_replies(PRODUCE, lambda body: {**body, "throttle_time_ms": 300})
        with producer_of(broker.bootstrap_servers) as producer:
            started_s = time.monotonic()
            send_rows(producer, 0, 3)
            producer.flush()
            send_rows(producer, 3, 3)
            producer.flush()
            assert time.monotonic() - started_s > 0.3

    @pytest.mark.parametrize(
        "reply", [{"responses": []}, b"\0\0\0\x0a" + b"\xff" * 10], ids=["without the partition", "undecodable"]
    )
    def test_batch_with_an_incomplete_reply_is_retried_and_written_once(
        self, broker: FakeKafka, reply: dict[str, Any] | bytes
    ) -> None:
        broker.edit_replies(PRODUCE, lambda body: reply, 1)
        with producer_of(broker.bootstrap_servers) as producer:
            send_rows(producer, 0, 3)
        first, second = [headers_of(body)[0] for _, body in produce_requests(broker)]
        assert first["base_sequence"] == second["base_sequence"] == 0
        assert broker.log(TOPIC).end_offset == 3

    def test_connection_that_ends_with_a_tls_alert_fails_no_other_broker(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With TLS 1.3 a broker may refuse a client's certificate after the handshake: the next read fails."""
        result, alerts = Reply.result, [TLSFailed("as if")]

        def fail_once(reply: Reply, deadline: Deadline) -> Any:
            body = result(reply, deadline)
            if "topic_data" in str(body) or "responses" in body:
                for alert in alerts:
                    alerts.clear()
                    raise alert
            return body

        monkeypatch.setattr(Reply, "result", fail_once)
        with producer_of(broker.bootstrap_servers) as producer:
            send_rows(producer, 0, 3)
            producer.flush()
        assert not alerts
        assert broker.log(TOPIC).end_offset == 3

    def test_unknown_producer_id_continues_with_the_next_epoch(self, broker: FakeKafka) -> None:
        def forget(body: dict[str, Any]) -> None:
            if len(broker.request_bodies(PRODUCE)) == 2:
                broker.refuse(PRODUCE, ErrorCode.UNKNOWN_PRODUCER_ID)

        broker.before[PRODUCE] = forget
        with producer_of(broker.bootstrap_servers) as producer:
            for first in (0, 3):
                send_rows(producer, first, 3)
                producer.flush()
            # Another partition without errors keeps its epoch.
            send_rows(producer, 6, 3, partition=1)
        observed = [
            (part["index"], int(header["producer_epoch"]), int(header["base_sequence"]))
            for _, body in produce_requests(broker)
            for part, header in zip(body["topic_data"][0]["partition_data"], headers_of(body), strict=True)
        ]
        assert observed == [(0, 0, 0), (0, 0, 3), (0, 1, 0), (1, 0, 0)]


def test_producer_forgets_addresses_that_brokers_have_left() -> None:
    with FakeKafka(2) as kafka:
        kafka.create_topic(TOPIC, 2)
        with producer_of(kafka.address(1)) as producer:
            for offset in range(4):
                assert producer.send(TOPIC, b"x", partition=1).result(30).offset == offset
                kafka.move(2)
            assert len(broker_producers_of(producer)) <= 2, "the broker, and its previous address"
            assert producer.requests >= 4
