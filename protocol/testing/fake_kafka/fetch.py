"""Fetch: record batches of a replica, immediately or when `min_bytes` are available."""

from __future__ import annotations

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import NO_LEADER_EPOCH
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.fetch_sessions import FetchSession, Key
from protocol.testing.fake_kafka.quotas import CONSUMED
from protocol.testing.fake_kafka.requests import Body, Pending, Refused, Request, TimedPending
from protocol.wire.messages.m01_fetch import FETCH

_READ_COMMITTED = 1
_REFUSED = {"high_watermark": -1, "log_start_offset": -1, "records": b"", "aborted_transactions": None}


def fetch(broker: Broker, request: Request) -> Body | Pending:
    """Handle Fetch."""
    body, quotas = request.body, broker.cluster.quotas
    session = broker.sessions.of(body)
    until_s = broker.cluster.clock.now_s() + body["max_wait_ms"] / 1000

    def when_due() -> Body | None:
        rows = _read(broker, session, body, quotas.limit_bytes(CONSUMED, request))
        size_bytes, now_s = sum(len(row["records"]) for row in rows.values()), broker.cluster.clock.now_s()
        at_once = not rows or any(row["error_code"] or "diverging_epoch" in row for row in rows.values())
        if at_once or size_bytes >= body["min_bytes"] or now_s >= until_s:
            throttle_ms = quotas.throttle_ms(CONSUMED, broker.node_id, request, size_bytes, now_s)
            if throttle_ms:  # such a reply has no records, and they are not counted
                return {**_reply(broker, session, {}), "throttle_time_ms": throttle_ms}
            quotas.count(CONSUMED, broker.node_id, request, size_bytes, now_s)
            return _reply(broker, session, rows)
        return None

    return TimedPending(when_due, until_s)


def _read(broker: Broker, session: FetchSession, body: Body, limit_bytes: float) -> dict[Key, Body]:
    """Read each partition up to the limits; the first with records returns a whole record batch of any size."""
    rows, free_bytes, at_least_one = {}, int(min(body["max_bytes"], limit_bytes)), True
    committed = body["isolation_level"] == _READ_COMMITTED
    for key, part in session.wanted.items():
        max_bytes = min(part["partition_max_bytes"], free_bytes)

        def read(topic: TopicImage, part: Body = part, room: tuple[int, bool] = (max_bytes, at_least_one)) -> Body:
            return _partition(broker, topic, part, committed, *room)

        identity = {"topic": key[0], "topic_id": key[1]}
        row = broker.row(FETCH, identity, part["partition"], read, key="partition_index", refused=_REFUSED)
        rows[key] = row
        free_bytes = max(0, free_bytes - len(row["records"]))
        at_least_one = at_least_one and not row["records"]
    return rows


def _partition(
    broker: Broker, topic: TopicImage, part: Body, committed: bool, max_bytes: int, at_least_one: bool
) -> Body:
    hosted = broker.hosted(topic, part["partition"], part["current_leader_epoch"])
    log, replica, offset = hosted.log, hosted.replica, part["fetch_offset"]
    ends: Body = {
        "high_watermark": replica.high_watermark,
        "last_stable_offset": replica.last_stable_offset,
        "log_start_offset": log.start_offset,
        "aborted_transactions": [] if committed else None,
        "records": b"",
    }
    if part["last_fetched_epoch"] != NO_LEADER_EPOCH:
        epoch, end_offset = log.end_of_epoch(part["last_fetched_epoch"])
        if epoch == NO_LEADER_EPOCH:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < part["last_fetched_epoch"] or end_offset < offset:
            return {**ends, "diverging_epoch": {"epoch": epoch, "end_offset": end_offset}}
    if not log.start_offset <= offset <= log.end_offset:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    until = replica.last_stable_offset if committed else replica.high_watermark
    records = log.read(offset, until, max_bytes, at_least_one=at_least_one)
    if committed and records:
        ends["aborted_transactions"] = [
            {"producer_id": transaction.producer_id, "first_offset": transaction.first_offset}
            for transaction in log.aborted_between(offset, until)
        ]
    return {**ends, "records": records}


def _reply(broker: Broker, session: FetchSession, rows: dict[Key, Body]) -> Body:
    reported = session.keep(rows) if session.session_id else rows
    topics: dict[tuple[str, bytes], Body] = {}
    for (name, topic_id, _), row in reported.items():
        topic = topics.setdefault((name, topic_id), {"topic": name, "topic_id": topic_id, "partitions": []})
        topic["partitions"].append(row)
    responses = list(topics.values())
    endpoints = broker.newer_leaders(responses, "partitions", "partition_index")
    return {"session_id": session.session_id, "responses": responses, "node_endpoints": endpoints}
