"""`pykafka registry` and `pykafka consume --decode`: schemas of a registry, values as fastavro has written them."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from protocol.testing import FakeKafka, FakeSchemaRegistry
from spark_kafka_source.cli.json_values import json_column
from tests.cli.runs import invoke, invoke_at, refusal, rows
from tests.support.glue_endpoint import GlueEndpoint
from tests.support.value_types import ID, NOTE, record

TIME = {"name": "paid", "type": {"type": "long", "logicalType": "timestamp-millis"}}
PRICE = {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}
ORDER, NEWER = record("Order", ID, TIME, PRICE), record("Order", ID, TIME, PRICE, NOTE)
WRONG = record("Order", ID, TIME, PRICE, {"name": "country", "type": "string"})
PARCEL = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
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
            for number, payload in enumerate(values):
                headers = [("h", b"1")] if number == 1 else []
                running.produce(name, payload, key="k", timestamp_ms=number, headers=headers)
        yield running


def value(schema_id: int, schema: Any, number: int, **more: Any) -> bytes:
    file = io.BytesIO()
    fields = {"id": number, "paid": PAID, "price": Decimal("1.50"), **more}
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), fields)
    return framed(schema_id, file.getvalue())


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def consume(fake: FakeKafka, registry: FakeSchemaRegistry, topic: str, *arguments: str, code: int = 0) -> Result:
    more = {"code": code, "SCHEMA_REGISTRY_URL": registry.url}
    return invoke_at(fake, "consume", topic, "-e", "--subject", SUBJECT, *arguments, **more)


def test_decoded_values_are_lines_of_json(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    result = consume(fake, registry, "valid", "--decode")
    assert result.stdout.splitlines() == [TEXT % (1, "null"), TEXT % (2, '"x"'), ""]
    first = consume(fake, registry, "valid", "--decode", "-f", r"%o %k %v\n", "--grep", '"note": "x"')
    assert first.stdout.splitlines() == [f"1 k {TEXT % (2, chr(34) + 'x' + chr(34))}"]


def test_values_of_glue_are_decoded_by_the_schema_with_the_name_of_the_topic(
    kafka_fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    with GlueEndpoint() as endpoint:
        version = endpoint.add("parcels", PARCEL)
        kafka_fake.create_topic("parcels", 1)
        kafka_fake.produce("parcels", b"\3\0" + uuid.UUID(version.version_id).bytes + b"\x0e", key="k")
        glue = ["-X", "schema.registry.glue.region=eu-north-1", "-X", f"schema.registry.glue.endpoint={endpoint.url}"]
        arguments = ["consume", "parcels", "-e", "--decode", *glue]
        # The address in the environment is for other profiles.
        assert invoke_at(kafka_fake, *arguments, SCHEMA_REGISTRY_URL="http://r:1").stdout == '{"id": 7}\n'
        shown = refusal("registry", "subjects", *glue)
        assert "this client does not request the subjects from AWS Glue" in shown


def test_values_of_glue_are_decoded_by_the_schema_of_a_file_without_aws(kafka_fake: FakeKafka, tmp_path: Path) -> None:
    version_id, file, schemas = uuid.uuid4(), tmp_path / "order.avsc", tmp_path / "schemas.json"
    file.write_text(PARCEL)
    schemas.write_text(json.dumps({str(version_id): json.loads(PARCEL)}))
    kafka_fake.create_topic("parcels", 1)
    kafka_fake.produce("parcels", b"\3\0" + version_id.bytes + b"\x0e", key="k")
    arguments = ["consume", "parcels", "-e", "--decode", "-X", f"schema.registry.glue.schemas=file:{schemas}"]
    result = invoke_at(kafka_fake, *arguments, "--value-schema", str(file), "--value-format", "glue-avro")
    assert result.stdout == '{"id": 7}\n'
    assert "--value-schema of pykafka" in invoke_at(kafka_fake, *arguments, code=2).output


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
    kafka_fake: FakeKafka, registry: FakeSchemaRegistry, kind: str, text: str, value: bytes
) -> None:
    kafka_fake.create_topic("other", 1)
    kafka_fake.produce("other", framed(registry.register("other-value", text, kind), value))
    printed = invoke_at(kafka_fake, "consume", "other", "-e", "--decode", SCHEMA_REGISTRY_URL=registry.url).stdout
    order = json.loads(printed)
    assert (order["id"], order["counts"]) == (7, {"true": 2})
    assert order["took"] == ("1.000001280s" if kind == "JSON" else "1.000001s")
    assert kind == "JSON" or order["next"]["id"] == 8


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
    kafka_fake: FakeKafka, registry: FakeSchemaRegistry, tmp_path: Path, format: str, schema: str, value: bytes
) -> None:
    file = tmp_path / "schema"
    file.write_text(schema, encoding="utf-8-sig")
    kafka_fake.create_topic("other", 1)
    kafka_fake.produce("other", value, None, b"\xff", key=framed(registry.register("other-key", '"long"'), b"\x0e"))
    message = ("--value-message", "Order") if format == "protobuf" else ()
    run = partial(
        invoke_at, kafka_fake, *f"consume other -e --value-schema {file} --value-format {format}".split(), *message
    )
    result = run("--decode", code=1)
    first, tombstone, invalid = result.stdout.splitlines()
    assert (json.loads(first)["id"], json.loads(first)["note"], tombstone, invalid) == (7, "x", "", "")
    assert "other-0, offset 2: does not decode: value: " in result.stderr
    assert run("--decode-key", "--schema-registry", registry.url, "-n", "1", "-f", r"%k\n").stdout == "7\n"
    for path in (tmp_path / "t.parquet", tmp_path / "t.arrow"):
        run("--decode", "--to", str(path), code=1)
        table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
        assert table.column("value").to_pylist()[0]["id"] == 7


def test_missing_subject_registry_or_decode_is_named(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    run = partial(invoke_at, fake, "consume", "valid", "-e")
    missing = run("--decode", "--schema-registry", registry.url, code=1)
    assert "valid-value with the status 404" in missing.stderr
    assert "Give --schema-registry URL" in run("--decode", code=2).stderr
    idle = run("--subject", "x", code=2)
    assert "The options of schemas and types need --decode" in idle.stderr


def test_values_of_all_types_are_json() -> None:
    cases: list[tuple[pa.DataType, Any, Any]] = [
        (pa.list_(pa.date32()), [20_484, None], ["2026-01-31", None]),
        (pa.timestamp("us"), 2**62, 2**62),
        (pa.map_(pa.string(), pa.float32()), [('a"', 0.1)], {'a"': 0.1}),
        (pa.map_(pa.date32(), pa.timestamp("ms")), [(20_484, 0)], {"2026-01-31": "1970-01-01T00:00:00"}),
        (pa.binary(), b"\xff", "/w=="),
        (pa.float64(), float("nan"), "NaN"),
        (pa.bool_(), True, True),
        (pa.duration("us"), -1_500_000, "-1.500000s"),
    ]
    kind = pa.struct([(f"c{number}", kind) for number, (kind, *_) in enumerate(cases)])
    row = {f"c{number}": value for number, (_, value, _) in enumerate(cases)}
    text, null = json_column(pa.array([row, None], kind)).to_pylist()
    assert list(json.loads(text).values()) == [printed for *_, printed in cases]
    assert null is None


def test_subjects_are_listed_with_their_latest_or_all_versions(registry: FakeSchemaRegistry) -> None:
    registry.register("address", '"string"', references=[{"name": "Order", "subject": SUBJECT, "version": 1}])
    where = ("--schema-registry", registry.url)
    assert invoke("registry", "subjects", *where).stdout.splitlines() == [
        "SUBJECT       VERSION  ID  TYPE  REFERENCES",
        "address       1        3   AVRO  orders-value:1",
        "orders-value  2        2   AVRO  -",
    ]
    all_versions = invoke("registry", "subjects", SUBJECT, "-a", "-o", "json", *where)
    assert [(row["version"], row["id"]) for row in rows(all_versions)] == [(1, 1), (2, 2)]


def test_schema_is_shown_by_subject_version_and_id(registry: FakeSchemaRegistry) -> None:
    run = partial(invoke, "registry", SCHEMA_REGISTRY_URL=registry.url)
    assert json.loads(run("schema", SUBJECT).stdout) == NEWER
    assert json.loads(run("schema", SUBJECT, "--version", "1").stdout) == ORDER
    (row,) = rows(run("schema", "--id", "2", "-o", "json"))
    assert (row["id"], row["type"], json.loads(row["schema"])) == (2, "AVRO", NEWER)
    for wrong in (("--id", "1", SUBJECT), (), ("--id", "1", "--version", "1")):
        assert "Give either a subject" in run("schema", *wrong, code=2).stderr
    assert "with the status 404" in run("schema", "--id", "99", code=1).stderr


def test_new_version_is_checked_without_being_registered(registry: FakeSchemaRegistry, tmp_path: Path) -> None:
    run = partial(invoke, "registry", SCHEMA_REGISTRY_URL=registry.url)
    file = tmp_path / "order.avsc"

    def check(schema: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        file.write_text(json.dumps(schema))
        return rows(run("check", SUBJECT, str(file), "-o", "json", *arguments, code=code))[0]

    assert check(ORDER) == {"subject": SUBJECT, "compatible": True, "version": 1, "id": 1, "reason": None}
    assert check({**ORDER, "fields": ORDER["fields"][:2]})["version"] is None
    wrong = check(WRONG, code=1)
    assert (wrong["compatible"], "country" in wrong["reason"]) == (False, True)
    assert len(run("subjects", SUBJECT, "--versions").stdout.splitlines()) == 3
    piped = run("check", SUBJECT, "-", typed=json.dumps(NEWER))
    assert piped.stdout.splitlines()[1].split() == [SUBJECT, "True", "2", "2", "-"]
    file.write_text("{")
    assert "status 422" in run("check", SUBJECT, str(file), code=1).stderr
    assert "NAME=SUBJECT:VERSION" in run("check", "s", str(file), "--reference", "x", code=2).stderr


def test_registry_of_a_profile_is_asked_with_its_credentials(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    with FakeSchemaRegistry(user_info="alice:geheim") as registry, FakeKafka() as fake:
        file.write_text(
            f'[profiles.prod]\nbootstrap.servers = "{fake.bootstrap_servers}"\n'
            f'schema.registry.url = "{registry.url}"\n'
            'schema.registry.basic.auth.user.info = "alice:geheim"\n'
        )
        run = partial(invoke, PYKAFKA_CONFIG=str(file))
        result = run("registry", "subjects", "--profile", "prod")
        assert result.stdout.splitlines() == ["SUBJECT  VERSION  ID  TYPE  REFERENCES"]
        run("topics", "list", "--profile", "prod")
        shown = run("profile", "show", "prod").stdout
        assert registry.url in shown
        assert "geheim" not in shown
        refused = run("registry", "subjects", "--schema-registry", registry.url, code=1)
        assert "with the status 401" in refused.stderr


@pytest.mark.parametrize("command", [("registry", "subjects"), ("consume", "orders", "-e", "--decode")])
def test_credentials_of_a_profile_are_not_sent_to_another_registry(
    fake: FakeKafka, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file, user_info = tmp_path / "config.toml", "schema.registry.basic.auth.user.info"
    with FakeSchemaRegistry(user_info="alice:geheim") as second:
        file.write_text(
            f'[profiles.prod]\nbootstrap.servers = "{fake.bootstrap_servers}"\n'
            f'schema.registry.url = "http://prod-1:8081,http://prod-2:8081"\n{user_info} = "alice:geheim"\n'
        )
        run = partial(invoke, *command, "--profile", "prod", code=1, PYKAFKA_CONFIG=str(file))
        for named in (("--schema-registry", second.url), ("-X", f"schema.registry.url={second.url}")):
            refused = run(*named).stderr
            assert f"Not sent to {second.url}, since they are for http://prod-1" in refused
            assert f": {user_info}. To send" in refused
            assert "with the status 401" in refused
        own = run("--schema-registry", second.url, "-X", f"{user_info}=alice:geheim", code=None).stderr
        assert "with the status 401" not in own
        assert "Not sent" not in own
        assert (
            "Not sent"
            not in run("--schema-registry", "http://prod-2:8081/", "-X", "schema.registry.max.retries=0").stderr
        )


def test_registry_that_does_not_respond_is_one_error_line() -> None:
    quick = ("-X", "schema.registry.max.retries=0", "--timeout", "200ms")
    failed = invoke("registry", "subjects", "--schema-registry", "http://127.0.0.1:1", *quick, code=1)
    (line,) = failed.stderr.splitlines()
    assert line.startswith("Error: the schema registry does not respond")
    unknown = ("registry", "subjects", "-X", "schema.registry.urls=x")
    assert "is unknown" in refusal(*unknown, SCHEMA_REGISTRY_URL="http://x:1")
