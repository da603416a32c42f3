"""The option `filter` in a task: which records are fetched, decoded, passed on, or fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError, DecodeFailed, FilterFailed
from protocol.fetch.log_offsets import Range
from protocol.filters.record_filter import RecordFilter
from protocol.testing import FakeKafka
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.reader_schemas import with_schemas
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.task.decoded_columns import TaskDecoder
from tests.support.spark_task import spark_task

JSON = {"valueFormat": "json", "valueSchema": "id BIGINT, country STRING, city STRUCT<name: STRING>"}


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("orders", 3)
        running.create_topic("dead")
        for number in range(30):
            value = {"id": number, "country": "DE" if number % 2 else "FR", "city": {"name": f"c{number % 5}"}}
            running.produce(
                "orders",
                json.dumps(value),
                key=f"k{number}" if number % 3 else None,
                headers=[("n", b"old"), ("n", str(number).encode())] if number % 5 else [],
                partition=number % 3,
                timestamp_ms=1_000_000 + number,
            )
        yield running
    PROCESS.reset()


def options_of(fake: FakeKafka, condition: str, **more: str) -> SourceOptions:
    options = {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "orders", "filter": condition, **more}
    return with_schemas(parse_source_options(options, streaming=False))


def read(fake: FakeKafka, condition: str, **more: str) -> list[dict[str, Any]]:
    reader = KafkaBatchReader(options_of(fake, condition, **more))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["offset"] * 3 + row["partition"] for row in rows)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("partition = 1", range(1, 30, 3)),
        ("topic = 'orders' AND pmod(partition, 2) = 0 AND offset < 3", [0, 2, 3, 5, 6, 8]),
        ("offset IN (3, 5)", [9, 10, 11, 15, 16, 17]),
        ("offset BETWEEN 2 AND 3 OR partition > 5", range(6, 12)),
        ("headers['n'] = '7'", [7]),
        ("cast(headers['n'] AS int) >= 27", [27, 28, 29]),
        ("headers['n'] IS NULL AND key IS NOT NULL", [5, 10, 20, 25]),
        ("key IN ('k4', 'k5', X'6B37')", [4, 5, 7]),
        ("timestamp >= '1970-01-01 00:16:40.027Z'", [27, 28, 29]),
        ("contains(value, '\"id\": 2') AND timestamp < '1970-01-01T00:16:40.02Z'", [2]),
        ("offset = 0 AND key NOT LIKE '%1'", [2]),
        ("offset = 0 AND NOT (key NOT RLIKE '1$')", [1]),
        ("offset = 0 AND key NOT LIKE '/%' ESCAPE '/' AND key NOT ILIKE 'K2'", [1]),
        ("offset < 0", []),
    ],
)
def test_filter_keeps_the_records_of_its_condition(fake: FakeKafka, condition: str, expected: Any) -> None:
    assert numbers(read(fake, condition)) == list(expected)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("value.country = 'DE' AND value.id > 20", [21, 23, 25, 27, 29]),
        ("VALUE.City.Name = 'c3' AND key IS NULL", [3, 18]),
        ("value.id IN (1, 2) OR headers['n'] = '3'", [1, 2, 3]),
        ("value IS NULL", []),
    ],
)
def test_filter_on_decoded_fields_keeps_rows_with_all_their_columns(
    fake: FakeKafka, condition: str, expected: Any
) -> None:
    rows = read(fake, condition, **JSON)
    assert numbers(rows) == expected
    assert all(row["value"].keys() == {"id", "country", "city"} and row["value"]["city"]["name"] for row in rows)


def test_fields_and_columns_of_the_filter_alone_are_not_passed_on(fake: FakeKafka) -> None:
    rows = read(fake, "value.country = 'DE' AND partition = 0", **JSON, valueFields="id", columns="value")
    assert [row["value"] for row in rows] == [{"id": number} for number in range(3, 30, 6)]
    assert read(fake, "value.id = 4 AND key = 'k4'", **JSON, columns="offset") == [{"offset": 1}]


def test_ranges_without_a_kept_offset_are_not_read(fake: FakeKafka) -> None:
    reader = KafkaBatchReader(options_of(fake, "partition <> 1 AND offset > 2 AND offset <= 6"))
    ranges = [(r.partition, r.from_offset, r.until_offset) for task in reader.partitions() for r in task.ranges]
    assert ranges == [(0, 3, 7), (2, 3, 7)]


def test_values_that_do_not_decode_fail_unless_the_filter_drops_them_undecoded(fake: FakeKafka) -> None:
    fake.produce("orders", "no json", partition=0, headers=[("n", b"40")])
    assert numbers(read(fake, "headers['n'] = '9' AND value.id = 9", **JSON)) == [9]
    with pytest.raises(DecodeFailed):
        read(fake, "headers['n'] = '40' AND value.id = 9", **JSON)
    with pytest.raises(DecodeFailed):
        read(fake, "headers['n'] = '40'", **JSON)


def test_values_that_do_not_decode_become_dead_letters_though_the_filter_cannot_judge_them(fake: FakeKafka) -> None:
    fake.produce("orders", "no json", partition=0)
    letters = {"onDecodeError": "dead-letter", "deadLetterTopic": "dead"}
    assert numbers(read(fake, "value.id = 9", **JSON, **letters)) == [9]
    assert [record.value for record in fake.records("dead")] == [b"no json"]
    # The condition on the partition has left the record out: it is no dead letter.
    read(fake, "partition = 1 AND value.id = 9", **JSON, **letters)
    assert len(fake.records("dead")) == 1


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("value.id = 40", []),
        ("value.id <> 9 AND offset > 9", []),
        ("value.id <=> 40 OR key = 'k4'", [4]),
        ("value.id = 40 OR key = 'bad'", [30]),
        ("coalesce(value.id, 40) = 40", [30, 31]),
        ("value.id = 40 OR value.id IS NULL", [30, 31]),
        ("key.n = 1 AND coalesce(value.id, 40) = 40", [30]),
    ],
)
@pytest.mark.parametrize("fields", ["", "city"])
def test_row_whose_value_turns_out_null_is_judged_with_null(
    fake: FakeKafka, condition: str, expected: list[int], fields: str
) -> None:
    """The filter has decoded `id` alone, and the rows need `city`."""
    key = {"keyFormat": "json", "keySchema": "n BIGINT"} if "key.n" in condition else {}
    bad_city = json.dumps({"id": 40, "city": 7})
    fake.produce("orders", bad_city, key='{"n": 1}' if key else "bad", partition=0)
    fake.produce("orders", "no json", key='{"n": 2}' if key else None, partition=1)
    chosen = {"valueFields": fields} if fields else {}
    rows = read(fake, f"partition < 2 AND ({condition})", **JSON, **key, **chosen, onDecodeError="null")
    assert numbers(rows) == expected
    assert all(row["value"] is None for row in rows if row["offset"] == 10)


def test_row_that_the_filter_drops_by_its_fields_is_not_decoded_further(fake: FakeKafka) -> None:
    fake.produce("orders", json.dumps({"id": 40, "city": 7}), partition=0)
    letters = {"onDecodeError": "dead-letter", "deadLetterTopic": "dead"}
    for more in ({}, {"onDecodeError": "null"}, letters):
        assert numbers(read(fake, "value.id = 9", **JSON, **more)) == [9]
        assert read(fake, "value.id IS NULL", **JSON, **more) == []
    assert fake.records("dead") == []
    assert read(fake, "value.id = 40", **JSON, **letters) == []
    assert len(fake.records("dead")) == 1


def test_rows_that_null_drops_are_counted_as_filtered(fake: FakeKafka) -> None:
    fake.produce("orders", json.dumps({"id": 40, "city": 7}), partition=0)
    options = options_of(fake, "value.id = 40 AND offset = 10 AND partition = 0", **JSON, onDecodeError="null")
    client = PROCESS.client(options.client)
    reader = KafkaBatchReader(options)
    assert not any(batch.num_rows for task in reader.partitions() for batch in reader.read(task))
    totals = {metric.name: metric.value for metric in client.metrics() if metric.tags.get("topic") == "orders"}
    assert totals["records-filtered-total"] == 1


def test_failed_cast_fails_the_task_and_names_the_record(fake: FakeKafka) -> None:
    fake.produce("orders", "x", partition=2)
    with pytest.raises(FilterFailed, match=r"offset 10 of orders-2: CAST\(CAST\(value AS STRING\) AS INT\)"):
        read(fake, "offset > 9 AND cast(cast(value AS string) AS int) > 3")
    assert read(fake, "offset > 10 AND cast(cast(value AS string) AS int) > 3") == []
    assert read(fake, "startswith(value, 'y') AND cast(cast(key AS string) AS int) > 3") == []  # the key is read first


@pytest.mark.parametrize("ansi", ["false", "False", " FALSE ", "true", " True", None])
def test_ansi_mode_is_that_of_the_session(fake: FakeKafka, ansi: str | None) -> None:
    """Spark trims a boolean setting, and ignores its case; without the property ANSI mode is Spark 4's default."""
    condition = "partition = 1 AND cast(cast(key AS string) AS int) > 0"  # other keys are k1, k4 and so on
    fake.produce("orders", "x", key="7", partition=1)
    with spark_task(**({} if ansi is None else {"spark_sql_ansi_enabled": ansi})):
        if ansi is None or "true" in ansi.lower():
            with pytest.raises(FilterFailed, match="offset 0 of orders-1"):
                read(fake, condition)
        else:
            assert numbers(read(fake, condition)) == [31]


@pytest.mark.parametrize(
    "condition",
    [
        *("value.nope = 1", "value.id = 'a'", "partition", "unknown_function(key) = 1"),
        *("partition NOT IN (1, NULL)", "partition = NULL OR offset = 1", "coalesce(cast(NULL AS int), 1) = 1"),
        *("1 = 1 AND partition = 0", "2 BETWEEN partition AND 1"),
    ],
)
def test_condition_outside_the_language_is_refused_and_names_where(fake: FakeKafka, condition: str) -> None:
    with pytest.raises(ConfigurationError, match="where"):
        read(fake, condition, **JSON)


def test_tasks_without_a_filter_import_none_of_it() -> None:
    program = (
        "import sys, spark_kafka_source.task.range_reader, spark_kafka_source.task.decoded_columns;"
        "print([name for name in sys.modules if name.startswith(('sqlglot', 'pyarrow.compute', 'protocol.filters'))])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"


def test_decoder_takes_the_columns_of_the_filter_when_it_keeps_most_rows(fake: FakeKafka) -> None:
    options = options_of(fake, "value.id <> 3", **JSON)
    decoder = TaskDecoder(options, RecordFilter(options.condition, ansi=True))
    raw = [json.dumps({"id": number, "country": "x"}).encode() for number in range(5)]
    batch = pa.record_batch({"value": pa.array(raw, pa.binary()), "offset": pa.array(range(5), pa.int64())})
    for _ in range(3):
        kept = decoder.filtered(batch, Range("orders", 0, 0, 5))
        columns, _ = decoder.decode(kept, Range("orders", 0, 0, 5))
        assert [value["id"] for value in columns["value"].to_pylist()] == [0, 1, 2, 4]
        assert kept["offset"].to_pylist() == [0, 1, 2, 4]
