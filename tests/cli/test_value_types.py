"""`pykafka consume --decode` of topics with several types of values, as Confluent's serialisers write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from protocol.testing import FakeKafka, FakeSchemaRegistry
from tests.cli.runs import invoke_at
from tests.support import value_types
from tests.support.value_types import (
    FIRST,
    LOGIN,
    ORDER,
    REFUND,
    SECOND,
    STRATEGIES,
    Write,
    write_events,
)

TYPES = "--value-types shop.Order,shop.Refund"
PROTO = "--decode --value-schema {proto}"
Consume = Callable[..., Result]
registry, fake, write = value_types.registry, value_types.fake, value_types.write


@pytest.fixture
def consume(fake: FakeKafka, registry: FakeSchemaRegistry) -> Consume:
    """Return `consume(arguments, *further, topic, code)`, which runs the command until the log end."""

    def run(arguments: str, *further: str, topic: str = "events", code: int = 0) -> Result:
        words = ("consume", topic, "-e", *arguments.split(), *further)
        return invoke_at(fake, *words, code=code, SCHEMA_REGISTRY_URL=registry.url)

    return run


def objects(result: Result, *names: str) -> list[Any]:
    """Return a field of each line, or several of them; None for one that it lacks."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [tuple(map(line.get, names)) if len(names) > 1 else line.get(*names) for line in lines]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_type_has_a_field_and_its_name_beside_the_value(
    fake: FakeKafka, write: Write, consume: Consume, tmp_path: Path, strategy: str
) -> None:
    write(ORDER, {"id": 1}, strategy)
    fake.produce("events", None, partition=0)
    write(REFUND, {"reason": "late"}, strategy)
    by_type = f"--decode {TYPES} --subject-name-strategy {strategy}"
    prefix = "events-" if strategy.startswith("Topic") else ""
    by_subject = f"--decode --subject {prefix}shop.Order,{prefix}shop.Refund"
    expected = [(FIRST, "Order"), (None, None), (SECOND, "Refund")]
    for arguments in (by_type, by_subject):
        assert objects(consume(f"{arguments} -J"), "value", "value_type") == expected
    assert consume(by_type).stdout.splitlines() == [json.dumps(FIRST), "", json.dumps(SECOND)]
    assert objects(consume(f"{by_type} -J --grep late"), "offset") == [2]
    file = tmp_path / "events.parquet"
    consume(f"{by_type} --to {file}")
    table = pq.read_table(file)
    assert table.column_names[-1] == "value_type"
    rows = table.select(["value", "value_type"]).to_pylist()
    assert [(row["value"], row["value_type"]) for row in rows] == expected


def test_lines_with_headers_have_the_type_too(fake: FakeKafka, write: Write, consume: Consume) -> None:
    write(ORDER, {"id": 1})
    fake.produce("events", fake.records("events")[0].value, headers=[("h", b"1")], partition=0)
    write(REFUND, {"reason": "late"})
    lines = consume(f"--decode {TYPES} -J").stdout.splitlines()
    assert [list(json.loads(line)) for line in lines] == [
        ["topic", "partition", "offset", "timestamp_ms", "key", "value", "value_type", "headers"]
    ] * 3


def test_records_of_other_types_fail_are_null_or_are_left_out(write: Write, consume: Consume) -> None:
    write_events(write)
    failed = consume(f"--decode {TYPES} -J", code=1)
    place, _, reason = failed.stderr.splitlines()[0].partition(": does not decode: ")
    assert place == "events-0, offset 1"
    assert reason.endswith("its type shop.Login is none of Order, Refund (see --on-unknown-type)")
    assert objects(failed, "error") == [None, reason, None]
    null = consume(f"--decode {TYPES} -J --on-unknown-type null")
    assert objects(null, "value", "value_type", "error") == [
        (FIRST, "Order", None),
        (None, "shop.Login", None),
        (SECOND, "Refund", None),
    ]
    skip = f"--decode {TYPES} -J --on-unknown-type skip"
    assert objects(consume(skip), "offset", "value") == [(0, FIRST), (2, SECOND)]
    assert objects(consume(f"{skip} -n 1 -o 1"), "offset") == [2]
    assert consume(f"{skip} -o 1:2").stdout == ""


def test_group_continues_behind_records_that_are_left_out(fake: FakeKafka, write: Write, consume: Consume) -> None:
    write_events(write)
    skip = f"--decode {TYPES} -J --on-unknown-type skip -g readers"
    assert objects(consume(f"{skip} -n 1"), "offset") == [0]
    assert objects(consume(skip), "offset") == [2]
    write(LOGIN, {"user": "bob"})
    assert consume(skip).stdout == ""
    assert objects(consume(f"--decode {TYPES} -J -g readers"), "offset") == []


def test_value_that_does_not_decode_is_no_other_type(fake: FakeKafka, write: Write, consume: Consume) -> None:
    write_events(write)
    fake.produce("events", b"no schema", partition=0)
    failed = consume(f"--decode {TYPES} -J --on-unknown-type skip", code=1)
    assert objects(failed, "value", "value_type") == [(FIRST, "Order"), (SECOND, "Refund"), (None, None)]
    assert "offset 3: does not decode: value: it does not begin with a zero byte" in failed.stderr


def test_records_of_a_union_are_types_with_and_without_a_registry(
    fake: FakeKafka, registry: FakeSchemaRegistry, write: Write, consume: Consume, tmp_path: Path
) -> None:
    registry.register("events-value", json.dumps([ORDER, REFUND]))
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"}, "RecordNameStrategy")
    write(LOGIN, {"user": "ann"})
    union = "--decode --union-types -J --on-unknown-type skip"
    assert objects(consume(union), "value", "value_type") == [(FIRST, "Order"), (SECOND, "Refund")]
    members = consume("--decode -J -n 1")
    assert objects(members, "value") == [{"member0": {"id": 1}, "member1": None}]
    file, raw = tmp_path / "union.avsc", BytesIO()
    file.write_text(json.dumps([ORDER, REFUND]))
    fastavro.schemaless_writer(raw, fastavro.parse_schema([ORDER, REFUND]), ("shop.Refund", {"reason": "late"}))
    fake.create_topic("plain", 1)
    fake.produce("plain", raw.getvalue(), partition=0)
    fixed = consume(f"--decode --union-types -J --value-schema {file} --value-format avro", topic="plain")
    assert objects(fixed, "value", "value_type") == [(SECOND, "Refund")]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (f"--decode {TYPES} --subject a", "--value-types and --subject both say which types"),
        ("--decode --subject a,,b", "--subject: a name is empty, or there twice"),
        ("--decode --value-types a,a", "'a,a': a name is empty, or there twice"),
        (f"--decode {TYPES} --value-schema {{file}} --value-format avro", "--value-schema is one schema, but"),
        ("--decode --subject a,b --union-types", "--union-types reads the types of one schema, but --value-types or"),
        ("--decode --union-types", "--union-types: the schema of the subject events-value is record shop.Order, no un"),
        ("--decode --union-types --subject text", "--union-types: the schema is one of JSON, not of AVRO"),
        ("--decode --on-unknown-type skip", "--on-unknown-type needs several types: --value-types, --subject A,B or"),
        ("--decode --value-format avro", "--value-schema and --value-format need each other"),
        (PROTO, "--value-schema and --value-format need each other"),
        (f"{PROTO} --value-format json --value-message A", "--value-message needs --value-format protobuf"),
        (f"{PROTO} --value-format avro", "--value-schema: the Avro schema is not JSON"),
        (f"{PROTO} --value-format protobuf --value-message B", "--value-schema: the Protobuf schema has no"),
        (f"{PROTO} --value-format protobuf --subject s", "--subject has no effect with --value-schema"),
        ("--decode --value-schema missing --value-format protobuf", "File 'missing' does not exist"),
        ("--value-schema {proto} --value-format protobuf", "The options of schemas and types need --decode"),
        (TYPES, "The options of schemas and types need --decode"),
        ("--on-unknown-type null", "The options of schemas and types need --decode"),
    ],
)
def test_wrong_options_are_refused_by_name(
    registry: FakeSchemaRegistry, consume: Consume, tmp_path: Path, arguments: str, problem: str
) -> None:
    registry.register("events-value", json.dumps(ORDER))
    registry.register("text", '{"type": "string"}', "JSON")
    file, proto = tmp_path / "order.avsc", tmp_path / "order.proto"
    file.write_text(json.dumps(ORDER))
    proto.write_text("message A { optional int32 a = 1; }")
    assert problem in " ".join(consume(arguments.format(file=file, proto=proto), code=2).stderr.split())
