"""Each option of the table that applies has an observable effect on offsets, tasks, rows, requests or times.

Fails for an option without an entry in `OBSERVERS`, and for an entry whose values have equal effects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from protocol.errors import DecodeFailed
from protocol.schemas.values import ColumnDecoder
from protocol.settings.property_kinds import Effect
from protocol.testing.schema_registry import FakeSchemaRegistry
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.reader_schemas import with_schemas
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options, row_columns
from spark_kafka_source.options.table import OPTIONS
from spark_kafka_source.plan.offsets import JsonDict
from spark_kafka_source.sink.stream_writer import KafkaStreamWriter
from spark_kafka_source.source import KafkaGroupDataSource
from spark_kafka_source.task.range_reader import fetched_columns, read_range
from tests.options.observe import CLOSED_PORT, LONG, Observe, assert_effects, first_batch, outcome, plan, took_long
from tests.protocol.fetch.consuming import records
from tests.support.encoded import encode
from tests.support.small_cluster import END, FIRST_TIMESTAMP_MS, SmallCluster
from tests.support.spark_task import spark_task
from tests.support.wait_until import TIMEOUT_S, comes_true

Options = Mapping[str, str]

ORDERS = {"0": 0, "1": 0}


def stream(cluster: SmallCluster, options: Options, **more: str) -> KafkaStreamReader:
    return KafkaStreamReader(parse_source_options(complete(cluster, options, more), streaming=True))


def batch(cluster: SmallCluster, options: Options, **more: str) -> KafkaBatchReader:
    return KafkaBatchReader(parse_source_options(complete(cluster, options, more), streaming=False))


def complete(cluster: SmallCluster, inputs: Options, more: Options) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **more, **inputs}
    chosen = {"subscribe", "subscribePattern", "assign"} & set(options)
    return options if chosen else {**options, "subscribe": "orders"}


def chosen(cluster: SmallCluster, options: dict[str, str]) -> object:
    first = first_batch(stream(cluster, options))
    return sorted(f"{topic}-{number}" for topic in first if topic[0] != "@" for number in first[topic])


def start_offsets(cluster: SmallCluster, options: dict[str, str]) -> object:
    reader = stream(cluster, options)
    return first_batch(reader)["@joined"]["orders"] if outcome(lambda: first_batch(reader)) == "done" else "error"


def end_offsets(cluster: SmallCluster, options: dict[str, str]) -> object:
    return sorted(
        source_range.until_offset for task in batch(cluster, options).partitions() for source_range in task.ranges
    )


def each(zero: int, first: int) -> str:
    return json.dumps({"orders": {"0": zero, "1": first}})


def checkpoint_at(cluster: SmallCluster, offset: int, topic_id: str | None = None) -> JsonDict:
    ids = first_batch(stream(cluster, {}))["@ids"]
    return {"orders": {"0": offset, "1": offset}, "@ids": {"orders": topic_id} if topic_id else ids}


def offsets_of_first_batch(cluster: SmallCluster, options: dict[str, str], *, more: int = 0) -> int:
    """Return the number of offsets in the first batch. Each of the two partitions has 10 records, plus `more`."""
    if more:
        cluster.grow(more)
    end = plan(stream(cluster, options), {"orders": dict(ORDERS)})
    return sum(end["orders"].values())


def second_batch_waits(cluster: SmallCluster, options: dict[str, str]) -> bool:
    """Return whether a trigger with two new offsets waits for more."""
    reader = stream(cluster, {"minOffsetsPerTrigger": "5", **options})
    first = plan(reader, {"orders": dict(ORDERS)})
    cluster.grow(1)
    return plan(reader, first) == first


def commits(cluster: SmallCluster, options: dict[str, str]) -> int:
    reader = stream(cluster, options, **{"kafka.group.id": "g"})
    plan(reader, {"orders": dict(ORDERS)})
    reader.stop()
    return len(cluster.request_bodies(OFFSET_COMMIT))


def continues_after_data_loss(cluster: SmallCluster, options: dict[str, str]) -> str:
    start = checkpoint_at(cluster, END)
    cluster.rewrite_all(records(0, END - 3))
    return outcome(lambda: plan(stream(cluster, options), start))


def continues_with_a_recreated_topic(cluster: SmallCluster, options: dict[str, str]) -> str:
    start = checkpoint_at(cluster, 5, topic_id="b" * 21 + "A")
    return outcome(lambda: plan(stream(cluster, options), start))


def tasks(cluster: SmallCluster, options: dict[str, str]) -> int:
    return len(batch(cluster, options).partitions())


def column_names(cluster: SmallCluster, options: dict[str, str]) -> object:
    """Return the column names of the rows, which must equal those of the schema."""
    reader = batch(cluster, options)
    first = next(reader.read(reader.partitions()[0]))
    assert tuple(first.schema.names) == row_columns(options), "does row_columns in options/parsing.py read the option?"
    return ",".join(first.schema.names)


def filtered_offsets(cluster: SmallCluster, given: dict[str, str]) -> list[int]:
    """Return the offsets of the first task's rows."""
    source = KafkaGroupDataSource(complete(cluster, given, {}))
    reader = source.reader(source.schema())
    return [offset for rows in reader.read(reader.partitions()[0]) for offset in rows["offset"].to_pylist()]


HALVES = json.dumps({"type": "record", "name": "R", "fields": [
    {"name": name, "type": {"type": "fixed", "name": f"F{name}", "size": 5}} for name in "ab"]})  # fmt: skip
MESSAGES = 'syntax = "proto3"; message A { int32 a = 1; } message B { int32 b = 1; }'


def decoded(cluster: SmallCluster, inputs: dict[str, str], **more: str) -> KafkaBatchReader:
    """Return a reader that decodes keys or values. Values of the cluster have ten bytes; keys are null."""
    formats = {} if {"keyFormat", "valueFormat"} & {*inputs, *more} else {"valueFormat": "avro"}
    options = complete(cluster, inputs, {**formats, **more})
    return KafkaBatchReader(with_schemas(parse_source_options(options, streaming=False)))


def column_type(part: str, **more: str) -> Observe:
    """Return an observer of the type that the column `part` has in the rows read."""

    def observe(cluster: SmallCluster, options: dict[str, str]) -> str:
        with FakeSchemaRegistry() as registry:
            registry.register("one", '"string"')
            registry.register("two", HALVES)
            reader = decoded(cluster, options, **{"schema.registry.url": registry.url, "onDecodeError": "null", **more})
            schema = next(reader.read(reader.partitions()[0])).schema
        return str(schema.field(part).type)

    return observe


union_type = column_type("value", valueSchema='[{"type": "record", "name": "R", "fields": []}]')
ID = {"name": "id", "type": "int"}


def values_of_types(cluster: SmallCluster, inputs: dict[str, str]) -> object:
    """Return the fields of `value`, and what becomes of a record of the type Two, which is not in the registry."""
    with FakeSchemaRegistry() as registry:
        for subject, name in (("One", "One"), ("orders-One", "OneOfTopic"), ("Three", "Three")):
            registry.register(subject, json.dumps({"type": "record", "name": name, "fields": [ID]}))
        two = registry.register("Two", json.dumps({"type": "record", "name": "Two", "fields": [ID]}))
        data = pa.record_batch({"value": [b"\0" + two.to_bytes(4, "big") + b"\2"]}, pa.schema({"value": pa.binary()}))
        cluster.rewrite_all(bytes(encode(data)))
        names = {} if "valueSubject" in inputs else {"valueTypes": "One"}
        more = {"valueFormat": "confluent-avro", "schema.registry.url": registry.url, "onUnknownType": "null"}
        by_record = {"valueSubjectNameStrategy": "RecordNameStrategy", "deadLetterTopic": "letters"}
        reader = decoded(cluster, inputs, **more, **by_record, **names, columns="value")
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        fields = {field.name for batch in batches for field in batch.schema.field("value").type}
        letters = sum(cluster.log("letters", number).end_offset - 1 for number in range(2))
        return sorted(fields), sum(batch.num_rows for batch in batches), letters


def unknown_type(cluster: SmallCluster, inputs: dict[str, str]) -> object:
    try:
        return values_of_types(cluster, inputs)[1:]  # type: ignore[index]
    except DecodeFailed:
        return "fails"


def protobuf_row(cluster: SmallCluster, inputs: dict[str, str]) -> str:
    """Return the decoded row of a message with enum value 1, the largest uint32, a wrapped 5 and empty messages."""
    text = (
        'syntax = "proto3"; import "google/protobuf/wrappers.proto"; enum E { ZERO = 0; ONE = 1; } message Empty {} '
        "message A { E e = 1; uint32 n = 2; google.protobuf.Int64Value w = 3; Empty m = 4; int32 z = 5; A a = 6; }"
    )
    more = {"valueFormat": "protobuf", "valueSchema": text, "valueMessageName": "A", "recursive.fields.max.depth": "1"}
    options = with_schemas(parse_source_options(complete(cluster, inputs, more), streaming=False))
    message = b"\x08\1\x10\xff\xff\xff\xff\x0f\x1a\2\x08\5\x22\0\x32\0"
    (row,) = ColumnDecoder(dict(options.schemas)["value"]).decode(pa.array([message]))[0].to_pylist()
    return str(row)


def fetched(cluster: SmallCluster, inputs: dict[str, str]) -> list[str]:
    options = complete(cluster, inputs, {"valueFormat": "confluent-avro", "schema.registry.url": "http://r:1"})
    parsed = parse_source_options({**options, "valueSchema": HALVES, "columns": "value"}, streaming=False)
    return fetched_columns(with_schemas(parsed))


def reads_invalid_values(cluster: SmallCluster, options: dict[str, str]) -> str:
    reader = decoded(cluster, options, valueSchema='"long"')
    return outcome(lambda: list(reader.read(reader.partitions()[0])))


def dead_letters(cluster: SmallCluster, options: dict[str, str]) -> object:
    reader = decoded(cluster, options, valueSchema='"long"', onDecodeError="dead-letter")
    assert sum(batch.num_rows for batch in reader.read(reader.partitions()[0])) == 0
    return [name for name in cluster.names if any(cluster.log(name, number).end_offset > END for number in range(2))]


def times_out_late(cluster: SmallCluster, inputs: dict[str, str]) -> bool:
    cluster.silent_to(FETCH)
    options = parse_source_options(complete(cluster, inputs, {"kafka.fetch.max.wait.ms": "20"}), streaming=False)
    (first, *_) = KafkaBatchReader(options).partitions()
    return took_long(lambda: list(read_range(options, first.ranges)), "DeadlineExceeded")


def offset_retries_take_long(cluster: SmallCluster, inputs: dict[str, str]) -> list[bool]:
    """Return if query start, trigger and batch read each retry for a long time when no broker replies."""
    limits = {"kafka.default.api.timeout.ms": "200", "kafka.retry.backoff.max.ms": "50"}
    short = {"kafka.bootstrap.servers": CLOSED_PORT, **limits}
    options = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "0", **short, **inputs}
    readers = stream(cluster, options), stream(cluster, options), batch(cluster, options)
    start: JsonDict = {"orders": dict(ORDERS)}
    calls = lambda: first_batch(readers[0]), lambda: plan(readers[1], start), readers[2].partitions
    with ThreadPoolExecutor() as pool:
        return list(pool.map(partial(took_long, error="DeadlineExceeded"), calls))


def write(cluster: SmallCluster, inputs: dict[str, str]) -> list[dict[str, Any]]:
    options = parse_sink_options({"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "orders", **inputs})
    with spark_task():
        KafkaStreamWriter(options, StructType().add("value", "string")).write(iter([pa.record_batch({"value": ["v"]})]))
    comes_true(lambda: cluster.request_bodies(PRODUCE), TIMEOUT_S)  # acks=0 gets no reply
    return cluster.request_bodies(PRODUCE)


def written_topic(cluster: SmallCluster, options: dict[str, str]) -> object:
    write(cluster, options)
    return [name for name in cluster.names if any(cluster.log(name, number).end_offset > END for number in range(2))]


def produce_acks(cluster: SmallCluster, options: dict[str, str]) -> object:
    """Return acks and the transactional id."""
    return [
        (body["acks"], body["transactional_id"]) for body in write(cluster, {"transactionalIdPrefix": "p", **options})
    ]


def transactional_ids(cluster: SmallCluster, options: dict[str, str]) -> object:
    write(cluster, {"deliveryGuarantee": "exactly-once", **options})
    return sorted({body["transactional_id"] for body in cluster.request_bodies(INIT_PRODUCER_ID)})


_ALL = "key,value,topic,partition,offset,timestamp,timestampType"
_LATE = str(FIRST_TIMESTAMP_MS + 1_000)
_AT_5 = FIRST_TIMESTAMP_MS + 5


def _format_observers(part: str) -> dict[str, tuple[Observe, dict[str, Any]]]:
    a, b = (f"struct<{name}: binary not null>" for name in "ab")
    both = f"{a[:-1]}, {b[len('struct<') :]}"
    avro = {f"{part}Format": "avro"}
    registered = column_type(part, **{f"{part}Format": "confluent-avro"})
    return {
        f"{part}Format": (
            column_type(part, **{f"{part}Schema": '"long"'}),
            {"binary": "binary", "string": "string", "avro": "int64"},
        ),
        f"{part}Schema": (column_type(part, **avro), {'"long"': "int64", '"string"': "string"}),
        f"{part}Subject": (registered, {"one": "string", "two": both}),
        f"{part}MessageName": (
            column_type(part, **{f"{part}Format": "protobuf", f"{part}Schema": MESSAGES}),
            {"A": "struct<a: int32>", "B": "struct<b: int32>"},
        ),
        f"{part}Fields": (column_type(part, **avro, **{f"{part}Schema": HALVES}), {"a": a, "b": b}),
    }


ROW = "{'e': 'ONE', 'n': -1, 'w': {'value': 5}, 'z': None}"
DUMMY = "'m': {'__dummy_field_in_empty_struct': None}, "
PROTOBUF: dict[str, tuple[Observe, dict[str, Any]]] = {
    name: (protobuf_row, {"false": ROW, "true": ROW.replace(old, new)})
    for name, old, new in (
        ("emit.default.values", "None", "0"),
        ("enums.as.ints", "'ONE'", "1"),
        ("upcast.unsigned.ints", "-1", "4294967295"),
        ("unwrap.primitive.wrapper.types", "{'value': 5}", "5"),
        ("retain.empty.message.types", "'z'", f"{DUMMY}'z'"),
    )
} | {
    "recursive.fields.max.depth": (
        protobuf_row,
        {"1": ROW, "2": f"{ROW[:-1]}, 'a': {{'e': None, 'n': None, 'w': None, 'z': None}}}}"},
    )
}

# Option -> function that observes its effect, and the expected result by option value.
OBSERVERS: dict[str, tuple[Observe, dict[str, Any]]] = {
    "subscribe": (chosen, {"orders": ["orders-0", "orders-1"], "bills": ["bills-0", "bills-1"]}),
    "subscribePattern": (chosen, {"^o": ["orders-0", "orders-1"], "ills": ["bills-0", "bills-1"]}),
    "assign": (chosen, {'{"orders": [1]}': ["orders-1"], '{"bills": [0]}': ["bills-0"]}),
    "startingOffsets": (
        start_offsets,
        {"earliest": {"0": 0, "1": 0}, "latest": {"0": 10, "1": 10}, each(3, -1): {"0": 3, "1": 10}},
    ),
    "startingOffsetsByTimestamp": (start_offsets, {each(_AT_5, 0): {"0": 5, "1": 0}, each(0, _AT_5): {"0": 0, "1": 5}}),
    "startingTimestamp": (start_offsets, {"0": {"0": 0, "1": 0}, str(_AT_5): {"0": 5, "1": 5}}),
    "startingOffsetsByTimestampStrategy": (
        lambda cluster, arguments: start_offsets(cluster, {**arguments, "startingTimestamp": _LATE}),
        {"error": "error", "latest": {"0": 10, "1": 10}},
    ),
    "endingOffsets": (end_offsets, {"latest": [10, 10], each(3, -1): [3, 10]}),
    "endingOffsetsByTimestamp": (end_offsets, {each(_AT_5, _AT_5 + 1): [5, 6], each(_AT_5, _AT_5 + 2): [5, 7]}),
    "endingTimestamp": (end_offsets, {str(_AT_5): [5, 5], _LATE: [10, 10]}),
    "commitOffsets": (commits, {"true": 1, "false": 0}),
    "maxOffsetsPerTrigger": (offsets_of_first_batch, {"6": 6, "1000": 20}),
    "maxBytesPerTrigger": (
        lambda cluster, inputs: offsets_of_first_batch(cluster, inputs, more=990) < 2_000,
        {"100": True, "100m": False},
    ),
    "minOffsetsPerTrigger": (second_batch_waits, {"2": False, "3": True}),
    "maxTriggerDelay": (second_batch_waits, {"0": False, "1h": True}),
    "maxRecordsPerPartition": (tasks, {"5": 4, "100": 2}),
    "minPartitions": (tasks, {"1": 2, "4": 4}),
    "maxInputPartitions": (tasks, {"1": 1, "2": 2}),
    "filter": (filtered_offsets, {"offset > 6": [7, 8, 9], "offset IN (2, 1) AND partition < 8": [1, 2]}),
    "columns": (column_names, {"value,offset": "value,offset", "topic": "topic"}),
    "includeHeaders": (column_names, {"true": f"{_ALL},headers", "false": _ALL}),
    "failOnDataLoss": (continues_after_data_loss, {"true": "DataLoss", "false": "done"}),
    "onTopicRecreated": (continues_with_a_recreated_topic, {"fail": "DataLoss", "earliest": "done"}),
    "fetchOffset.numRetries": (offset_retries_take_long, {"0": [False] * 3, "12": [True] * 3}),
    "fetchOffset.retryIntervalMs": (offset_retries_take_long, {"0": [False] * 3, LONG: [True] * 3}),
    **_format_observers("key"),
    **_format_observers("value"),
    **PROTOBUF,
    "valueTypes": (values_of_types, {"One": (["One"], 2, 0), "One,Three": (["One", "Three"], 2, 0)}),
    "valueSubjectNameStrategy": (
        values_of_types,
        {"RecordNameStrategy": (["One"], 2, 0), "TopicRecordNameStrategy": (["OneOfTopic"], 2, 0)},
    ),
    "valueUnionNames": (union_type, {"members": "struct<>", "types": "struct<R: struct<>>"}),
    "onUnknownType": (unknown_type, {"fail": "fails", "null": (2, 0), "skip": (0, 0), "dead-letter": (0, 2)}),
    "schemaIdLocation": (fetched, {"prefix": ["value", "offset"], "header": ["value", "offset", "headers"]}),
    "onDecodeError": (reads_invalid_values, {"fail": "DecodeFailed", "null": "done"}),
    "deadLetterTopic": (dead_letters, {"bills": ["bills"], "letters": ["letters"]}),
    "kafkaConsumer.pollTimeoutMs": (times_out_late, {"100": False, LONG: True}),
    "topic": (written_topic, {"orders": ["orders"], "bills": ["bills"]}),
    "deliveryGuarantee": (
        produce_acks,
        {"at-least-once": [(-1, None)], "exactly-once": [(-1, "p-query-0")], "none": [(0, None)]},
    ),
    "transactionalIdPrefix": (transactional_ids, {"a": ["a-query", "a-query-0"], "b": ["b-query", "b-query-0"]}),
}


def test_option_table_is_observed_completely() -> None:
    applying = {row.name for row in OPTIONS if row.effect is Effect.APPLIES}
    assert set(OBSERVERS) == applying, "each option needs a case in OBSERVERS: docs/code-map.md#a-new-option"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", OBSERVERS)
def test_option_has_an_observable_effect(name: str) -> None:
    assert_effects(name, OBSERVERS, "orders", "bills", "letters")
