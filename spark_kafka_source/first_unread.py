"""The time of the first record at or after an offset, for many partitions: what a lag in seconds is made of.

A sample, not a reading: one Fetch per partition, one request at a time to each broker, no retries. A partition that
does not answer in time, or whose record batch has no record there, is left out. Runs wherever its caller does (for
Spark: the driver). Used by `lag`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.client import FETCH as FETCH_PURPOSE
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import KafkaError
from protocol.net.connection import Reply
from protocol.records.decode import decode
from protocol.records.scan import scan
from protocol.wire.messages.m01_fetch import FETCH, LAST_WITH_TOPIC_NAMES
from spark_kafka_source.offsets import TopicPartition, name

log = logging.getLogger(__name__)

# A broker sends one whole record batch however little is asked for (KIP-74, Fetch version 3).
_FETCH_BYTES = 1
_FIRST_WITH_MAX_BYTES = 4
_LARGEST_OFFSET = 2**62


def first_unread_ms(
    client: Client, config: ConsumerConfig, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Timestamps (milliseconds since 1970) of the first records at or after `offsets`, in the order given.

    Raises nothing of what a broker may answer: whatever could not be learnt before the deadline is left out.
    """
    waiting: dict[Broker, deque[TopicPartition]] = {}
    for key in offsets:
        try:
            broker, _ = client.leader(*key, deadline)
        except KafkaError as error:
            log.debug("%s: no leader to ask for its first unread record: %s", name(key), error)
        else:
            waiting.setdefault(broker, deque()).append(key)
    found: dict[TopicPartition, int] = {}
    while waiting and not deadline.passed:
        asked = {broker: keys.popleft() for broker, keys in waiting.items()}
        replies: dict[TopicPartition, Reply] = {}
        for broker, key in asked.items():
            try:
                replies[key] = _send(client, broker, config, key, offsets[key], deadline)
            except KafkaError as error:
                log.debug("%s: not asked for its first unread record: %s", name(key), error)
        for key, reply in replies.items():
            try:
                body = reply.result(deadline.at_most_ms(client.config.request_timeout_ms))
                timestamp_ms = _first_timestamp_ms(body, config, offsets[key], name(key))
            except KafkaError as error:
                log.debug("%s: its first unread record could not be read: %s", name(key), error)
            else:
                if timestamp_ms is not None:
                    found[key] = timestamp_ms
        waiting = {broker: keys for broker, keys in waiting.items() if keys}
    return found


def _send(
    client: Client, broker: Broker, config: ConsumerConfig, key: TopicPartition, offset: int, deadline: Deadline
) -> Reply:
    topic, partition = key
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": _FETCH_BYTES}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": _FETCH_BYTES,
        "isolation_level": int(config.isolation_level == "read_committed"),
        "topics": [{"topic": topic, "partitions": [row]}],
    }
    return client.send(
        broker,
        FETCH,
        body,
        deadline,
        purpose=FETCH_PURPOSE,
        at_least=_FIRST_WITH_MAX_BYTES,
        at_most=LAST_WITH_TOPIC_NAMES,
    )


def _first_timestamp_ms(body: Mapping[str, Any], config: ConsumerConfig, offset: int, where: str) -> int | None:
    rows = [row for topic in body["responses"] for row in topic["partitions"]]
    if not rows or rows[0]["error_code"] != ErrorCode.NONE or not rows[0]["records"]:
        return None
    batches = decode(
        scan(rows[0]["records"], where),
        first_offset=offset,
        end_offset=_LARGEST_OFFSET,
        aborted_transactions=rows[0]["aborted_transactions"] if config.isolation_level == "read_committed" else None,
        columns=("timestamp_ms",),
        max_decompressed_bytes=config.max_decompressed_batch_bytes,
        check_crc=config.check_crcs,
        where=where,
    )
    for batch in batches:
        timestamp_ms: int = batch.column(0)[0].as_py()
        # Messages of magic 0 have no time, and say -1.
        return timestamp_ms if timestamp_ms >= 0 else None
    return None
