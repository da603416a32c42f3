"""`protocol.read(filter=…)` and `pykafka consume --filter`, and the metrics of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

import protocol
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_consumer
from protocol.errors import ConfigurationError, DecodeFailed, FilterFailed
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.filters.parse import parse_condition
from protocol.filters.record_filter import RecordFilter
from protocol.testing import FakeKafka
from spark_kafka_source.cli.pykafka import pykafka


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("orders", 2)
        for number in range(20):
            running.produce(
                "orders",
                json.dumps({"id": number}),
                key=f"k{number}",
                headers=[("n", str(number).encode())],
                partition=number % 2,
                timestamp_ms=1_000 + number,
            )
        yield running


def read(fake: FakeKafka, condition: Any, **more: Any) -> list[dict[str, Any]]:
    properties = {"bootstrap.servers": fake.bootstrap_servers}
    rows: list[dict[str, Any]] = protocol.read(properties, "orders", filter=condition, **more).read_all().to_pylist()
    return sorted(rows, key=str)


JSON = {"value_format": "json", "value_schema": "id BIGINT"}


@pytest.mark.parametrize(
    ("condition", "more", "expected"),
    [
        ("headers['n'] = '7'", {}, [3]),
        ("partition = 1 AND offset < 2", {}, [0, 1]),
        ("value.id = 5", JSON, [2]),
        (pc.field("key") == b"k4", {}, [2]),
        (pc.field("value") == b"none", {}, []),
    ],
)
def test_read_returns_the_records_of_the_condition(
    fake: FakeKafka, condition: Any, more: dict[str, Any], expected: list[int]
) -> None:
    assert [row["offset"] for row in read(fake, condition, columns=["offset"], **more)] == expected
    rows = read(fake, condition, **more)
    assert [row["offset"] for row in rows] == expected
    assert all(set(row) >= {"topic", "key", "value", "headers"} for row in rows)


def test_read_refuses_what_is_no_condition_and_raises_a_failed_cast(fake: FakeKafka) -> None:
    with pytest.raises(ConfigurationError, match="nope is not one of"):
        read(fake, "nope = 1")
    with pytest.raises(FilterFailed, match="offset 0 of orders-"):
        read(fake, "cast(cast(key AS string) AS int) = 1")


def test_read_decodes_other_fields_for_the_rows_of_the_filter_only(fake: FakeKafka) -> None:
    def offsets(condition: str, **more: Any) -> list[int]:
        json_format = {"value_format": "json", "value_schema": "id BIGINT, items INT"}
        return [row["offset"] for row in read(fake, condition, **json_format, **more)]

    fake.produce("orders", json.dumps({"id": 20, "items": "many"}), partition=1)
    fake.produce("orders", json.dumps({"id": 21, "items": 2}), partition=1)
    assert offsets("value.id = 21") == [11]
    with pytest.raises(DecodeFailed, match="orders-1, offset 10: the value does not decode"):
        offsets("value.id > 19")
    # A column that only the filter names is not decoded for the rows.
    assert offsets("value.id > 19", columns=["offset"]) == [10, 11]
    fake.produce("orders", "no json", partition=1)
    with pytest.raises(DecodeFailed, match="orders-1, offset 12: the value does not decode"):
        offsets("value.id = 21")


def test_consume_prints_the_records_of_the_condition(fake: FakeKafka) -> None:
    def consume(condition: str) -> Any:
        connection = ["--bootstrap-server", fake.bootstrap_servers]
        return CliRunner().invoke(
            pykafka, ["consume", "orders", "-e", "--filter", condition, "-f", r"%k\n", *connection]
        )

    assert sorted(consume("offset = 3 AND key <> 'k0'").stdout.split()) == ["k6", "k7"]
    assert consume("offset = 99").stdout == ""
    refused = consume("value.id = 3")
    assert refused.exit_code == 2
    assert "--filter" in refused.stderr


def test_metrics_count_records_that_were_left_out(fake: FakeKafka) -> None:
    client = Client(parse_client({"bootstrap.servers": fake.bootstrap_servers}))
    with client:
        condition = parse_condition("headers['n'] = '6' AND timestamp >= '1970-01-01 00:00:01.003Z'")
        record_filter = RecordFilter(condition, ansi=True, client=client)
        ranges = [Range("orders", number, 0, 10) for number in range(2)]
        reader = BoundedReader(client, parse_consumer({}), ranges, columns=["value"], row_filter=record_filter.of_range)
        assert [batch.to_pylist() for _, batch in reader] == [[{"value": b'{"id": 6}'}]]
        metrics = [metric for metric in client.metrics() if not metric.tags.get("topic")]
    totals = {metric.name: metric.value for metric in metrics}
    assert totals["records-consumed-total"] == 1
    assert totals["records-filtered-total"] == 19
    assert totals["bytes-consumed-total"] > 1000
