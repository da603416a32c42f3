"""What goes over the wire, and what answers do, with a broker that answers as a test wants it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.errors import DeadlineExceeded, UnsupportedVersion
from protocol.net.readiness import ready
from protocol.producer.idempotence import IdempotentSession, ProducerIdentity
from protocol.records.header import TRANSACTIONAL, WIRE
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.registry import API_BY_KEY
from tests.fake_broker import FakeBroker
from tests.protocol.cluster.test_client import SteppedClock
from tests.protocol.producer.producing import numbered, producer_of, send_numbered

TOPIC = "t"
TOPIC_ID = b"0123456789abcdef"


def written(body: dict[str, Any], version: int, **fields: Any) -> dict[str, Any]:
    """Every record batch of the request is at offset 0."""
    return {
        "throttle_time_ms": 0,
        "responses": [
            {
                **({"topic_id": row["topic_id"]} if version >= 13 else {"name": row["name"]}),
                "partition_responses": [
                    {"index": part["index"], "error_code": 0, "base_offset": 0} for part in row["partition_data"]
                ],
            }
            for row in body["topic_data"]
        ],
        **fields,
    }


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Leads eight partitions of the topic, and takes everything."""
    with FakeBroker({PRODUCE: written}) as fake:
        partitions = [
            {"partition_index": n, "leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1]}
            for n in range(8)
        ]
        fake.handlers[METADATA.key] = lambda body, version: {
            "brokers": [{"node_id": 1, "host": fake.host, "port": fake.port}],
            "controller_id": 1,
            "topics": [{"name": TOPIC, "topic_id": TOPIC_ID, "partitions": partitions}],
        }
        fake.handlers[INIT_PRODUCER_ID.key] = lambda body, version: {"producer_id": 77, "producer_epoch": 0}
        yield fake


def address(broker: FakeBroker) -> str:
    return f"{broker.host}:{broker.port}"


def produced(broker: FakeBroker) -> list[tuple[int, dict[str, Any]]]:
    """(version, body) of every Produce request."""
    return [(version, body) for name, version, body in broker.requests if name == "Produce"]


def headers_of(body: dict[str, Any]) -> list[Any]:
    parts = [part for row in body["topic_data"] for part in row["partition_data"]]
    return [np.frombuffer(part["records"], WIRE, count=1)[0] for part in parts]


def speaks(last: int) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """A broker whose newest Produce is this one."""
    rows = [{"api_key": api.key, "min_version": api.first, "max_version": api.last} for api in API_BY_KEY.values()]
    for row in rows:
        if row["api_key"] == PRODUCE.key:
            row["max_version"] = last
    return lambda body, version: {"error_code": 0, "api_keys": rows}


class TestRequests:
    def test_record_batches_carry_identity_and_consecutive_numbers(self, broker: FakeBroker) -> None:
        with producer_of(address(broker), {"batch.size": 1_000}) as producer:
            producer.send_columns(TOPIC, numbered(0, 30), np.full(30, 5, np.int32))
        headers = [header for _, body in produced(broker) for header in headers_of(body)]
        assert {(int(header["producer_id"]), int(header["producer_epoch"])) for header in headers} == {(77, 0)}
        firsts = [int(header["base_sequence"]) for header in headers]
        counts = [int(header["count"]) for header in headers]
        assert firsts == np.cumsum([0, *counts[:-1]]).tolist()
        assert sum(counts) == 30

    def test_without_idempotence_no_identity_is_asked_for(self, broker: FakeBroker) -> None:
        with producer_of(address(broker), {"enable.idempotence": False}) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        assert "InitProducerId" not in [name for name, _, _ in broker.requests]
        ((_, body),) = produced(broker)
        assert [int(header["producer_id"]) for header in headers_of(body)] == [-1]
        assert body["acks"] == -1

    def test_a_request_has_one_record_batch_per_partition_and_keeps_to_its_size(self, broker: FakeBroker) -> None:
        with producer_of(address(broker), {"max.request.size": 5_000, "batch.size": 2_000}) as producer:
            send_numbered(producer, TOPIC, 0, 160, 8)
        for _, body in produced(broker):
            (row,) = body["topic_data"]
            indexes = [part["index"] for part in row["partition_data"]]
            assert len(set(indexes)) == len(indexes)
            assert sum(len(part["records"]) for part in row["partition_data"]) <= 5_000
        assert max(len(headers_of(body)) for _, body in produced(broker)) >= 2

    @pytest.mark.parametrize(("last", "key"), [(13, "topic_id"), (12, "name"), (3, "name")])
    def test_topics_go_by_id_where_the_broker_knows_ids(self, broker: FakeBroker, last: int, key: str) -> None:
        broker.handlers[API_VERSIONS.key] = speaks(last)
        with producer_of(address(broker)) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        ((version, body),) = produced(broker)
        assert version == last
        assert body["topic_data"][0][key] == {"topic_id": TOPIC_ID, "name": TOPIC}[key]

    def test_zstd_is_refused_for_a_broker_that_cannot_read_it(self, broker: FakeBroker) -> None:
        broker.handlers[API_VERSIONS.key] = speaks(6)
        producer = producer_of(address(broker), {"compression.type": "zstd"})
        producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        with pytest.raises(UnsupportedVersion, match="Produce"):
            producer.flush()

    def test_partitions_take_turns(self, broker: FakeBroker) -> None:
        with producer_of(address(broker), {"max.request.size": 3_000, "batch.size": 2_500}) as producer:
            send_numbered(producer, TOPIC, 0, 8, 8)
            producer.flush()
            del broker.requests[:]
            producer.send_columns(TOPIC, numbered(8, 1_000), np.repeat(np.arange(8, dtype=np.int32), 125))
        order = [part["index"] for _, body in produced(broker) for part in body["topic_data"][0]["partition_data"]]
        assert set(order[:8]) == set(range(8))


class TestATransaction:
    """The seam for transactions: a session that says who and how."""

    class Session(IdempotentSession):
        transactional_id = "orders-1"
        last_produce_version = 11

        def __init__(self) -> None:
            self.added: list[Any] = []

        def identity(self, deadline: Deadline) -> ProducerIdentity:
            return ProducerIdentity(5, 3)

        def before_produce(self, partitions: Any, deadline: Deadline) -> None:
            self.added += partitions

    def test_its_session_decides_identity_version_and_partitions(self, broker: FakeBroker) -> None:
        session = self.Session()
        with producer_of(address(broker), session=session) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.full(3, 2, np.int32))
        ((version, body),) = produced(broker)
        assert version == 11
        assert body["transactional_id"] == "orders-1"
        (header,) = headers_of(body)
        assert (int(header["producer_id"]), int(header["producer_epoch"])) == (5, 3)
        assert int(header["attributes"]) & TRANSACTIONAL
        assert session.added == [(TOPIC, 2)]


class TestAnswers:
    def test_a_throttled_producer_waits(self, broker: FakeBroker) -> None:
        broker.handlers[PRODUCE.key] = lambda body, version: written(body, version, throttle_time_ms=300)
        with producer_of(address(broker)) as producer:
            started_s = time.monotonic()
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
            producer.flush()
            producer.send_columns(TOPIC, numbered(3, 3), np.zeros(3, np.int32))
            producer.flush()
            assert time.monotonic() - started_s > 0.3

    def test_a_partition_without_an_answer_is_tried_again(self, broker: FakeBroker) -> None:
        answers: list[dict[str, Any]] = [{"throttle_time_ms": 0, "responses": []}]
        broker.handlers[PRODUCE.key] = lambda body, version: answers.pop() if answers else written(body, version)
        with producer_of(address(broker)) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        first, second = [headers_of(body)[0] for _, body in produced(broker)]
        assert first["base_sequence"] == second["base_sequence"] == 0

    @pytest.mark.parametrize("away_s", [20.0, 1_000.0])
    def test_what_failed_while_the_caller_was_away_is_tried_again(self, broker: FakeBroker, away_s: float) -> None:
        """Who takes long for its next rows must not find the last ones given up because nobody has sent them again."""
        clock = SteppedClock()
        moved = 2

        def answer(body: dict[str, Any], version: int) -> dict[str, Any]:
            nonlocal moved
            moved -= 1
            return written(body, version) if moved < 0 else refused(body, version)

        def refused(body: dict[str, Any], version: int) -> dict[str, Any]:
            reply = written(body, version)
            for part in (part for row in reply["responses"] for part in row["partition_responses"]):
                part.update(error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER), base_offset=-1)
            return reply

        broker.handlers[PRODUCE.key] = answer
        with producer_of(address(broker), {"batch.size": 100}, clock) as producer:
            for first in range(0, 9, 3):
                producer.send_columns(TOPIC, numbered(first, 3), np.zeros(3, np.int32))
                assert all(ready([each.oldest], 10) for each in producer._brokers.values() if each.oldest)
                clock.at_s += away_s
            producer.flush()
            assert producer.acknowledged[TOPIC, 0].count == 9
        assert all(body["timeout_ms"] > 10_000 for _, body in produced(broker)), "each try has its time"

    def test_a_slow_caller_does_not_put_off_the_end_for_ever(self, broker: FakeBroker) -> None:
        """Each of its pauses is long enough to be one, and each call finds the broker as it was."""
        clock = SteppedClock()
        broker.handlers[PRODUCE.key] = lambda body, version: {"throttle_time_ms": 0, "responses": []}
        producer = producer_of(address(broker), {"batch.size": 100}, clock)

        def go_on() -> None:
            for first in range(0, 3_000, 3):
                producer.send_columns(TOPIC, numbered(first, 3), np.zeros(3, np.int32))
                clock.at_s += 1.5

        with pytest.raises(DeadlineExceeded, match=r"120 s \(delivery.timeout.ms\)"):
            go_on()
        assert 120 < clock.at_s < 250
        producer.abort()

    def test_what_cannot_be_written_is_given_up_in_time_however_long_the_caller_was_away(
        self, broker: FakeBroker
    ) -> None:
        clock = SteppedClock()
        broker.handlers[PRODUCE.key] = lambda body, version: {"throttle_time_ms": 0, "responses": []}
        producer = producer_of(address(broker), {"batch.size": 100}, clock)
        clock.at_s += 1_000
        producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        with pytest.raises(DeadlineExceeded, match=r"120 s \(delivery.timeout.ms\)"):
            producer.flush()
        assert 1_115 < clock.at_s < 1_125
        producer.abort()

    def test_bytes_that_are_no_answer_are_an_unknown_outcome_and_tried_again(self, broker: FakeBroker) -> None:
        garbage = [b"\0\0\0\x0a" + b"\xff" * 10]
        broker.handlers[PRODUCE.key] = lambda body, version: garbage.pop() if garbage else written(body, version)
        with producer_of(address(broker)) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        assert len(produced(broker)) == 2

    def test_unknown_producer_id_goes_on_under_the_next_epoch(self, broker: FakeBroker) -> None:
        codes = [ErrorCode.UNKNOWN_PRODUCER_ID]

        def answer(body: dict[str, Any], version: int) -> dict[str, Any]:
            reply = written(body, version)
            if codes and int(headers_of(body)[0]["base_sequence"]) > 0:
                reply["responses"][0]["partition_responses"][0].update(error_code=int(codes.pop()), base_offset=-1)
            return reply

        broker.handlers[PRODUCE.key] = answer
        with producer_of(address(broker)) as producer:
            for first in (0, 3):
                producer.send_columns(TOPIC, numbered(first, 3), np.zeros(3, np.int32))
                producer.flush()
            # Another partition, never in trouble, stays with its epoch.
            producer.send_columns(TOPIC, numbered(6, 3), np.ones(3, np.int32))
        seen = [
            (part["index"], int(header["producer_epoch"]), int(header["base_sequence"]))
            for _, body in produced(broker)
            for part, header in zip(body["topic_data"][0]["partition_data"], headers_of(body), strict=True)
        ]
        assert seen == [(0, 0, 0), (0, 0, 3), (0, 1, 0), (1, 0, 0)]

    def test_a_silent_broker_ends_in_an_unknown_outcome(self, broker: FakeBroker) -> None:
        broker.handlers[PRODUCE.key] = lambda body, version: None
        producer = producer_of(address(broker), {"request.timeout.ms": 200, "delivery.timeout.ms": 3_000})
        producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        with pytest.raises(DeadlineExceeded, match="3 records have an unknown outcome") as raised:
            producer.flush()
        assert raised.value.context["unknown_records"] == 3
        assert len(produced(broker)) > 1
