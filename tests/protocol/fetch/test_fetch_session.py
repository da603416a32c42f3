"""Fetch sessions (KIP-227) against the model of a broker: its session has the requested partitions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.fetch.fetch_request import FetchSession, Key
from protocol.testing.fake_kafka.fetch_sessions import FetchSessions
from protocol.testing.fake_kafka.requests import Refused

ORDERS, PAYMENTS = b"o" * 16, b"p" * 16


def row(partition: int, offset: int = 0) -> dict[str, Any]:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1_000}


def wanted(*partitions: int, offset: int = 0, topic: bytes = ORDERS) -> dict[Key, dict[str, Any]]:
    return {(topic, partition): row(partition, offset) for partition in partitions}


def named(fields: dict[str, Any]) -> list[int]:
    return sorted(part["partition"] for topic in fields["topics"] for part in topic["partitions"])


def forgotten(fields: dict[str, Any]) -> list[int]:
    return sorted(number for topic in fields["forgotten_topics_data"] for number in topic["partitions"])


@pytest.fixture
def session() -> FetchSession:
    """Return a session after a full request for partitions 0, 1 and 2, accepted as session 7."""
    session = FetchSession()
    session.request(wanted(0, 1, 2), by_id=True)
    session.accept(ErrorCode.NONE, 7)
    return session


def test_session_epoch_wraps_to_1(session: FetchSession) -> None:
    session._epoch = 2**31 - 1
    assert session.request(wanted(0), by_id=True)["session_epoch"] == 2**31 - 1
    session.accept(ErrorCode.NONE, 7)
    fields = session.request(wanted(0), by_id=True)
    assert (fields["session_id"], fields["session_epoch"]) == (7, 1)


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 7),
    ],
)
def test_request_after_an_error_is_full_and_ends_the_old_session(
    session: FetchSession, code: int, session_id: int
) -> None:
    session.request(wanted(0, 1, 2, offset=9), by_id=True)
    session.accept(code, 0)
    fields = session.request(wanted(0, 1, 2, offset=9), by_id=True)
    assert (fields["session_id"], fields["session_epoch"]) == (session_id, 0)
    assert (named(fields), forgotten(fields)) == ([0, 1, 2], [])


def test_requests_to_a_broker_without_sessions_are_full() -> None:
    session = FetchSession()
    for _ in range(3):
        fields = session.request(wanted(0, 1), by_id=True)
        assert (fields["session_id"], fields["session_epoch"], named(fields)) == (0, 0, [0, 1])
        session.accept(ErrorCode.NONE, 0)


def test_session_never_mixes_topic_names_and_ids(session: FetchSession) -> None:
    by_name: dict[Key, dict[str, Any]] = {("orders", 0): row(0)}
    fields = session.request(by_name, by_id=False)
    assert (fields["session_id"], fields["session_epoch"]) == (7, 0)
    assert fields["topics"] == [{"topic": "orders", "partitions": [row(0)]}]
    assert fields["forgotten_topics_data"] == []


def test_session_continues_with_topic_names() -> None:
    """Brokers before Kafka 3.1 know no topic ids in Fetch."""
    session = FetchSession()
    for offset in (0, 0, 9):
        fields = session.request({("orders", 0): row(0), ("orders", 1): row(1, offset)}, by_id=False)
        session.accept(ErrorCode.NONE, 7)
    assert (fields["session_id"], fields["session_epoch"], named(fields)) == (7, 2, [1])


def ask(broker: FetchSessions, fields: dict[str, Any]) -> tuple[int, int, dict[Key, dict[str, Any]] | None]:
    """Return the error code and session id of the broker's reply, and the partitions read."""
    topics = {name: [{"topic": "", **topic} for topic in fields[name]] for name in ("topics", "forgotten_topics_data")}
    try:
        session = broker.of({**fields, **topics})
    except Refused as refused:
        return refused.code, 0, None
    session.keep({})
    return (
        0,
        session.session_id,
        {(topic_id, partition): row for (_, topic_id, partition), row in session.wanted.items()},
    )


@pytest.mark.parametrize("seed", range(20))
def test_broker_reads_exactly_the_requested_partitions_after_any_faults(seed: int) -> None:
    rng = random.Random(seed)
    session, broker = FetchSession(), FetchSessions(1_000)
    answered = orphans = 0
    for _ in range(300):
        rows = {
            (topic, partition): row(partition, rng.randrange(3))
            for topic in (ORDERS, PAYMENTS)
            for partition in rng.sample(range(8), rng.randrange(9))
        }
        fields = session.request(rows, by_id=True)
        fate = rng.random()
        if fate < 0.05:
            session.restart()  # the request was lost
            continue
        code, session_id, read = ask(broker, fields)
        if fate < 0.1:
            session.restart()  # the reply was lost, and with it the id of a new session
            orphans += session.full
            continue
        session.accept(code, session_id)
        if read is not None:
            assert read == rows
            answered += 1
        if fate < 0.2:
            broker.sessions.clear()  # restarted, or short of memory
            orphans = 0
        assert len(broker.sessions) <= 1 + orphans
    assert answered > 150
