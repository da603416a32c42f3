"""Requests to a leader: Produce, ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from protocol.records.batch_header import TRANSACTIONAL, checksum
from protocol.testing.fake_kafka.broker import Broker
from protocol.testing.fake_kafka.configs import topic_config
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.log import batches_of
from protocol.testing.fake_kafka.quotas import PRODUCED
from protocol.testing.fake_kafka.record_batches import read_batch
from protocol.testing.fake_kafka.replica import Hosted
from protocol.testing.fake_kafka.requests import Body, Pending, Refused, Request
from protocol.wire.messages.m00_produce import LAST_BEFORE_TRANSACTION_V2, PRODUCE
from protocol.wire.messages.m02_list_offsets import FIRST_WITH_TIMESTAMP, LIST_OFFSETS
from protocol.wire.messages.m21_delete_records import DELETE_RECORDS
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH

_WANTED_ACKS = (-1, 0, 1)
_READ_COMMITTED = 1
_WITHOUT_KEY = "Compacted topic cannot accept message without key in topic partition."


def produce(broker: Broker, request: Request) -> Body | Pending:
    """Handle Produce."""
    body = request.body
    written: list[tuple[Hosted, int]] = []

    def append(topic: TopicImage, part: Body) -> Body:
        if body["transactional_id"] is not None:
            broker.cluster.authorizer.require(PRODUCE, "TransactionalId", body["transactional_id"])
        led = broker.led(topic, part["index"])
        base_offset, end_offset, append_time_ms = _append(broker, request, led, bytes(part["records"] or b""))
        written.append((led, end_offset))
        return {
            "base_offset": base_offset,
            "log_start_offset": led.log.start_offset,
            "log_append_time_ms": -1 if append_time_ms is None else append_time_ms,
        }

    shape = {"parts": "partition_data", "key": "index", "answers": "partition_responses"}
    topics = broker.rows(PRODUCE, body["topic_data"], append, **shape, refused={"base_offset": -1})
    reply = {
        "responses": topics,
        "throttle_time_ms": _throttle_ms(broker, request),
        "node_endpoints": broker.newer_leaders(topics, "partition_responses", "index"),
    }
    until_s = broker.cluster.clock.now_s() + body["timeout_ms"] / 1000

    def when_replicated() -> Body | None:
        lost = [led for led, _ in written if not broker.still_leads(led)]
        pending = [led for led, end in written if led.replica.high_watermark < end and broker.still_leads(led)]
        if pending and broker.cluster.clock.now_s() < until_s:
            return None
        _refuse(reply, lost, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        _refuse(reply, pending, ErrorCode.REQUEST_TIMED_OUT)
        return reply

    return when_replicated if body["acks"] == -1 else reply


def _throttle_ms(broker: Broker, request: Request) -> int:
    topics, quotas, now_s = request.body["topic_data"], broker.cluster.quotas, broker.cluster.clock.now_s()
    size_bytes = sum(len(part["records"] or b"") for topic in topics for part in topic["partition_data"])
    throttle_ms = quotas.throttle_ms(PRODUCED, broker.node_id, request, size_bytes, now_s)
    quotas.count(PRODUCED, broker.node_id, request, size_bytes, now_s)
    return throttle_ms


def _append(broker: Broker, request: Request, led: Hosted, records: bytes) -> tuple[int, int, int | None]:
    """Append records; return their first offset, the one that the high watermark must reach, and the append time."""
    acks = request.body["acks"]
    config = topic_config(broker.cluster.settings, led.topic.config)
    if acks not in _WANTED_ACKS:
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
    if acks == -1 and len(led.partition.isr) < int(config["min.insync.replicas"]):
        raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS)
    append_time_ms = broker.cluster.clock.wall_ms() if config["message.timestamp.type"] == "LogAppendTime" else None
    for batch in batches_of(records):
        if "compact" in config["cleanup.policy"] and checksum(batch.data) == batch.crc:
            _require_keys(batch.data)
        state = led.log.producers.get(batch.producer_id)
        is_open = state is not None and state.transaction_from is not None and state.epoch == batch.producer_epoch
        if batch.attributes & TRANSACTIONAL and not is_open:
            # KIP-890: up to version 11 the client adds the partition to the transaction; later the leader does.
            broker.cluster.transactions.require_partition(
                request.body["transactional_id"],
                batch.producer_id,
                batch.producer_epoch,
                (led.topic.name, led.number),
                add=request.version > LAST_BEFORE_TRANSACTION_V2,
            )
    largest = int(config["max.message.bytes"])
    return *led.log.append(records, led.partition.leader_epoch, largest, append_time_ms), append_time_ms


def _require_keys(batch: bytes) -> None:
    if any(record.key is None for record in read_batch(batch).records):
        raise Refused(ErrorCode.INVALID_RECORD, error_message=_WITHOUT_KEY)


def _refuse(reply: Body, partitions: list[Hosted], code: ErrorCode) -> None:
    """Replace the rows of partitions whose records were appended, and not replicated."""
    keys = {(subject, led.number) for led in partitions for subject in (led.topic.name, led.topic.topic_id)}
    for topic in reply["responses"]:
        for row in topic["partition_responses"]:
            if (topic.get("name") or bytes(topic["topic_id"]), row["index"]) in keys:
                row.update(error_code=code, base_offset=-1)


def list_offsets(broker: Broker, request: Request) -> Body:
    """Handle ListOffsets."""

    def offset(topic: TopicImage, part: Body) -> Body:
        timestamp_ms = part["timestamp"]
        if timestamp_ms < EARLIEST and request.version < FIRST_WITH_TIMESTAMP.get(timestamp_ms, LIST_OFFSETS.last + 1):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        led = broker.led(topic, part["partition_index"], part["current_leader_epoch"])
        return _offset_at(led, timestamp_ms, request.body["isolation_level"] == _READ_COMMITTED)

    return {"topics": broker.rows(LIST_OFFSETS, request.body["topics"], offset)}


def _offset_at(led: Hosted, timestamp_ms: int, committed: bool) -> Body:
    end_offset = led.replica.last_stable_offset if committed else led.replica.high_watermark
    if timestamp_ms == LATEST:
        return {"offset": end_offset, "leader_epoch": led.partition.leader_epoch}
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return {"offset": led.log.start_offset, "leader_epoch": led.log.epoch_at(led.log.start_offset)}
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return {}
    if timestamp_ms == MAX_TIMESTAMP:
        offset = led.log.offset_of_max_timestamp(end_offset)
    else:
        offset = led.log.offset_at(timestamp_ms, end_offset)
    return dict(zip(("offset", "timestamp", "leader_epoch"), offset, strict=True)) if offset else {}


def offset_for_leader_epoch(broker: Broker, request: Request) -> Body:
    """Handle OffsetForLeaderEpoch."""

    def end(topic: TopicImage, part: Body) -> Body:
        led = broker.led(topic, part["partition"], part["current_leader_epoch"])
        epoch, end_offset = led.log.end_of_epoch(part["leader_epoch"])
        return {"leader_epoch": epoch, "end_offset": end_offset}

    return {"topics": broker.rows(OFFSET_FOR_LEADER_EPOCH, request.body["topics"], end, key="partition")}


def delete_records(broker: Broker, request: Request) -> Body:
    """Handle DeleteRecords."""

    def delete(topic: TopicImage, part: Body) -> Body:
        led = broker.led(topic, part["partition_index"])
        offset = led.replica.high_watermark if part["offset"] == -1 else part["offset"]
        if not 0 <= offset <= led.replica.high_watermark:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        led.log.delete_before(offset)
        return {"low_watermark": led.log.start_offset}

    topics = broker.rows(DELETE_RECORDS, request.body["topics"], delete, refused={"low_watermark": -1})
    return {"topics": topics}
