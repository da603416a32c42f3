"""`protocol.read(filter=…)` and `pykafka consume --filter`, and the metrics of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import SchemaRegistryClient

import protocol
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_consumer
from protocol.decoded_columns import RowDecoder, column_decoders, column_types
from protocol.errors import ConfigurationError, DecodeFailed, FilterFailed
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.filters.parse import parse_condition
from protocol.filters.record_filter import RecordFilter
from protocol.schemas.formats import ValueTypes
from protocol.testing import FakeKafka, FakeSchemaRegistry
from spark_kafka_source.cli.pykafka import pykafka
from tests.support.value_types import LOGIN, ORDER, REFUND, avro_value


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


RECURSIVE = 'syntax = "proto3"; message M { int32 id = 15; M next = 2; }'
JSON = {"value_format": "json", "value_schema": "id BIGINT"}


@pytest.mark.parametrize(
    ("condition", "more", "expected"),
    [
        ("headers['n'] = '7'", {}, [3]),
        ("partition = 1 AND offset < 2", {}, [0, 1]),
        ("value.id = 5", JSON, [2]),
        ("value.id = 5", {**JSON, "value_schema": "id BIGINT, name STRING", "value_fields": "name"}, [2]),
        (
            "partition = 1 AND offset = 99",
            {"value_format": "protobuf", "value_schema": RECURSIVE, "value_fields": "id"},
            [],
        ),
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


def test_read_decodes_once_while_the_filter_keeps_most_rows() -> None:
    schema = "id BIGINT, items INT"
    types = ValueTypes((), None, "TopicRecordNameStrategy")
    decoders = column_decoders({}, ["orders"], "binary", "json", schema, types, "fail", (), None)
    condition = parse_condition("value.id < 3", column_types(decoders))
    decoder = RowDecoder(None, decoders, {"value", "offset"}, "fail", RecordFilter(condition, ansi=True))  # type: ignore[arg-type]

    def ids(*records: tuple[int, object]) -> list[int]:
        texts = [json.dumps({"id": number, "items": items}).encode() for number, items in records]
        offsets = pa.array(range(len(texts)), pa.int64())
        rows = decoder.rows({"value": pa.array(texts, pa.binary()), "offset": offsets}, Range("orders", 0, 0, 9))
        assert len(rows["offset"]) == len(rows["value"])
        return [value["id"] for value in rows["value"].to_pylist()]

    for _ in range(2):
        assert ids((1, 1), (5, 1), (2, 1)) == [1, 2]
    # Decoded once, the invalid value of a dropped row must not matter.
    assert ids((1, 1), (5, "many"), (2, 1)) == [1, 2]
    with pytest.raises(DecodeFailed, match="offset 1"):
        ids((1, 1), (2, "many"), (0, 1))


def test_read_of_several_types_decodes_other_types_and_keys_for_the_rows_of_the_filter_only(fake: FakeKafka) -> None:
    fake.create_topic("events", 1)
    with FakeSchemaRegistry("NONE") as registry:
        serializers = SchemaRegistryClient({"url": registry.url})

        def produce(schema: dict[str, Any], value: dict[str, Any], key: bytes | None) -> None:
            fake.produce("events", avro_value(serializers, schema, value), key=key, partition=0)

        key_of_order = avro_value(serializers, ORDER, {"id": 3}, "RecordNameStrategy")
        registry.register("events-key", json.dumps(ORDER))
        produce(ORDER, {"id": 1}, b"no key")
        produce(LOGIN, {"user": "ann"}, None)
        produce(REFUND, {"reason": "late"}, None)
        produce(ORDER, {"id": 2}, key_of_order)

        def rows(condition: str, **more: Any) -> list[Any]:
            properties = {"bootstrap.servers": fake.bootstrap_servers, "schema.registry.url": registry.url}
            types = {"value_types": ["shop.Order", "shop.Refund"], "on_unknown_type": "skip", **more}
            formats = {"key_format": "confluent-avro", "value_format": "confluent-avro"}
            columns = ["key", "value", "value_type"]
            table = protocol.read(properties, "events", columns=columns, filter=condition, **formats, **types)
            return [tuple(row.values()) for row in table.read_all().to_pylist()]

        order, refund = {"Order": {"id": 2}, "Refund": None}, {"Order": None, "Refund": {"reason": "late"}}
        assert rows("value.Order.id = 2 OR value.Refund.reason = 'late'") == [
            (None, refund, "Refund"),
            ({"id": 3}, order, "Order"),
        ]
        assert rows("valueType = 'Refund'") == [(None, refund, "Refund")]
        assert rows("value.Order.id > 1", on_unknown_type="null") == [({"id": 3}, order, "Order")]
        assert rows("key.id IS NULL AND valueType <> 'Order'") == [(None, refund, "Refund")]
        with pytest.raises(DecodeFailed, match="offset 0: the key does not decode"):
            rows("value.Order.id = 1")
        with pytest.raises(DecodeFailed, match=r"offset 1: .*Login is none of Order, Refund"):
            rows("value.Order.id = 2", on_unknown_type="fail")
        fake.produce("events", b"no schema", key=key_of_order.replace(b"\6", b"\b"), partition=0)
        assert rows("offset > 2 AND key.id = 3") == [({"id": 3}, order, "Order")]


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


def test_records_of_an_old_batch_are_counted_within_the_range(fake: FakeKafka) -> None:
    fake.create_topic("payments", 1)
    properties = {"bootstrap.servers": fake.bootstrap_servers}
    protocol.write(
        {**properties, "linger.ms": "50"}, "payments", pa.table({"value": ["a"] * 10, "timestamp_ms": [1_000] * 10})
    )
    partition = ("payments", 0)
    progresses: list[Any] = []
    condition = "timestamp >= '2026-01-01 00:00:00Z'"
    bounds = {partition: 3}, {partition: 7}
    reader = protocol.read(properties, "payments", *bounds, filter=condition, progress=progresses.append)
    assert reader.read_all().num_rows == 0
    assert {(progress.done, progress.total) for progress in progresses} == {(4, 4)}
