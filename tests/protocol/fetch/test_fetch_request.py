"""One broker's requests and replies, row by row, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, ConnectionLost, TransportError
from protocol.fetch.fetch_position import FetchPosition
from protocol.fetch.fetch_request import FetchRequest, FetchRequestBuilder, requests_by_broker
from protocol.position import Position
from protocol.wire.frame import decode_request, encode_request
from protocol.wire.messages.m01_fetch import FETCH
from tests.protocol.fetch.consuming import SESSION_ERRORS, TOPIC_ID, records, reply, reply_row

BROKER = Broker(1, "kafka1", 9092)


def partitions(count: int, **config: Any) -> list[FetchPosition]:
    return [
        FetchPosition("orders", n, Position(10 * n, topic_id=TOPIC_ID), ConsumerConfig(**config)) for n in range(count)
    ]


def builder_of(*, sessions: bool = False, **config: Any) -> FetchRequestBuilder:
    return FetchRequestBuilder(BROKER, ConsumerConfig(**config), sessions=sessions)


def ask(
    builder: FetchRequestBuilder, expected: list[FetchPosition], version: int = 17
) -> tuple[FetchRequest[FetchPosition], dict[str, Any]]:
    request = builder.build(expected, max_bytes=1_000, max_wait_ms=500)
    return request, request.body(version)


def asked(expected: list[FetchPosition], **options: Any) -> FetchRequest[FetchPosition]:
    return ask(builder_of(**options), expected)[0]


@pytest.mark.parametrize("version", range(FETCH.first, FETCH.last + 1))
@pytest.mark.parametrize("sessions", [False, True])
def test_request_is_encoded_in_each_version(version: int, sessions: bool) -> None:
    positions = partitions(3)
    positions[1].seek(Position(10, 4))
    positions[1].leader_epoch = 5
    builder = builder_of(sessions=sessions, isolation_level="read_committed", client_rack="a")
    _, body = ask(builder, positions, version)
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


def test_request_keeps_fetch_max_bytes_below_max_partition_fetch_bytes() -> None:
    _, body = ask(builder_of(), partitions(2, fetch_max_bytes=5_000))
    assert body["max_bytes"] == 5_000


def test_request_keeps_the_order_of_partitions_of_several_topics() -> None:
    """Joined by topic, a backlog in the partition of an idle first one would always be sent before other topics."""
    idle, busy = partitions(2)
    other = FetchPosition("others", 0, Position(0, topic_id=bytes(15) + b"1"), ConsumerConfig())
    _, body = ask(builder_of(), [idle, other, busy])
    requested = [(topic["topic_id"], row["partition"]) for topic in body["topics"] for row in topic["partitions"]]
    assert requested == [(TOPIC_ID, 0), (other.topic_id, 0), (TOPIC_ID, 1)]


def test_topics_without_an_id_need_a_version_with_names() -> None:
    positions = partitions(2)
    request = asked(positions)
    assert request.newest_version is None
    positions[0].position = Position(0)
    assert request.newest_version == 12


def test_rows_of_a_reply_are_handled_independently() -> None:
    positions = partitions(4)
    positions[3].seek(Position(30, 2))
    result = asked(positions).handle_response(
        reply(
            reply_row(0, records(0, 5)),
            reply_row(1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
            reply_row(2),
            reply_row(3, diverging_epoch={"epoch": 1, "end_offset": 3}),
        )
    )
    assert [(partition.partition, completed.next_offset) for partition, completed in result.completed] == [(0, 5)]
    assert [(partition.partition, str(error)[:20]) for partition, error in result.failed] == [
        (1, "Fetch of orders-1 at"),
        (3, "orders-3: the log wa"),
    ]
    assert [partition.offset for partition in positions] == [5, 10, 20, 30]


def test_broken_record_batch_fails_only_its_partition() -> None:
    result = asked(partitions(2)).handle_response(reply(reply_row(0, b"\xff" * 100), reply_row(1, records(10, 5))))
    assert [partition.partition for partition, _ in result.completed] == [1]
    assert [partition.partition for partition, _ in result.failed] == [0]


@pytest.mark.parametrize("sessions", [False, True])
def test_throttled_empty_reply_is_no_error(sessions: bool) -> None:
    result = asked(partitions(2), sessions=sessions).handle_response(reply(throttle_time_ms=1_200))
    assert (result.completed, result.failed, result.throttle_ms) == ([], [], 1_200)


@pytest.mark.parametrize("sessions", [False, True])
def test_partition_missing_in_a_reply_fails(sessions: bool) -> None:
    result = asked(partitions(2), sessions=sessions).handle_response(reply(reply_row(0)))
    [(partition, error)] = result.failed
    assert partition.partition == 1
    assert isinstance(error, TransportError)
    assert "without orders-1" in str(error)


@pytest.mark.parametrize(
    ("version", "name"), [(12, "orders-7"), (17, f"topic id {TOPIC_ID.hex()}, partition 7")], ids=["name", "id"]
)
def test_partition_that_was_not_requested_is_logged_once(
    caplog: pytest.LogCaptureFixture, version: int, name: str
) -> None:
    builder = builder_of()
    for _ in range(3):
        request, _ = ask(builder, partitions(1), version)
        result = request.handle_response(reply(reply_row(0, records(0, 5)), reply_row(7, records(0, 5))))
        assert [partition.partition for partition, _ in result.completed] == [0]
        assert result.failed == []
    (record,) = caplog.records
    assert record.getMessage() == (f"{BROKER} has answered a Fetch with {name}, which was not requested; it is ignored")
    request, _ = ask(builder, partitions(1), version)
    request.handle_response(reply(reply_row(0), *(reply_row(number) for number in range(100, 200))))
    assert len(caplog.records) == 10


def in_session(*replies: bytes) -> tuple[FetchRequestBuilder, list[FetchPosition]]:
    """Return a builder whose session 7 has a partition for each of these replies, and the positions after them."""
    builder, positions = builder_of(sessions=True), partitions(len(replies))
    request, _ = ask(builder, positions)
    request.handle_response(reply(*(reply_row(number, data) for number, data in enumerate(replies)), session_id=7))
    return builder, positions


def test_session_omits_unchanged_partitions() -> None:
    builder, positions = in_session(b"", b"", b"")
    request, body = ask(builder, positions)
    assert (body["session_id"], body["session_epoch"], body["topics"]) == (7, 1, [])
    result = request.handle_response(reply(reply_row(1, records(10, 5)), session_id=7))
    assert ([partition.partition for partition, _ in result.completed], result.failed) == ([1], [])
    request, body = ask(builder, positions)
    assert [(row["partition"], row["fetch_offset"]) for row in body["topics"][0]["partitions"]] == [(1, 15)]


def test_unchanged_partition_of_a_session_has_no_failure() -> None:
    """A failed metadata lookup, for example: as an idle partition is omitted, the failure would last."""
    builder, [partition, *_] = in_session(b"")
    partition.postpone(ConnectionLost("broken"), 0.0)
    request, body = ask(builder, [partition])
    assert body["topics"] == []
    request.handle_response(reply(session_id=7))
    assert (partition.failure, partition.attempts) == (None, 0)


@pytest.mark.parametrize("code", SESSION_ERRORS)
def test_session_error_costs_one_full_request_and_keeps_positions(code: int) -> None:
    builder, positions = in_session(*(records(10 * number, 5) for number in range(3)))
    request, _ = ask(builder, positions)
    result = request.handle_response(reply(error_code=code))
    assert (result.completed, result.failed) == ([], [])
    request, body = ask(builder, positions)
    assert body["session_epoch"] == 0
    assert [row["fetch_offset"] for row in body["topics"][0]["partitions"]] == [5, 15, 25]
    # A broker that refuses a full request too is faulty; that must not become a loop without delays.
    result = request.handle_response(reply(error_code=code))
    assert [partition.partition for partition, _ in result.failed] == [0, 1, 2]


def test_other_top_level_error_fails_all_partitions() -> None:
    result = asked(partitions(2)).handle_response(reply(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
    assert all(isinstance(error, BrokerError) for _, error in result.failed)
    assert len(result.failed) == 2


def test_leader_may_name_a_preferred_read_replica() -> None:
    [partition] = partitions(1)
    partition.broker = BROKER
    result = asked([partition]).handle_response(reply(reply_row(0, preferred_read_replica=3)))
    assert (result.completed, result.failed) == ([], [])
    assert (partition.preferred_replica, partition.broker) == (3, None)
    # That replica cannot name another one: two replicas could name each other forever.
    partition.broker = BROKER
    asked([partition]).handle_response(reply(reply_row(0, preferred_read_replica=2)))
    assert (partition.preferred_replica, partition.broker) == (3, BROKER)


def test_lost_reply_fails_the_partitions_and_ends_the_session() -> None:
    builder, positions = in_session(b"", b"")
    request, _ = ask(builder, positions)
    error = ConnectionLost("broken")
    assert request.handle_loss(error).failed == [(partition, error) for partition in positions]
    request, body = ask(builder, positions)
    assert (body["session_id"], body["session_epoch"], len(body["topics"][0]["partitions"])) == (7, 0, 2)


def test_close_ends_the_session_at_the_broker() -> None:
    builder = builder_of(sessions=True)
    ask(builder, partitions(1))
    assert builder.close() is None, "no reply has the id of a session"
    builder, _ = in_session(b"")
    body = builder.close()
    assert body is not None
    assert (body["session_id"], body["session_epoch"], body["topics"]) == (7, -1, [])


# -- ranges in order of their wait, as many in a request as fit -----------------------------------


def ranges(count: int) -> list[FetchPosition]:
    """Return ranges that ask for 100,000 bytes each."""
    positions = partitions(count, max_partition_fetch_bytes=100_000)
    for partition in positions:
        partition.broker = BROKER
    return positions


@pytest.mark.parametrize(("max_bytes", "count"), [(200_000, 2), (1_000, 1)], ids=["all that fit", "a large one alone"])
def test_request_has_the_first_ranges_that_fit(max_bytes: int, count: int) -> None:
    waiting = ranges(3)
    assert requests_by_broker(waiting, (), 0.0, max_bytes) == {BROKER: waiting[:count]}


def test_ranges_of_one_partition_are_requested_in_turn() -> None:
    (first,), (same,) = ranges(1), ranges(1)
    assert requests_by_broker([first, same], (), 0.0, 1_000_000) == {BROKER: [first]}


def test_busy_broker_back_off_and_missing_leader_are_left_out() -> None:
    busy, waiting, leaderless, ready = ranges(4)
    busy.broker = Broker(2, "kafka2", 9092)
    waiting.retry_at_s = 1.0
    leaderless.broker = None
    mixed = [busy, waiting, leaderless, ready]
    assert requests_by_broker(mixed, {busy.broker}, 0.5, 1_000_000) == {BROKER: [ready]}
