"""A partition's log as its leader shows it: Produce, Fetch, ListOffsets, DeleteRecords."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.admin.topics import delete_records
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_consumer, parse_producer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset, Range
from protocol.kafka_terms import EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from protocol.producer.producer import Producer
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from tests.contract.raw_requests import (
    NOW_MS,
    ask_leader,
    batch,
    end_of_epoch,
    fetch,
    fetch_all,
    fetch_body,
    list_offset,
    produce,
    values_in,
    written,
)
from tests.support.encoded import encode


class TestRecords:
    def test_records_written_by_our_producer_are_read_by_our_consumer(self, client: Client, new_topic: Any) -> None:
        name, values = new_topic(3), [b"%04d" % number for number in range(1_000)]
        with Producer(client, parse_producer({"batch.size": 1_000})) as producer:
            rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
            producer.send_columns(name, rows, np.arange(1_000, dtype=np.int32) % 3)
        ranges = [Range(name, number, 0, len(range(number, 1_000, 3))) for number in range(3)]
        values_by_key: dict[int, list[bytes]] = {number: [] for number in range(3)}
        for expected, rows in BoundedReader(client, parse_consumer({}), ranges):
            values_by_key[expected.partition] += rows["value"].to_pylist()
        assert values_by_key == {number: values[number::3] for number in range(3)}

    def test_offsets_are_consecutive_across_batches(self, client: Client, name: str) -> None:
        assert [written(client, name, b"a", b"b"), written(client, name, b"c")] == [0, 2]
        row = fetch(client, name, 1)
        assert values_in(row) == [b"a", b"b", b"c"], "the fetch returns the whole batch that contains the offset"
        ends = ("error_code", "high_watermark", "last_stable_offset", "log_start_offset", "aborted_transactions")
        assert [row[end] for end in ends] == [0, 3, 3, 0, None]
        assert int.from_bytes(bytes(row["records"])[12:16], "big") == 0, "the leader epoch of the write"
        assert fetch(client, name, 2)["records"] == bytes(row["records"])[-len(batch(b"c")) :]

    def test_invalid_batches_are_refused(self, client: Client, new_topic: Any) -> None:
        name = new_topic(config={"max.message.bytes": "1000"})
        complete = batch(b"a")
        refused = {
            "too large": (batch(b"." * 2_000), ErrorCode.MESSAGE_TOO_LARGE),
            "corrupted": (complete[:-1] + b"\1", ErrorCode.CORRUPT_MESSAGE),
            "two in one": (complete * 2, ErrorCode.INVALID_RECORD),
        }
        answers = {measure: produce(client, name, records) for measure, (records, _) in refused.items()}
        assert {measure: (row["error_code"], row["base_offset"]) for measure, row in answers.items()} == {
            measure: (code, -1) for measure, (_, code) in refused.items()
        }
        assert written(client, name, b"a") == 0

    def test_invalid_acks_are_refused_and_acks_0_gets_no_reply(self, client: Client, name: str) -> None:
        assert produce(client, name, batch(b"a"), acks=2)["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS
        assert produce(client, name, batch(b"a"), acks=1)["base_offset"] == 0
        rows = [{"index": 0, "records": batch(b"b")}]
        topics = [{"topic_id": client.topic(name).topic_id, "partition_data": rows}]
        leader, _ = client.leader(name, 0)
        body = {"acks": 0, "timeout_ms": 1_000, "topic_data": topics}
        client.send(leader, PRODUCE, body, client.deadline(), purpose=PRODUCE.name, replies=False)
        # If the earlier request had a reply, the next reply on the connection would not be this one.
        assert produce(client, name, batch(b"c"))["base_offset"] == 2


class TestFetch:
    def test_fetch_outside_the_log_is_out_of_range(self, client: Client, name: str) -> None:
        written(client, name, b"a", b"b", b"c")
        delete_records(client, {(name, 0): 2})
        for offset in (1, 4):
            row = fetch(client, name, offset)
            assert (row["error_code"], row["high_watermark"]) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
            assert not row["records"]
        row = fetch(client, name, 2)
        assert (row["error_code"], row["log_start_offset"], row["high_watermark"]) == (0, 2, 3)
        assert values_in(row) == [b"a", b"b", b"c"], "the first batch stays whole"

    def test_fetch_at_the_log_end_waits_max_wait_ms(self, client: Client, name: str) -> None:
        began_s = time.monotonic()
        assert not fetch(client, name, 0, max_wait_ms=300)["records"]
        assert 0.3 <= time.monotonic() - began_s < 15

    def test_fetch_waits_for_min_bytes(self, client: Client, name: str) -> None:
        written(client, name, b"a")
        large = len(batch(b"a")) + 1
        writing = threading.Timer(0.3, lambda: written(client, name, b"b"))
        began_s = time.monotonic()
        writing.start()
        assert values_in(fetch(client, name, 0, max_wait_ms=20_000, min_bytes=large)) == [b"a", b"b"]
        assert 0.25 <= time.monotonic() - began_s < 15
        writing.join()

    def test_fetch_with_an_error_replies_without_waiting(self, client: Client, new_topic: Any) -> None:
        began_s = time.monotonic()
        assert fetch(client, new_topic(), 7, max_wait_ms=20_000)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert time.monotonic() - began_s < 15

    def test_first_batch_exceeds_max_bytes_and_others_are_cut(self, client: Client, new_topic: Any) -> None:
        name = new_topic(2)
        for partition in range(2):
            for _ in range(3):
                written(client, name, b"." * 500, partition=partition)
        size = len(batch(b"." * 500))
        sizes = {n: len(row["records"]) for n, row in fetch_all(client, name, {0: 0, 1: 0}, max_bytes=10).items()}
        assert sizes == {0: size, 1: 0}
        limited = fetch_all(client, name, {0: 0, 1: 0}, partition_max_bytes=size + 100)
        assert {n: len(row["records"]) for n, row in limited.items()} == {0: size + 100, 1: size + 100}, (
            "the second batch is cut off"
        )
        assert [len(values_in(row)) for row in limited.values()] == [1, 1]
        small = fetch_all(client, name, {0: 0, 1: 0}, partition_max_bytes=10)
        assert {n: len(row["records"]) for n, row in small.items()} == {0: size, 1: 0}

    def test_fetch_names_topics_up_to_version_12(self, client: Client, name: str) -> None:
        written(client, name, b"a")
        body = fetch_body(client, name, {0: 0})
        body["topics"][0].pop("topic_id")
        for topic, partition, expected in ((name, 0, (0, [b"a"])), ("not-there", 0, (3, [])), (name, 3, (3, []))):
            body["topics"][0].update(topic=topic)
            body["topics"][0]["partitions"][0].update(partition=partition)
            reply = ask_leader(client, FETCH, body, name, version=12)
            assert reply["responses"][0]["topic"] == topic
            (row,) = reply["responses"][0]["partitions"]
            assert (row["error_code"], values_in(row)) == expected


class TestFetchSessions:
    def test_session_reply_has_only_changed_partitions(self, client: Client, new_topic: Any) -> None:
        name = new_topic(3)
        written(client, name, b"a", partition=1)

        def ask(offsets: dict[int, int], **fields: Any) -> tuple[int, dict[int, list[bytes | None]]]:
            reply = ask_leader(client, FETCH, fetch_body(client, name, offsets, **fields), name)
            assert reply["error_code"] == 0
            rows = [row for topic in reply["responses"] for row in topic["partitions"]]
            return reply["session_id"], {row["partition_index"]: values_in(row) for row in rows}

        session, rows = ask({0: 0, 1: 0, 2: 0}, session_epoch=0)
        assert session > 0
        assert rows == {0: [], 1: [b"a"], 2: []}
        assert ask({1: 1}, session_id=session, session_epoch=1) == (session, {}), "the session has sent everything"
        written(client, name, b"b", partition=2)
        assert ask({}, session_id=session, session_epoch=2) == (session, {2: [b"b"]})
        topic_id = client.topic(name).topic_id
        forgotten = [{"topic_id": topic_id, "partitions": [2]}]
        written(client, name, b"c", partition=2)
        again = ask({}, session_id=session, session_epoch=3, forgotten_topics_data=forgotten)
        assert again == (session, {}), "forgotten partitions are not fetched"

    def test_unknown_session_or_wrong_epoch_is_refused(self, client: Client, name: str) -> None:

        def code(**fields: Any) -> int:
            reply = ask_leader(client, FETCH, fetch_body(client, name, {0: 0}, **fields), name)
            if reply["session_id"]:
                sessions.append(reply["session_id"])
            return int(reply["error_code"])

        sessions: list[int] = []
        assert code(session_id=77, session_epoch=1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert code(session_epoch=0) == 0
        (session,) = sessions
        assert code(session_id=session, session_epoch=2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert code(session_id=session, session_epoch=1) == 0
        assert code(session_id=session, session_epoch=-1) == 0, "the last request closes the session"
        assert code(session_id=session, session_epoch=2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class TestListOffsets:
    def test_offsets_are_found_by_timestamp(self, client: Client, name: str) -> None:
        times = pa.array([NOW_MS + seconds * 1_000 for seconds in (1, 3, 2, 4)], pa.int64())
        rows = pa.RecordBatch.from_pydict({"value": pa.array([b"."] * 4, pa.binary()), "timestamp_ms": times})
        for half in (rows.slice(0, 2), rows.slice(2)):
            produce(client, name, bytes(encode(half)))
        delete_records(client, {(name, 0): 1})
        for requested, offset, at_ms in (
            (EARLIEST, 1, -1),
            (LATEST, 4, -1),
            (0, 1, NOW_MS + 3_000),
            (NOW_MS + 2_500, 1, NOW_MS + 3_000),
            (NOW_MS + 3_000, 1, NOW_MS + 3_000),
            (NOW_MS + 3_001, 3, NOW_MS + 4_000),
            (NOW_MS + 4_000, 3, NOW_MS + 4_000),
        ):
            row = list_offset(client, name, requested)
            assert (row["offset"], row["timestamp"], row["leader_epoch"]) == (offset, at_ms, 0), requested
        row = list_offset(client, name, NOW_MS + 4_001)
        assert (row["offset"], row["timestamp"], row["leader_epoch"]) == (-1, -1, -1)

    def test_topic_without_tiered_storage_has_no_offset_in_it(self, client: Client, name: str) -> None:
        written(client, name, b"a", b"b")
        offsets = {EARLIEST_LOCAL: (0, 0), LATEST_TIERED: (-1, -1), EARLIEST_PENDING_UPLOAD: (-1, -1)}
        for timestamp, (offset, leader_epoch) in offsets.items():
            listed = list_offsets(client, {(name, 0): timestamp})
            assert listed == {(name, 0): ListedOffset(offset, leader_epoch, timestamp_ms=-1)}, timestamp

    @pytest.mark.parametrize(
        ("timestamp", "version"),
        [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)],
    )
    def test_negative_timestamp_is_refused_before_its_version(
        self, client: Client, name: str, timestamp: int, version: int
    ) -> None:
        codes = [list_offset(client, name, timestamp, version=asked)["error_code"] for asked in (version - 1, version)]
        assert codes == [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NONE]

    def test_undefined_timestamp_is_refused(self, client: Client, new_topic: Any) -> None:
        assert list_offset(client, new_topic(), -7)["error_code"] == ErrorCode.UNSUPPORTED_VERSION

    def test_fetch_of_deleted_records_is_out_of_range(self, client: Client, name: str) -> None:
        written(client, name, b"a", b"b")
        assert delete_records(client, {(name, 0): -1}) == {(name, 0): 2}
        assert [list_offset(client, name, timestamp)["offset"] for timestamp in (EARLIEST, LATEST)] == [2, 2]
        assert written(client, name, b"c") == 2


class TestEpochs:
    """The epochs of a partition's first leader; `test_leaders` covers later leaders."""

    def test_future_leader_epoch_is_refused(self, client: Client, name: str) -> None:
        requested: dict[str, Any] = {"current_leader_epoch": 5}
        assert fetch(client, name, 0, **requested)["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert list_offset(client, name, LATEST, **requested)["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH

    @pytest.mark.parametrize(("epoch", "end"), [(0, (0, 2)), (3, (-1, -1)), (-1, (-1, -1))])
    def test_end_offset_of_an_epoch_is_the_log_end(
        self, client: Client, name: str, epoch: int, end: tuple[int, int]
    ) -> None:
        written(client, name, b"a", b"b")
        assert end_of_epoch(client, name, epoch) == end

    def test_fetch_beyond_the_log_end_reports_the_divergence(self, client: Client, name: str) -> None:
        written(client, name, b"a", b"b")
        row = fetch(client, name, 7, last_fetched_epoch=0)
        assert (row["error_code"], row["diverging_epoch"]) == (0, {"epoch": 0, "end_offset": 2})
        assert not row["records"]
        assert fetch(client, name, 1, last_fetched_epoch=3)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert values_in(fetch(client, name, 0, last_fetched_epoch=0)) == [b"a", b"b"]
