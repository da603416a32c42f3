"""`protocol.read` and `protocol.write`: bounded reads into Arrow, Polars, DuckDB and pandas, and writes from them."""

from __future__ import annotations

import gc
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pytest

import protocol
from protocol.errors import ConfigurationError, KafkaError, NoOffset, UsageError
from protocol.progress import Progress, ProgressReporter
from protocol.tables import READ_SCHEMA
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.consuming import client_of, produce
from tests.support.small_cluster import END, FIRST_TIMESTAMP_MS, PARTITIONS, SmallCluster
from tests.support.wait_until import wait_until


def properties(fake: Any, **others: object) -> dict[str, object]:
    return {"bootstrap.servers": fake.bootstrap_servers, **{name.replace("_", "."): v for name, v in others.items()}}


def offsets(reader: pa.RecordBatchReader) -> dict[int, list[int]]:
    """Return the offsets by partition."""
    found: dict[int, list[int]] = {}
    for row in reader.read_all().select(["partition", "offset"]).to_pylist():
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def connections_to(address: str) -> int:
    port = int(address.rpartition(":")[2])
    return sum(bool(each.raddr) and each.raddr[1] == port for each in psutil.Process().net_connections())


def test_read_returns_all_records_with_topic_and_partition() -> None:
    with SmallCluster("orders", "returns") as fake:
        fake.grow(5)
        table = protocol.read(properties(fake), ["orders", "returns"]).read_all()
    assert table.schema == READ_SCHEMA
    rows = {(row["topic"], row["partition"], row["offset"]) for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 2 * PARTITIONS * (END + 5)


def test_read_returns_chosen_columns_in_the_order_of_the_schema() -> None:
    with SmallCluster() as fake:
        table = protocol.read(properties(fake), "orders", columns=["offset", "partition"]).read_all()
    assert table.column_names == ["partition", "offset"]
    assert table.num_rows == PARTITIONS * END


def test_read_and_write_report_progress_up_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Progress] = []
    with SmallCluster() as fake:
        rows = protocol.read(properties(fake), "orders", columns=["value"], progress=seen.append).read_all()
        total = PARTITIONS * END
        assert (seen[0].total, seen[-1].done, seen[-1].unit) == (total, total, "offsets")
        assert [each.done for each in seen] == sorted(each.done for each in seen)
        seen.clear()
        protocol.write(properties(fake), "orders", rows, progress=seen.append)
        assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (total, total, "rows")
        seen.clear()
        protocol.write(properties(fake), "orders", rows.to_reader(), progress=True)
        assert re.fullmatch(r"(orders: \d+ rows, [\d,]+/s\n)+", capsys.readouterr().err)


def test_progress_is_reported_four_times_a_second_with_rate_and_time_left() -> None:
    seen: list[Progress] = []
    clock = ManualClock()
    reporter = ProgressReporter(seen.append, "orders", 1_000, "offsets", clock)
    for _ in range(5):
        clock.advance(0.1)
        reporter.add(100)
    assert [str(each) for each in seen] == [
        "orders: 100 of 1,000 offsets (10 %), 1,000/s, 1 s left",
        "orders: 400 of 1,000 offsets (40 %), 1,000/s, 1 s left",
    ]
    reporter.end()
    assert str(seen[-1]) == "orders: 1,000 of 1,000 offsets (100 %), 2,000/s"


def test_read_of_growing_topic_ends_at_end_offset_of_the_call() -> None:
    with SmallCluster() as fake:
        fake.before[FETCH] = lambda body: fake.grow(1)
        assert protocol.read(properties(fake), "orders").read_all().num_rows == PARTITIONS * END


def test_read_of_empty_topic_returns_schema_without_rows() -> None:
    with SmallCluster() as fake:
        fake.create_topic("empty", 2)
        table = protocol.read(properties(fake, isolation_level="read_committed"), "empty").read_all()
    assert (table.num_rows, table.schema) == (0, READ_SCHEMA)


def test_read_from_offsets_to_timestamp_reads_only_the_named_partition() -> None:
    end = datetime.fromtimestamp(FIRST_TIMESTAMP_MS / 1000, timezone.utc) + timedelta(milliseconds=7)
    with SmallCluster() as fake:
        assert offsets(protocol.read(properties(fake), "orders", {("orders", 1): 4}, end)) == {1: [4, 5, 6]}
        assert offsets(protocol.read(properties(fake), "orders", end, {("orders", 0): 9})) == {0: [7, 8]}


def test_read_from_timestamp_after_last_record_returns_nothing() -> None:
    with SmallCluster() as fake:
        assert protocol.read(properties(fake), "orders", datetime.now(timezone.utc)).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("erliest", "latest", "'erliest' is not a position"),
        (datetime(2026, 1, 31), "latest", "has no time zone"),
        ({("orders", 7): 0}, "latest", "orders-7 does not exist"),
        ("earliest", {("orders", 0): END + 1}, "above its log end offset, 10"),
        ("committed", "latest", "needs group.id"),
    ],
)
def test_read_refuses_invalid_position(start: Any, end: Any, message: str) -> None:
    with SmallCluster() as fake, pytest.raises(UsageError, match=message):
        protocol.read(properties(fake), "orders", start, end)


def test_read_refuses_unknown_column_and_missing_bootstrap_servers() -> None:
    with pytest.raises(UsageError, match="colour is not a column"):
        protocol.read({}, "orders", columns=["colour"])
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        protocol.read({}, "orders")


def test_dropped_reader_closes_its_connections() -> None:
    with SmallCluster() as fake:
        unread = protocol.read(properties(fake), "orders")
        assert connections_to(fake.bootstrap_servers) > 0
        del unread
        gc.collect()
        wait_until(lambda: connections_to(fake.bootstrap_servers) == 0)


def test_read_from_committed_offsets_of_group(kafka: LocalKafka, topic: TopicFactory) -> None:
    name = topic(2)
    produce(kafka, name, range(10), 2)
    group: dict[str, Any] = {"group_id": name, "auto_offset_reset": "none"}
    with pytest.raises(NoOffset, match=f"group {name} has committed no offset of {name}-0"):
        protocol.read(properties(kafka, **group), name, "committed")
    with client_of(kafka) as client:
        manager = protocol.OffsetManager(client, name)
        manager.mark({(name, 0): protocol.CommittedOffset(3)})
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
    assert [{key[1]: (each.first_offset, each.count) for key, each in result.items()} for result in written] == [
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
        ([1], "list is no Arrow data"),
        (pa.table({"value": [1]}), "column value is int64; it must be binary"),
        (pa.table({"value": ["1"], "offset": [1]}), "offset is not a column of a record"),
    ],
)
def test_write_refuses_wrong_data(data: Any, message: str) -> None:
    with SmallCluster() as fake, pytest.raises(UsageError, match=message):
        protocol.write(properties(fake), "orders", data)
