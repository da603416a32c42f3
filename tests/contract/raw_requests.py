"""Raw requests of the contract tests: to a partition's leader, a coordinator or any broker; and rows of the replies."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from protocol.base.clock import SYSTEM_CLOCK
from protocol.cluster.client import Client
from protocol.records.encode import finalize_header
from protocol.testing.fake_kafka.record_batches import read_batch
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from protocol.wire.schema import Api
from tests.support.encoded import encode

Row = dict[str, Any]

NOW_MS = SYSTEM_CLOCK.wall_ms()


def ask(client: Client, api: Api, body: Row, version: int | None = None) -> Row:
    """Send a request to any broker."""
    options = {} if version is None else {"at_least": version, "at_most": version}
    return client.ask_any(api, body, client.deadline(), **options)


def ask_leader(client: Client, api: Api, body: Row, topic: str, partition: int = 0, version: int | None = None) -> Row:
    options = {} if version is None else {"at_least": version, "at_most": version}
    broker, _ = client.leader(topic, partition)
    return client.ask(broker, api, body, client.deadline(), purpose=api.name, **options)


def batch(
    *values: bytes, producer: tuple[int, int] = (-1, -1), sequence: int = -1, transactional: bool = False
) -> bytes:
    """Return a record batch as a producer sends it; `producer` is its id and epoch."""
    # The broker may delete old records at any time.
    encoded = encode(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}), default_timestamp_ms=NOW_MS)
    finalize_header(
        encoded,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=transactional,
    )
    return bytes(encoded)


def produce(
    client: Client, topic: str, records: bytes, partition: int = 0, *, version: int | None = None, **fields: Any
) -> Row:
    """Return the partition's row of the reply."""
    rows = [{"index": partition, "records": records}]
    named = {"topic_id": client.topic(topic).topic_id} if version in (None, 13) else {"name": topic}
    body = {"acks": -1, "timeout_ms": 5_000, "topic_data": [{**named, "partition_data": rows}], **fields}
    reply = ask_leader(client, PRODUCE, body, topic, partition, version)
    row: Row = reply["responses"][0]["partition_responses"][0]
    return row


def written(client: Client, topic: str, *values: bytes, partition: int = 0) -> int:
    """Write records; return the offset of the first."""
    row = produce(client, topic, batch(*values), partition)
    assert row["error_code"] == 0
    return int(row["base_offset"])


def fetch_body(client: Client, topic: str, offsets: dict[int, int], **fields: Any) -> Row:
    """Return the body of a Fetch that does not wait; `fields` may include fields of partitions."""
    of_partition = {"partition_max_bytes": 1 << 20, "current_leader_epoch": -1, "last_fetched_epoch": -1}
    chosen = {name: fields.pop(name, default) for name, default in of_partition.items()}
    rows = [{"partition": number, "fetch_offset": offset, **chosen} for number, offset in offsets.items()]
    topics = [{"topic_id": client.topic(topic).topic_id, "partitions": rows}] if rows else []
    return {"max_wait_ms": 0, "min_bytes": 1, "topics": topics, "session_epoch": -1, **fields}


def fetch_all(client: Client, topic: str, offsets: dict[int, int], **fields: Any) -> dict[int, Row]:
    """Return the rows of a Fetch by partition, in the order of the reply."""
    reply = ask_leader(client, FETCH, fetch_body(client, topic, offsets, **fields), topic)
    assert reply["error_code"] == 0
    return {row["partition_index"]: row for topic in reply["responses"] for row in topic["partitions"]}


def fetch(client: Client, topic: str, offset: int = 0, **fields: Any) -> Row:
    """Return the row of partition 0."""
    return fetch_all(client, topic, {0: offset}, **fields)[0]


def values_in(row: Row) -> list[bytes | None]:
    """Return the values in a row of a Fetch reply, without control records and a partial batch at the end."""
    data, result = bytes(row["records"]), []
    while len(data) > 12 and len(data) >= 12 + int.from_bytes(data[8:12], "big"):
        size = 12 + int.from_bytes(data[8:12], "big")
        if not data[22] & 32:
            result += [record.value for record in read_batch(data[:size]).records]
        data = data[size:]
    return result


def list_offset(
    client: Client, topic: str, timestamp: int, *, committed: bool = False, version: int | None = None, **fields: Any
) -> Row:
    """Return the row of partition 0."""
    rows = [{"partition_index": 0, "timestamp": timestamp, **fields}]
    body = {"isolation_level": int(committed), "topics": [{"name": topic, "partitions": rows}]}
    row: Row = ask_leader(client, LIST_OFFSETS, body, topic, version=version)["topics"][0]["partitions"][0]
    return row


def end_of_epoch(client: Client, topic: str, epoch: int) -> tuple[int, int]:
    """Return (the latest epoch up to `epoch` in the log of partition 0, its end offset)."""
    rows = [{"partition": 0, "leader_epoch": epoch}]
    body = {"topics": [{"topic": topic, "partitions": rows}]}
    row = ask_leader(client, OFFSET_FOR_LEADER_EPOCH, body, topic)["topics"][0]["partitions"][0]
    assert row["error_code"] == 0
    return row["leader_epoch"], row["end_offset"]
