"""One broker's requests and replies, row by row, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.consumer.fetch_position import FetchPosition
from protocol.consumer.fetch_request import FetchRequestBuilder
from protocol.consumer.leaders import newest_version
from protocol.errors import BrokerError, TransportError
from protocol.wire.frame import decode_request, encode_request
from protocol.wire.messages.m01_fetch import FETCH
from tests.protocol.consumer.consuming import TOPIC_ID, records, reply, reply_row

BROKER = Broker(1, "kafka1", 9092)


def partitions(count: int, **config: Any) -> list[FetchPosition]:
    return [FetchPosition("orders", n, 10 * n, ConsumerConfig(**config), topic_id=TOPIC_ID) for n in range(count)]


def asked(
    wanted: list[FetchPosition], *, sessions: bool = False, version: int = 17, **config: Any
) -> tuple[FetchRequestBuilder, dict[str, Any]]:
    consumer = FetchRequestBuilder(BROKER, ConsumerConfig(**config), sessions=sessions)
    return consumer, ask(consumer, wanted, version)


def ask(consumer: FetchRequestBuilder, wanted: list[FetchPosition], version: int = 17) -> dict[str, Any]:
    return consumer.body(wanted, max_bytes=1_000, max_wait_ms=500)(version)


@pytest.mark.parametrize("version", range(FETCH.first, FETCH.last + 1))
@pytest.mark.parametrize("sessions", [False, True])
def test_request_is_encoded_in_each_version(version: int, sessions: bool) -> None:
    wanted = partitions(3)
    wanted[1].last_epoch, wanted[1].leader_epoch = 4, 5
    _, body = asked(wanted, sessions=sessions, version=version, isolation_level="read_committed", client_rack="a")
    sent = b"".join(encode_request(FETCH, version, 1, "test", body))
    _, _, _, _, read = decode_request(memoryview(sent)[4:])
    [topic] = read["topics"]
    assert [row["fetch_offset"] for row in topic["partitions"]] == [0, 10, 20]
    assert read["isolation_level"] == 1
    assert read["max_bytes"] == 8 << 20, "at least max.partition.fetch.bytes"
    if version >= 12:
        assert topic["partitions"][1]["last_fetched_epoch"] == 4
    if version >= 11:
        assert read["rack_id"] == "a"
    if version >= 7:
        assert read["session_epoch"] == (0 if sessions else -1)


def test_topics_without_an_id_need_a_version_with_names() -> None:
    wanted = partitions(2)
    assert newest_version(wanted) is None
    wanted[0].topic_id = bytes(16)
    assert newest_version(wanted) == 12


def test_rows_of_a_reply_are_handled_independently() -> None:
    wanted = partitions(4)
    wanted[3].last_epoch = 2
    consumer, _ = asked(wanted)
    result = consumer.handle_response(
        reply(
            reply_row(0, records(0, 5)),
            reply_row(1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
            reply_row(2),
            reply_row(3, diverging_epoch={"epoch": 1, "end_offset": 3}),
        )
    )
    assert [(partition.partition, fetched.next_offset) for partition, fetched in result.fetched] == [(0, 5)]
    assert [(partition.partition, str(error)[:20]) for partition, error in result.failed] == [
        (1, "Fetch of orders-1 at"),
        (3, "orders-3: the log wa"),
    ]
    assert [partition.position for partition in wanted] == [5, 10, 20, 30]


def test_broken_record_batch_fails_only_its_partition() -> None:
    consumer, _ = asked(partitions(2))
    result = consumer.handle_response(reply(reply_row(0, b"\xff" * 100), reply_row(1, records(10, 5))))
    assert [partition.partition for partition, _ in result.fetched] == [1]
    assert [partition.partition for partition, _ in result.failed] == [0]


@pytest.mark.parametrize("sessions", [False, True])
def test_throttled_empty_reply_is_no_error(sessions: bool) -> None:
    consumer, _ = asked(partitions(2), sessions=sessions)
    result = consumer.handle_response(reply(throttle_time_ms=1_200))
    assert (result.fetched, result.failed, result.throttle_ms) == ([], [], 1_200)


@pytest.mark.parametrize("sessions", [False, True])
def test_partition_missing_in_a_reply_fails(sessions: bool) -> None:
    consumer, _ = asked(partitions(2), sessions=sessions)
    result = consumer.handle_response(reply(reply_row(0)))
    [(partition, error)] = result.failed
    assert partition.partition == 1
    assert isinstance(error, TransportError)
    assert "without orders-1" in str(error)


def test_session_omits_unchanged_partitions() -> None:
    wanted = partitions(3)
    consumer, _ = asked(wanted, sessions=True)
    consumer.handle_response(reply(*(reply_row(n) for n in range(3)), session_id=7))
    body = ask(consumer, wanted)
    assert (body["session_id"], body["session_epoch"], body["topics"]) == (7, 1, [])
    result = consumer.handle_response(reply(reply_row(1, records(10, 5)), session_id=7))
    assert ([partition.partition for partition, _ in result.fetched], result.failed) == ([1], [])
    body = ask(consumer, wanted)
    assert [(row["partition"], row["fetch_offset"]) for row in body["topics"][0]["partitions"]] == [(1, 15)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_session_error_costs_one_full_request_and_keeps_positions(code: int) -> None:
    wanted = partitions(3)
    consumer, _ = asked(wanted, sessions=True)
    consumer.handle_response(reply(*(reply_row(n, records(10 * n, 5)) for n in range(3)), session_id=7))
    ask(consumer, wanted)
    result = consumer.handle_response(reply(error_code=code))
    assert (result.fetched, result.failed) == ([], [])
    body = ask(consumer, wanted)
    assert body["session_epoch"] == 0
    assert [row["fetch_offset"] for row in body["topics"][0]["partitions"]] == [5, 15, 25]
    # A broker that refuses a full request too is faulty; that must not become a loop without delays.
    result = consumer.handle_response(reply(error_code=code))
    assert [partition.partition for partition, _ in result.failed] == [0, 1, 2]


def test_other_top_level_error_fails_all_partitions() -> None:
    consumer, _ = asked(partitions(2))
    result = consumer.handle_response(reply(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
    assert all(isinstance(error, BrokerError) for _, error in result.failed)
    assert len(result.failed) == 2


def test_leader_may_name_a_preferred_read_replica() -> None:
    [partition] = partitions(1)
    partition.broker = BROKER
    consumer, _ = asked([partition])
    result = consumer.handle_response(reply(reply_row(0, preferred_read_replica=3)))
    assert (result.fetched, result.failed) == ([], [])
    assert (partition.preferred_replica, partition.broker) == (3, None)
    # That replica cannot name another one: two replicas could name each other forever.
    partition.broker = BROKER
    ask(consumer, [partition])
    consumer.handle_response(reply(reply_row(0, preferred_read_replica=2)))
    assert (partition.preferred_replica, partition.broker) == (3, BROKER)


def test_lost_reply_releases_the_partitions_and_ends_the_session() -> None:
    wanted = partitions(2)
    consumer, _ = asked(wanted, sessions=True)
    consumer.handle_response(reply(reply_row(0), reply_row(1), session_id=7))
    ask(consumer, wanted)
    assert consumer.lost() == wanted
    assert not consumer.asked
    body = ask(consumer, wanted)
    assert (body["session_id"], body["session_epoch"], len(body["topics"][0]["partitions"])) == (7, 0, 2)


def test_close_ends_the_session_at_the_broker() -> None:
    consumer, _ = asked(partitions(1), sessions=True)
    assert consumer.close() is None
    ask(consumer, partitions(1))
    consumer.handle_response(reply(reply_row(0), session_id=7))
    body = consumer.close()
    assert body is not None
    assert (body["session_id"], body["session_epoch"], body["topics"]) == (7, -1, [])
