"""A cluster of one fake broker: some topics of two partitions with ten records each, and a record of what it is asked.

For tests that look at requests, or that need a broker to be silent or to refuse. Replies are as small as they can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from protocol.records.encode import encode
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.schema import Api
from tests.fake_broker import FakeBroker

PARTITIONS, END = 2, 10
FIRST_TIMESTAMP_MS = 1_000


def ten_records(compression: str = "none", size: int = 10) -> bytes:
    """Offsets 0 to 9, a millisecond apart, as one record batch."""
    values = pa.array([b"%0*d" % (size, number) for number in range(END)], pa.binary())
    times = pa.array([FIRST_TIMESTAMP_MS + number for number in range(END)], pa.int64())
    columns = pa.RecordBatch.from_pydict({"value": values, "timestamp_ms": times})
    return bytes(encode(columns, compression=compression))


class FakeCluster:
    """`ids`: the topics. `records`: what a Fetch brings. `produce_error`: the code of every answer to a Produce."""

    def __init__(self, *topics: str) -> None:
        self.ids = {name: name.encode().ljust(16, b".") for name in topics or ("orders",)}
        self.records: bytes | None = None
        self.log_start = 0
        self.end = END
        self.produce_error = 0
        self.broker = FakeBroker(
            {
                METADATA: self._metadata,
                LIST_OFFSETS: self._list_offsets,
                FETCH: self._fetch,
                PRODUCE: self._produce,
                FIND_COORDINATOR: self._find_coordinator,
                DESCRIBE_GROUPS: self._describe_groups,
                OFFSET_FETCH: self._offset_fetch,
                OFFSET_COMMIT: self._offset_commit,
                INIT_PRODUCER_ID: lambda body, version: {"error_code": 0, "producer_id": 7, "producer_epoch": 0},
            }
        )

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.close()

    @property
    def address(self) -> str:
        return f"{self.broker.host}:{self.broker.port}"

    def asked(self, api: Api) -> list[dict[str, Any]]:
        """The bodies of all requests of one kind, in their order."""
        return [body for name, _, body in list(self.broker.requests) if name == api.name]

    def silent_to(self, api: Api) -> None:
        self.broker.handlers[api.key] = lambda body, version: None

    def _metadata(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        partition = {"leader_id": 1, "leader_epoch": 5, "replica_nodes": [1], "isr_nodes": [1]}
        rows = [{"partition_index": number, **partition} for number in range(PARTITIONS)]
        wanted = {row["name"] for row in body["topics"]} if body["topics"] is not None else set(self.ids)
        return {
            "brokers": [{"node_id": 1, "host": self.broker.host, "port": self.broker.port}],
            "controller_id": 1,
            "topics": [
                {"name": name, "topic_id": self.ids[name], "partitions": rows}
                for name in sorted(wanted & set(self.ids))
            ],
        }

    def _list_offsets(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        return {
            "topics": [
                {"name": each["name"], "partitions": list(map(self._listed, each["partitions"]))}
                for each in body["topics"]
            ]
        }

    def _listed(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        time_ms = asked["timestamp"]
        since = max(time_ms - FIRST_TIMESTAMP_MS, 0)
        offset = {-2: self.log_start, -1: self.end}.get(time_ms, since if since < self.end else -1)
        return {"partition_index": asked["partition_index"], "error_code": 0, "offset": offset, "leader_epoch": 5}

    def _fetch(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        def row(asked: Mapping[str, Any]) -> dict[str, Any]:
            at_start = asked["fetch_offset"] < self.end
            ends = {"high_watermark": self.end, "last_stable_offset": self.end, "log_start_offset": self.log_start}
            found = (ten_records() if self.records is None else self.records) if at_start else b""
            return {
                "partition_index": asked["partition"],
                "error_code": 0,
                "aborted_transactions": None,
                "records": found,
                **ends,
            }

        return {
            "responses": [
                {**named(topic), "partitions": list(map(row, topic["partitions"]))} for topic in body["topics"]
            ]
        }

    def _produce(self, body: dict[str, Any], version: int) -> dict[str, Any] | None:
        def row(asked: Mapping[str, Any]) -> dict[str, Any]:
            return {"index": asked["index"], "error_code": self.produce_error, "base_offset": 0}

        if body["acks"] == 0:
            return None
        topics = [
            {**named(each), "partition_responses": list(map(row, each["partition_data"]))}
            for each in body["topic_data"]
        ]
        return {"responses": topics}

    def _find_coordinator(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        where = {
            "node_id": 1,
            "host": self.broker.host,
            "port": self.broker.port,
            "error_code": 0,
            "error_message": None,
        }
        return {"coordinators": [{"key": key, **where} for key in body["coordinator_keys"]]}

    def _describe_groups(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        about = {"error_code": 0, "group_state": "Empty", "protocol_type": "", "protocol_data": "", "members": []}
        return {"groups": [{"group_id": group, **about} for group in body["groups"]]}

    def _offset_fetch(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        def row(number: int) -> dict[str, Any]:
            return {"partition_index": number, "committed_offset": -1, "metadata": None, "error_code": 0}

        def topics(group: Mapping[str, Any]) -> list[dict[str, Any]]:
            return [
                {**named(each), "partitions": list(map(row, each["partition_indexes"]))} for each in group["topics"]
            ]

        return {
            "groups": [
                {"group_id": each["group_id"], "topics": topics(each), "error_code": 0} for each in body["groups"]
            ]
        }

    def _offset_commit(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        def row(asked: Mapping[str, Any]) -> dict[str, Any]:
            return {"partition_index": asked["partition_index"], "error_code": 0}

        return {
            "topics": [{**named(each), "partitions": list(map(row, each["partitions"]))} for each in body["topics"]]
        }


def named(topic: Mapping[str, Any]) -> dict[str, Any]:
    """How a request names a topic: by name, by id, or both."""
    return {key: topic[key] for key in ("topic", "name", "topic_id") if key in topic}
