"""`protocol.read` and `protocol.write`: bounded reads into Arrow, Polars, DuckDB and pandas, and writes from them."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import protocol
from protocol.base.progress import Progress, ProgressReporter
from protocol.errors import ConfigurationError, DataLoss, KafkaError, NoOffset, UsageError
from protocol.fetch import log_offsets
from protocol.tables import READ_SCHEMA
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.record_batches import TRANSACTIONAL, Batch, Record, write_batch
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import client_of, produce, records
from tests.support.process_connections import connections_to
from tests.support.small_cluster import END, FIRST_TIMESTAMP_MS, PARTITIONS, SmallCluster
from tests.support.stale_coordinator import keep_deleted_topic
from tests.support.wait_until import wait_until


@pytest.fixture
def fake() -> Iterator[SmallCluster]:
    with SmallCluster() as fake:
        yield fake


def properties(fake: Any, **further: object) -> dict[str, object]:
    return {"bootstrap.servers": fake.bootstrap_servers, **{name.replace("_", "."): v for name, v in further.items()}}


def offsets(reader: pa.RecordBatchReader) -> dict[int, list[int]]:
    """Return the offsets by partition."""
    values_by_key: dict[int, list[int]] = {}
    for row in reader.read_all().select(["partition", "offset"]).to_pylist():
        values_by_key.setdefault(row["partition"], []).append(row["offset"])
    return values_by_key


def test_read_returns_all_records_with_topic_and_partition() -> None:
    with SmallCluster("orders", "returns") as fake:
        fake.grow(5)
        table = protocol.read(properties(fake), ["orders", "returns"]).read_all()
    assert table.schema == READ_SCHEMA
    rows = {(row["topic"], row["partition"], row["offset"]) for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 2 * PARTITIONS * (END + 5)


def test_read_returns_chosen_columns_in_the_order_of_the_schema(fake: SmallCluster) -> None:
    table = protocol.read(properties(fake), "orders", columns=["offset", "partition"]).read_all()
    assert protocol.read(properties(fake), "orders", columns="value").schema.names == ["value"]
    assert table.column_names == ["partition", "offset"]
    assert table.num_rows == PARTITIONS * END


def test_read_and_write_report_progress_up_to_the_end(fake: SmallCluster, capsys: pytest.CaptureFixture[str]) -> None:
    progresses: list[Progress] = []
    rows = protocol.read(properties(fake), "orders", columns=["value"], progress=progresses.append).read_all()
    total = PARTITIONS * END
    assert (progresses[0].total, progresses[-1].done, progresses[-1].unit) == (total, total, "offsets")
    assert [progress.done for progress in progresses] == sorted(progress.done for progress in progresses)
    progresses.clear()
    protocol.write(properties(fake), "orders", rows, progress=progresses.append)
    assert (progresses[-1].done, progresses[-1].total, progresses[-1].unit) == (total, total, "rows")
    progresses.clear()
    protocol.write(properties(fake), "orders", rows.to_reader(), progress=True)
    assert re.fullmatch(r"(orders: \d+ rows, [\d,]+/s\n)+", capsys.readouterr().err)


def test_progress_counts_records_that_the_filter_leaves_out(fake: SmallCluster) -> None:
    progresses: list[Progress] = []
    condition = "partition = 0 AND string(value) = 'none'"
    rows = protocol.read(properties(fake), "orders", filter=condition, progress=progresses.append).read_all()
    assert rows.num_rows == 0
    assert {(progress.done, progress.total) for progress in progresses[:-1]} == {(END, END)}


def test_progress_is_reported_four_times_a_second_with_rate_and_time_left() -> None:
    progresses: list[Progress] = []
    clock = ManualClock()
    reporter = ProgressReporter(progresses.append, "orders", 1_000, "offsets", clock)
    for _ in range(5):
        clock.advance(0.1)
        reporter.add(100)
    assert [str(progress) for progress in progresses] == [
        "orders: 100 of 1,000 offsets (10 %), 1,000/s, 1 s left",
        "orders: 400 of 1,000 offsets (40 %), 1,000/s, 1 s left",
    ]
    reporter.end()
    assert str(progresses[-1]) == "orders: 1,000 of 1,000 offsets (100 %), 2,000/s"


def test_read_of_growing_topic_ends_at_end_offset_of_the_call(fake: SmallCluster) -> None:
    fake.before[FETCH] = lambda body: fake.grow(1)
    assert protocol.read(properties(fake), "orders").read_all().num_rows == PARTITIONS * END


def test_read_of_empty_topic_returns_schema_without_rows(fake: SmallCluster) -> None:
    fake.create_topic("empty", 2)
    table = protocol.read(properties(fake, isolation_level="read_committed"), "empty").read_all()
    assert (table.num_rows, table.schema) == (0, READ_SCHEMA)


def test_read_from_offsets_to_timestamp_reads_only_the_named_partition(fake: SmallCluster) -> None:
    end = datetime.fromtimestamp(FIRST_TIMESTAMP_MS / 1000, timezone.utc) + timedelta(milliseconds=7)
    assert offsets(protocol.read(properties(fake), "orders", {("orders", 1): 4}, end)) == {1: [4, 5, 6]}
    assert offsets(protocol.read(properties(fake), "orders", end, {("orders", 0): 9})) == {0: [7, 8]}


@pytest.mark.parametrize("at", ["0001-01-01", "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000900"])
def test_read_from_timestamp_in_or_before_the_millisecond_of_the_first_record_returns_all(at: str) -> None:
    start = datetime.fromisoformat(at).replace(tzinfo=timezone.utc)
    with FakeKafka() as kafka:
        kafka.create_topic("t")
        protocol.write(properties(kafka), "t", pa.table({"value": ["a", "b"], "timestamp_ms": [0, 5]}))
        assert offsets(protocol.read(properties(kafka), "t", start)) == {0: [0, 1]}


def test_read_from_timestamp_after_last_record_returns_nothing(fake: SmallCluster) -> None:
    assert protocol.read(properties(fake), "orders", datetime.now(timezone.utc)).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("erliest", "latest", "'erliest' is not a position"),
        (datetime(2026, 1, 31), "latest", "has no time zone"),
        ({("orders", 7): 0}, "latest", "orders-7 does not exist"),
        ({("orders", 0): -1}, "latest", "start: orders-0: offset is -1; it must be from 0"),
        ("earliest", {("orders", 0): END + 1}, "above its log end offset, 10"),
        ("committed", "latest", "needs group.id"),
    ],
)
def test_read_refuses_invalid_position(fake: SmallCluster, start: Any, end: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        protocol.read(properties(fake), "orders", start, end)


# -- offsets outside of the log -----------------------------------------------------------------------


def committed(fake: FakeKafka, offset: int, epoch: int = 0) -> dict[str, object]:
    """Commit an offset of both partitions, and return the properties of the group."""
    fake.offsets.committed["g"] = {("orders", number): Committed(offset, epoch, "") for number in range(PARTITIONS)}
    return properties(fake, group_id="g")


def test_read_does_not_start_at_the_offset_of_a_deleted_topic(
    fake: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_deleted_topic(monkeypatch, fake, "g", {("orders", number): 7 for number in range(PARTITIONS)})
    from_earliest = {**properties(fake, group_id="g"), "auto.offset.reset": "earliest"}
    assert protocol.read(from_earliest, "orders", "committed").read_all().num_rows == PARTITIONS * END


def truncate(fake: FakeKafka, end: int) -> None:
    """Truncate the logs at offset 5, and let them grow again to `end` in leader epoch 1."""
    for number in range(PARTITIONS):
        with fake.changed:
            fake.rewrite("orders", number, records(0, 5))
            fake.set_leader_epoch("orders", number, 1)
            if end > 5:
                fake.write("orders", number, records(5, end - 5, epoch=1))


@pytest.mark.parametrize(
    ("end", "epoch", "holds", "nearest"),
    [(5, 0, "[0, 5)", 5), (7, -1, "[0, 7)", 7), (20, 0, "[0, 5) of the records that existed when", 5)],
    ids=["shorter", "shorter, epoch unknown", "longer"],
)
@pytest.mark.parametrize("position", ["start", "end"])
def test_read_of_committed_offset_in_truncated_log_raises(
    fake: SmallCluster, position: str, end: int, epoch: int, holds: str, nearest: int
) -> None:
    properties = committed(fake, END, epoch)
    truncate(fake, end)
    with pytest.raises(DataLoss) as raised:
        protocol.read(properties, "orders", **{position: "committed"})
    text = str(raised.value)
    assert f"{position}='committed': group g: its offset 10 of orders-0 is out of range: the log holds {holds}" in text
    assert "The same applies to orders-1. Nothing is read." in text
    symbol = {"start": "earliest", "end": "latest"}[position]
    assert f"Use {position}='{symbol}', a datetime, or offsets by (topic, partition), such as {{('orders', 0): " in text
    assert f"{nearest}}} for the nearest offset" in text
    assert (raised.value.context["topic"], raised.value.context["partition"]) == ("orders", 0)


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_read_of_deleted_committed_offset_raises_whatever_the_reset(fake: SmallCluster, reset: str) -> None:
    properties = committed(fake, 3) | {"auto.offset.reset": reset}
    for number in range(PARTITIONS):
        fake.shrink_log("orders", number, END)
    with pytest.raises(DataLoss, match=r"its offset 3 of orders-0 is out of range: the log holds \[10, 10\)"):
        protocol.read(properties, "orders", "committed")
    assert protocol.read(properties, "orders", "earliest", "committed").read_all().num_rows == 0


def test_read_of_committed_offset_that_is_in_the_log_returns_the_rest(
    fake: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of its epoch, and in an epoch of an earlier topic of this name."""
    monkeypatch.setattr(log_offsets, "STALE_LEADER_MS", 300)
    truncate(fake, 9)
    assert offsets(protocol.read(committed(fake, 5, 0), "orders", "committed")) == {
        number: [5, 6, 7, 8] for number in range(PARTITIONS)
    }
    assert protocol.read(committed(fake, 8, 1), "orders", "committed").read_all().num_rows == PARTITIONS
    assert protocol.read(committed(fake, 9, 1), "orders", "committed").read_all().num_rows == 0
    assert protocol.read(committed(fake, 8, 7), "orders", "committed").read_all().num_rows == PARTITIONS


def test_read_of_log_truncated_before_its_ends_are_listed_raises(fake: SmallCluster) -> None:
    properties = committed(fake, END)

    def truncate_with_next_list(body: Any) -> None:
        fake.before[LIST_OFFSETS] = lambda body: (fake.before.clear(), truncate(fake, 7))

    fake.before[OFFSET_FOR_LEADER_EPOCH] = truncate_with_next_list
    with pytest.raises(DataLoss, match=r"start: offset 10 of orders-0 is out of range: the log holds \[0, 7\)"):
        protocol.read(properties, "orders", "committed")


def test_read_of_log_truncated_before_its_records_are_fetched_raises(fake: SmallCluster) -> None:
    properties = committed(fake, END)
    fake.grow(1)
    fake.before[FETCH] = lambda body: (fake.before.clear(), truncate(fake, 20))
    with pytest.raises(DataLoss, match=r"the log was truncated below offset 1\d"):
        protocol.read(properties, "orders", "committed").read_all()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_read_from_offset_above_the_log_raises(fake: SmallCluster, isolation: str) -> None:
    given = properties(fake, isolation_level=isolation)
    message = r"start: offset 11 of orders-1 is out of range: the log holds \[0, 10\).*such as {\('orders', 1\): 10}"
    with pytest.raises(DataLoss, match=message):
        protocol.read(given, "orders", {("orders", 0): 0, ("orders", 1): END + 1})
    assert protocol.read(given, "orders", {("orders", 1): END}).read_all().num_rows == 0
    for number in range(PARTITIONS):
        fake.shrink_log("orders", number, 4)
    with pytest.raises(DataLoss, match="not in the log any more"):
        protocol.read(given, "orders", {("orders", 1): 3}).read_all()


def test_offset_in_open_transaction_is_a_start_but_no_end(fake: SmallCluster) -> None:
    """It is above the last stable offset, but in the log."""
    opened = {"flags": TRANSACTIONAL, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    fake.write("orders", 0, write_batch(Batch([Record()], END, last_offset_delta=3, **opened)))
    committed_only = properties(fake, isolation_level="read_committed")
    assert protocol.read(committed_only, "orders", {("orders", 0): END + 2}).read_all().num_rows == 0
    with pytest.raises(UsageError, match=r"end: offset 11 of orders-0 is above its last stable offset, 10"):
        protocol.read(committed_only, "orders", end={("orders", 0): END + 1})


def test_read_refuses_unknown_column_and_missing_bootstrap_servers() -> None:
    with pytest.raises(UsageError, match="colour is not a column"):
        protocol.read({}, "orders", columns=["colour"])
    with pytest.raises(UsageError, match="columns is empty"):
        protocol.read({}, "orders", columns=[])
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        protocol.read({}, "orders")


def test_dropped_reader_closes_its_connections(fake: SmallCluster) -> None:
    connections = connections_to(fake.bootstrap_servers)
    unread = protocol.read(properties(fake), "orders")
    assert connections()
    del unread
    gc.collect()
    wait_until(lambda: not connections())


def test_read_from_committed_offsets_of_group(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(2)
    produce(kafka, name, range(10), 2)
    group: dict[str, Any] = {"group_id": name, "auto_offset_reset": "none"}
    with pytest.raises(NoOffset, match=f"group {name} has committed no offset of {name}-0"):
        protocol.read(properties(kafka, **group), name, "committed")
    with client_of(kafka) as client:
        manager = protocol.OffsetManager(client, name)
        manager.stage({(name, 0): protocol.CommittedOffset(3)})
        manager.flush(client.deadline())
        manager.close()
    group["auto_offset_reset"] = "earliest"
    assert offsets(protocol.read(properties(kafka, **group), name, "committed")) == {0: [3, 4], 1: [0, 1, 2, 3, 4]}
    assert offsets(protocol.read(properties(kafka, **group), name, "earliest", "committed")) == {0: [0, 1, 2]}


def test_polars_duckdb_and_pandas_read_and_write_the_same_rows(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(2)
    rows = {"key": [b"a", None, b"c"], "value": [b"1", b"2", None], "partition": [1, 0, 1]}
    written = [
        protocol.write(properties(kafka), name, pl.DataFrame(rows)),
        protocol.write(properties(kafka), name, duckdb.from_arrow(pa.table(rows))),
        protocol.write(properties(kafka), name, pd.DataFrame(rows)),
        protocol.write(properties(kafka), name, pa.RecordBatch.from_pydict(rows)),
    ]
    assert [{key[1]: (span.first_offset, span.count) for key, span in result.items()} for result in written] == [
        {0: (number, 1), 1: (2 * number, 2)} for number in range(4)
    ]
    expected = {(b"a", b"1", 1), (None, b"2", 0), (b"c", None, 1)}
    columns = ["key", "value", "partition"]
    frame = pl.from_arrow(protocol.read(properties(kafka), name, columns=columns))
    assert isinstance(frame, pl.DataFrame)
    assert set(frame.select(columns).rows()) == expected
    reader = protocol.read(properties(kafka), name, columns=columns)
    assert set(duckdb.from_arrow(reader).select(", ".join(columns)).fetchall()) == expected
    pandas = protocol.read(properties(kafka), name, columns=columns).read_pandas()
    assert set(pandas[columns].replace({np.nan: None}).itertuples(index=False, name=None)) == expected


def test_write_of_filtered_pandas_rows_leaves_out_their_index(fake: SmallCluster) -> None:
    frame = pd.DataFrame({"value": ["a", "b", "c"], "partition": [0, 0, 1]})
    written = protocol.write(properties(fake), "orders", frame[frame.value != "b"])
    assert {key: span.count for key, span in written.items()} == {("orders", 0): 1, ("orders", 1): 1}


def test_write_of_strings_headers_and_timestamps_is_read_back(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(1)
    headers = pa.array(
        [[{"key": "trace", "value": b"7"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    rows = pa.table({"value": ["x"], "headers": headers, "timestamp_ms": [1_700_000_000_000]})
    assert protocol.write(properties(kafka, acks="all"), name, rows)[name, 0].last_offset == 0
    back = protocol.read(properties(kafka), name, columns=["value", "headers", "timestamp_ms"]).read_all()
    assert back.to_pylist() == [
        {"value": b"x", "timestamp_ms": 1_700_000_000_000, "headers": [{"key": "trace", "value": b"7"}]}
    ]


def test_write_in_transaction_shows_all_rows_or_none(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(1)
    transactional = properties(kafka, transactional_id=name)
    committed = properties(kafka, isolation_level="read_committed")
    assert protocol.write(transactional, name, pa.table({"value": ["1", "2"]}))[name, 0].count == 2

    def fenced() -> Any:
        yield pa.RecordBatch.from_pydict({"value": ["3"]})
        protocol.write(transactional, name, pa.table({"value": ["4"]}))  # a newer producer with the same id
        yield pa.RecordBatch.from_pydict({"value": ["5"]})

    with pytest.raises(KafkaError, match="newer producer"):
        protocol.write(
            transactional, name, pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), fenced())
        )
    values = protocol.read(committed, name, columns=["value"]).read_all()["value"].to_pylist()
    assert values == [b"1", b"2", b"4"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], r"list is no Arrow data; use a pyarrow.Table, or pyarrow.RecordBatchReader.from_batches for a generator"),
        (pa.table({"value": [1]}), "column value is int64; it must be binary"),
        (pa.table({"value": ["1"], "offset": [1]}), "offset is not a column of a record"),
    ],
)
def test_write_refuses_wrong_data(fake: SmallCluster, data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        protocol.write(properties(fake), "orders", data)


@pytest.mark.parametrize("failure", [DataLoss("t-0: gone"), KeyboardInterrupt()], ids=["data loss", "Ctrl-C"])
def test_failure_of_the_reader_that_is_written_stays_what_it_is(failure: BaseException) -> None:
    """Through Arrow's C stream, it would become an `ArrowInvalid`."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["1"]})
        raise failure

    rows = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), batches())
    with FakeKafka() as kafka:
        kafka.create_topic("copy")
        with pytest.raises(type(failure)) as raised:
            protocol.write(properties(kafka), "copy", rows)
    assert raised.value is failure
