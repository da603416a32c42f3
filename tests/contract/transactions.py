"""A transactional producer that sends raw requests, with transactions before KIP-890 or since."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.wire.messages import m00_produce, m26_end_txn, m28_txn_offset_commit
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from protocol.wire.schema import Api
from tests.contract.members import ask_coordinator
from tests.contract.raw_requests import Row, batch, produce


@dataclass
class TransactionalProducer:
    """A transactional producer; `v2` selects transactions as of KIP-890."""

    client: Client
    v2: bool = True
    transactional_id: str = field(default_factory=lambda: f"txn-{uuid.uuid4().hex[:10]}")
    timeout_ms: int = 60_000
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def ask(self, api: Api, version: int | None = None, **fields: Any) -> Row:
        identity = {"transactional_id": self.transactional_id}
        if api is not INIT_PRODUCER_ID:
            identity = {**identity, "producer_id": self.producer_id, "producer_epoch": self.epoch}  # type: ignore[dict-item]
        options: dict[str, Any] = {} if version is None else {"at_least": version, "at_most": version}
        return self.ask_coordinator(api, {**identity, **fields}, **options)

    def ask_coordinator(self, api: Api, body: Row, **options: Any) -> Row:
        key, deadline = transaction_coordinator(self.transactional_id), self.client.deadline()
        broker = self.client.retrying("coordinator", lambda: self.client.coordinator(key, deadline), deadline)
        reply = self.client.ask(broker, api, body, deadline, **options)
        if reply.get("error_code") == ErrorCode.NOT_COORDINATOR:
            self.client.forget_coordinator(key)
        return reply

    def try_init(self, **fields: Any) -> int:
        row = self.ask(INIT_PRODUCER_ID, **{"transaction_timeout_ms": self.timeout_ms, **fields})
        if row["error_code"] == 0:
            self.producer_id, self.epoch = row["producer_id"], row["producer_epoch"]
            self.sequences.clear()
        return int(row["error_code"])

    def init(self) -> TransactionalProducer:
        self._patiently("InitProducerId", self.try_init)
        return self

    def _patiently(self, label: str, attempt: Any) -> None:
        def once() -> None:
            code = attempt()
            if code:
                raise broker_error(code, label)

        self.client.retrying(label, once, self.client.deadline())

    # -- partitions, records and offsets ------------------------------------------------------

    def try_add(self, topic: str, *partitions: int) -> dict[int, int]:
        """Return the error code of each partition."""
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
        }
        reply = self.ask_coordinator(ADD_PARTITIONS_TO_TXN, body)
        (row,) = reply["results_by_topic_v3_and_below"]
        return {
            partition["partition_index"]: partition["partition_error_code"] for partition in row["results_by_partition"]
        }

    def add(self, topic: str, partition: int = 0) -> None:
        self._patiently("AddPartitionsToTxn", lambda: self.try_add(topic, partition)[partition])

    def try_send(self, topic: str, *values: bytes, partition: int = 0, sequence: int | None = None) -> int:
        """Return the error code."""
        first = self.sequences.get((topic, partition), 0) if sequence is None else sequence
        records = batch(*values, producer=(self.producer_id, self.epoch), sequence=first, transactional=True)
        version = PRODUCE.last if self.v2 else m00_produce.LAST_BEFORE_TRANSACTION_V2
        row = produce(self.client, topic, records, partition, version=version, transactional_id=self.transactional_id)
        if row["error_code"] == 0:
            self.sequences[topic, partition] = first + len(values)
        return int(row["error_code"])

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Send records; without `v2` add the partition first, otherwise the leader adds it."""
        if not self.v2:
            self.add(topic, partition)
        self._patiently("Produce", lambda: self.try_send(topic, *values, partition=partition))

    def add_offsets(self, group: str) -> int:
        return int(self.ask(ADD_OFFSETS_TO_TXN, group_id=group)["error_code"])

    def try_commit_offset(self, group: str, topic: str, offset: int, **fields: Any) -> int:
        rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
        identity = {"transactional_id": self.transactional_id, "group_id": group}
        body = {
            **identity,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "topics": [{"name": topic, "topic_id": self.client.topic(topic).topic_id, "partitions": rows}],
            **fields,
        }
        version = TXN_OFFSET_COMMIT.last if self.v2 else m28_txn_offset_commit.LAST_BEFORE_TRANSACTION_V2
        reply = ask_coordinator(self.client, group, TXN_OFFSET_COMMIT, body, version)
        return int(reply["topics"][0]["partitions"][0]["error_code"])

    def commit_offset(self, group: str, topic: str, offset: int) -> None:
        if not self.v2:
            self._patiently("AddOffsetsToTxn", lambda: self.add_offsets(group))
        self._patiently("TxnOffsetCommit", lambda: self.try_commit_offset(group, topic, offset))

    # -- ending -------------------------------------------------------------------------------

    def try_end(self, *, commit: bool) -> int:
        version = END_TXN.last if self.v2 else m26_end_txn.LAST_BEFORE_TRANSACTION_V2
        row = self.ask(END_TXN, version, committed=commit)
        if row["error_code"] == 0 and self.v2 and row["producer_epoch"] != self.epoch:
            self.producer_id, self.epoch = row["producer_id"], row["producer_epoch"]
            self.sequences.clear()
        return int(row["error_code"])

    def end(self, *, commit: bool) -> None:
        self._patiently("EndTxn", lambda: self.try_end(commit=commit))
