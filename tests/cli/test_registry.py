"""`pykafka registry` and `pykafka consume --decode`: schemas of a registry, values as fastavro has written them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from protocol import Producer
from protocol.testing import FakeKafka, FakeSchemaRegistry
from spark_kafka_source.cli.json_values import json_column
from spark_kafka_source.cli.pykafka import pykafka

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "paid", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
NEWER: dict[str, Any] = {
    **ORDER,
    "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
}
WRONG = {**ORDER, "fields": [*ORDER["fields"], {"name": "country", "type": "string"}]}
SUBJECT = "orders-value"
PAID = datetime(2026, 1, 31, 6, 0, 0, 5_000, timezone.utc)
TEXT = '{"id": %d, "paid": "2026-01-31T06:00:00.005000Z", "price": 1.50, "note": %s}'


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        running.register(SUBJECT, json.dumps(ORDER))
        running.register(SUBJECT, json.dumps(NEWER))
        yield running


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeKafka]:
    """A cluster whose topic `orders` has values of both versions, a tombstone, and one value that does not decode."""
    with FakeKafka() as running:
        for name in ("orders", "valid"):
            running.create_topic(name, 1)
            values = [value(1, ORDER, 1), value(2, NEWER, 2, note="x"), None, *([b"bad"] if name == "orders" else ())]
            with Producer({"bootstrap.servers": running.bootstrap_servers}) as producer:
                for number, payload in enumerate(values):
                    headers = [("h", b"1")] if number == 1 else []
                    producer.send(name, payload, key=b"k", partition=0, timestamp_ms=number, headers=headers)
        yield running


def value(schema_id: int, schema: Any, number: int, **more: Any) -> bytes:
    file = io.BytesIO()
    fields = {"id": number, "paid": PAID, "price": Decimal("1.50"), **more}
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), fields)
    return b"\0" + schema_id.to_bytes(4, "big") + file.getvalue()


def run(*arguments: str, code: int = 0, typed: str | None = None, **env: str | None) -> Result:
    without = {"KAFKA_BOOTSTRAP_SERVERS": None, "SCHEMA_REGISTRY_URL": None, "PYKAFKA_CONFIG": "none"}
    result = CliRunner().invoke(pykafka, arguments, env={**without, **env}, input=typed)
    assert result.exit_code == code, result.output
    return result


def consume(fake: FakeKafka, registry: FakeSchemaRegistry, topic: str, *arguments: str, code: int = 0) -> Result:
    where = ("--bootstrap-server", fake.bootstrap_servers, "--schema-registry", registry.url)
    return run("consume", topic, "-e", "--subject", SUBJECT, *where, *arguments, code=code)


# -- consume --decode -------------------------------------------------------------------------


def test_decoded_values_are_lines_of_json(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    result = consume(fake, registry, "valid", "--decode")
    assert result.stdout.splitlines() == [TEXT % (1, "null"), TEXT % (2, '"x"'), ""]
    first = consume(fake, registry, "valid", "--decode", "-f", r"%o %k %v\n", "--grep", '"note": "x"')
    assert first.stdout.splitlines() == [f"1 k {TEXT % (2, chr(34) + 'x' + chr(34))}"]


def test_decoded_values_are_objects_in_json_lines(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    lines = consume(fake, registry, "orders", "--decode", "-o", "json", code=1).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [record["value"] and record["value"]["id"] for record in rows] == [1, 2, None, None]
    assert rows[1]["value"] == {"id": 2, "paid": "2026-01-31T06:00:00.005000Z", "price": 1.5, "note": "x"}
    assert rows[1]["headers"] == [{"key": "h", "value": "1"}]
    # A batch without headers and errors is rendered by columns.
    (first,) = consume(fake, registry, "valid", "--decode", "-J", "--grep", '"id": 1,').stdout.splitlines()
    assert json.loads(first) == {**rows[0], "topic": "valid"}
    assert [record.get("error") for record in rows] == [
        *(None, None, None),
        "value: it does not begin with a zero byte and a schema id",
    ]


def test_value_that_does_not_decode_is_reported_if_it_is_printed(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    failed = consume(fake, registry, "orders", "--decode", code=1)
    assert failed.stdout.splitlines() == [TEXT % (1, "null"), TEXT % (2, '"x"'), "", ""]
    assert failed.stderr.splitlines() == [
        "orders-0, offset 3: does not decode: value: it does not begin with a zero byte and a schema id",
        "Error: 1 records did not decode",
    ]
    assert consume(fake, registry, "orders", "--decode", "-n", "2").stderr == ""


def test_decoded_values_are_columns_of_a_file(fake: FakeKafka, registry: FakeSchemaRegistry, tmp_path: Path) -> None:
    for suffix in ("parquet", "arrow"):
        file = tmp_path / f"orders.{suffix}"
        consume(fake, registry, "valid", "--decode", "--to", str(file))
        table = pq.read_table(file) if suffix == "parquet" else pa.ipc.open_file(file).read_all()
        assert table.column_names[:4] == ["topic", "partition", "key", "value"]
        assert [schema.name for schema in table.schema.field("value").type] == ["id", "paid", "price", "note"]
        assert table.column("value").to_pylist() == [
            {"id": 1, "paid": PAID, "price": Decimal("1.50"), "note": None},
            {"id": 2, "paid": PAID, "price": Decimal("1.50"), "note": "x"},
            None,
        ]
        assert table.column("key").to_pylist() == [b"k"] * 3


def test_decoding_by_a_subject_with_rules_is_refused(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    rule = {"name": "hidePII", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT"}
    registry.register(SUBJECT, json.dumps(NEWER), rule_set={"domainRules": [rule]})
    refused = consume(fake, registry, "valid", "--decode", code=2)
    assert "version 3 of the subject orders-value has rules that are not applied here" in refused.stderr


def test_keys_are_decoded_by_their_own_subject(registry: FakeSchemaRegistry) -> None:
    key_id = registry.register("keyed-key", '"long"')
    registry.register("keyed-value", '"string"')
    with FakeKafka() as fake:
        fake.create_topic("keyed", 1)
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            framed = [b"\0" + number.to_bytes(4, "big") for number in (key_id, key_id + 1)]
            producer.send("keyed", framed[1] + b"\6abc", key=framed[0] + b"\x0e")
        where = ("--bootstrap-server", fake.bootstrap_servers, "--schema-registry", registry.url)
        result = run("consume", "keyed", "-e", "--decode-key", "-f", r"%k %v\n", *where)
        assert result.stdout == '7 "abc"\n'


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (
            "PROTOBUF",
            'syntax = "proto3"; import "google/protobuf/duration.proto"; message Order { int64 id = 1; '
            "google.protobuf.Duration took = 2; map<bool, int32> counts = 3; Order next = 4; }",
            b"\0\x08\x07\x12\x05\x08\x01\x10\x80\x0a\x1a\x04\x08\x01\x10\x02\x22\x02\x08\x08",
        ),
        (
            "JSON",
            '{"type": "object", "properties": {"id": {"type": "integer"}, "took": {"type": "string"}, "counts": '
            '{"type": "object", "additionalProperties": {"type": "integer"}}}}',
            b'{"id": 7, "took": "1.000001280s", "counts": {"true": 2}}',
        ),
    ],
)
def test_protobuf_and_json_are_decoded_as_their_subject_says(
    registry: FakeSchemaRegistry, kind: str, text: str, value: bytes
) -> None:
    schema_id = registry.register("other-value", text, kind)
    with FakeKafka() as fake:
        fake.create_topic("other", 1)
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            producer.send("other", b"\0" + schema_id.to_bytes(4, "big") + value)
        where = ("--bootstrap-server", fake.bootstrap_servers, "--schema-registry", registry.url)
        rows = json.loads(run("consume", "other", "-e", "--decode", *where).stdout)
        assert (rows["id"], rows["counts"]) == (7, {"true": 2})
        assert rows["took"] == ("1.000001280s" if kind == "JSON" else "1.000001s")
        assert kind == "JSON" or rows["next"]["id"] == 8


@pytest.mark.parametrize(
    ("format", "schema", "value"),
    [
        ("avro", json.dumps(NEWER), value(1, NEWER, 7, note="x")[5:]),
        (
            "protobuf",
            'syntax = "proto3"; message First { } message Order { int64 id = 1; string note = 2; Order next = 3; }',
            b"\x08\x07\x12\x01x",
        ),
        ("json", "id BIGINT, note STRING", b'{"id": 7, "note": "x", "more": 1}'),
        ("json", '{"properties": {"id": {"type": "integer"}, "note": {}}}', b'{"id": 7, "note": "x"}'),
    ],
)
def test_values_are_decoded_by_the_schema_of_a_file(
    registry: FakeSchemaRegistry, tmp_path: Path, format: str, schema: str, value: bytes
) -> None:
    file, table = tmp_path / "schema", tmp_path / "t.parquet"
    file.write_text(schema, encoding="utf-8-sig")
    key_id = registry.register("t-key", '"long"')
    with FakeKafka() as fake:
        fake.create_topic("t", 1)
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            for payload in (value, None, b"\xff"):
                producer.send("t", payload, key=b"\0" + key_id.to_bytes(4, "big") + b"\x0e")
        message = ("--value-message", "Order") if format == "protobuf" else ()
        inputs = ("--bootstrap-server", fake.bootstrap_servers, "--value-schema", str(file), "--value-format", format)
        result = run("consume", "t", "-e", "--decode", *inputs, *message, code=1)
        first, tombstone, invalid = result.stdout.splitlines()
        assert (json.loads(first)["id"], json.loads(first)["note"], tombstone, invalid) == (7, "x", "", "")
        assert "t-0, offset 2: does not decode: value: " in result.stderr
        keys = ("--decode-key", "--schema-registry", registry.url, "-n", "1", "-f", r"%k\n")
        assert run("consume", "t", "-e", *inputs, *message, *keys).stdout == "7\n"
        run("consume", "t", "-e", "--decode", *inputs, *message, "--to", str(table), code=1)
    assert pq.read_table(table).column("value").to_pylist()[0]["id"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--value-format avro", "--value-schema and --value-format need each other"),
        ("--value-schema {file}", "--value-schema and --value-format need each other"),
        (
            "--value-schema {file} --value-format json --value-message A",
            "--value-message needs --value-format protobuf",
        ),
        ("--value-schema {file} --value-format avro", "--value-schema: the Avro schema is not JSON"),
        (
            "--value-schema {file} --value-format protobuf --value-message B",
            "--value-schema: the Protobuf schema has no",
        ),
        ("--value-schema {file} --value-format protobuf --subject s", "--subject has no effect with --value-schema"),
        ("--value-schema missing --value-format protobuf", "File 'missing' does not exist"),
    ],
)
def test_wrong_options_of_a_fixed_schema_are_named(
    fake: FakeKafka, tmp_path: Path, arguments: str, message: str
) -> None:
    file = tmp_path / "order.proto"
    file.write_text("message A { optional int32 a = 1; }")
    where = ("--bootstrap-server", fake.bootstrap_servers)
    failed = run("consume", "valid", "-e", "--decode", *where, *arguments.format(file=file).split(), code=2)
    assert message in failed.stderr
    inputs = ("--value-schema", str(file), "--value-format", "protobuf")
    assert "--value-schema need --decode" in run("consume", "valid", "-e", *where, *inputs, code=2).stderr


def test_missing_subject_registry_or_decode_is_named(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    where = ("--bootstrap-server", fake.bootstrap_servers)
    missing = run("consume", "valid", "-e", "--decode", *where, "--schema-registry", registry.url, code=1)
    assert "valid-value with the status 404" in missing.stderr
    assert "Give --schema-registry URL" in run("consume", "valid", "-e", "--decode", *where, code=2).stderr
    idle = run("consume", "valid", "-e", *where, "--subject", "x", code=2)
    assert "--subject, --schema-registry and --value-schema need --decode" in idle.stderr


def test_values_of_all_types_are_json() -> None:
    kind = pa.struct(
        [
            ("days", pa.list_(pa.date32())),
            ("far", pa.timestamp("us")),
            ("map", pa.map_(pa.string(), pa.float32())),
            ("bytes", pa.binary()),
            ("not", pa.float64()),
            ("flag", pa.bool_()),
            ("took", pa.duration("us")),
        ]
    )
    rows = [
        {
            "days": [20_484, None],
            "far": 2**62,
            "map": [('a"', 0.1)],
            "bytes": b"\xff",
            "not": float("nan"),
            "flag": True,
            "took": -1_500_000,
        },
        None,
    ]
    text, null = json_column(pa.array(rows, kind)).to_pylist()
    assert json.loads(text) == {
        "days": ["2026-01-31", None],
        "far": 2**62,
        "map": {'a"': 0.1},
        "bytes": "/w==",
        "not": "NaN",
        "flag": True,
        "took": "-1.500000s",
    }
    assert null is None


# -- registry ---------------------------------------------------------------------------------


def test_subjects_are_listed_with_their_latest_or_all_versions(registry: FakeSchemaRegistry) -> None:
    registry.register("address", '"string"', references=[{"name": "Order", "subject": SUBJECT, "version": 1}])
    where = ("--schema-registry", registry.url)
    assert run("registry", "subjects", *where).stdout.splitlines() == [
        "SUBJECT       VERSION  ID  TYPE  REFERENCES",
        "address       1        3   AVRO  orders-value:1",
        "orders-value  2        2   AVRO  -",
    ]
    all_versions = run("registry", "subjects", SUBJECT, "-a", "-o", "json", *where)
    assert [(load["version"], load["id"]) for load in json.loads(all_versions.stdout)] == [(1, 1), (2, 2)]


def test_schema_is_shown_by_subject_version_and_id(registry: FakeSchemaRegistry) -> None:
    env = {"SCHEMA_REGISTRY_URL": registry.url}
    assert json.loads(run("registry", "schema", SUBJECT, **env).stdout) == NEWER
    assert json.loads(run("registry", "schema", SUBJECT, "--version", "1", **env).stdout) == ORDER
    (row,) = json.loads(run("registry", "schema", "--id", "2", "-o", "json", **env).stdout)
    assert (row["id"], row["type"], json.loads(row["schema"])) == (2, "AVRO", NEWER)
    for wrong in (("--id", "1", SUBJECT), (), ("--id", "1", "--version", "1")):
        assert "Give either a subject" in run("registry", "schema", *wrong, code=2, **env).stderr
    assert "with the status 404" in run("registry", "schema", "--id", "99", code=1, **env).stderr


def test_new_version_is_checked_without_being_registered(registry: FakeSchemaRegistry, tmp_path: Path) -> None:
    env = {"SCHEMA_REGISTRY_URL": registry.url}
    file = tmp_path / "order.avsc"

    def check(schema: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        file.write_text(json.dumps(schema))
        return json.loads(
            run("registry", "check", SUBJECT, str(file), "-o", "json", *arguments, code=code, **env).stdout
        )[0]

    assert check(ORDER) == {"subject": SUBJECT, "compatible": True, "version": 1, "id": 1, "reason": None}
    assert check({**ORDER, "fields": ORDER["fields"][:2]})["version"] is None
    wrong = check(WRONG, code=1)
    assert (wrong["compatible"], "country" in wrong["reason"]) == (False, True)
    assert len(run("registry", "subjects", SUBJECT, "--versions", **env).stdout.splitlines()) == 3
    piped = run("registry", "check", SUBJECT, "-", typed=json.dumps(NEWER), **env)
    assert piped.stdout.splitlines()[1].split() == [SUBJECT, "True", "2", "2", "-"]
    file.write_text("{")
    assert "status 422" in run("registry", "check", SUBJECT, str(file), code=1, **env).stderr
    assert "NAME=SUBJECT:VERSION" in run("registry", "check", "s", str(file), "--reference", "x", code=2, **env).stderr


def test_registry_of_a_profile_is_asked_with_its_credentials(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    with FakeSchemaRegistry(user_info="alice:geheim") as registry, FakeKafka() as fake:
        file.write_text(
            f'[profiles.prod]\nbootstrap.servers = "{fake.bootstrap_servers}"\n'
            f'schema.registry.url = "{registry.url}"\n'
            'schema.registry.basic.auth.user.info = "alice:geheim"\n'
        )
        env = {"PYKAFKA_CONFIG": str(file)}
        result = run("registry", "subjects", "--profile", "prod", **env)
        assert result.stdout.splitlines() == ["SUBJECT  VERSION  ID  TYPE  REFERENCES"]
        run("topics", "list", "--profile", "prod", **env)
        shown = run("profile", "show", "prod", **env).stdout
        assert registry.url in shown
        assert "geheim" not in shown
        refused = run("registry", "subjects", "--schema-registry", registry.url, code=1, **env)
        assert "with the status 401" in refused.stderr


def test_registry_that_does_not_respond_is_one_error_line() -> None:
    quick = ("-X", "schema.registry.max.retries=0", "--timeout", "200ms")
    failed = run("registry", "subjects", "--schema-registry", "http://127.0.0.1:1", *quick, code=1)
    (line,) = failed.stderr.splitlines()
    assert line.startswith("Error: the schema registry does not respond")
    assert "is unknown" in run("registry", "subjects", "-X", "schema.registry.urls=x", code=2,
                               SCHEMA_REGISTRY_URL="http://x:1").stderr  # fmt: skip
