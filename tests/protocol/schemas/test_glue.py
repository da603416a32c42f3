"""Values of AWS Glue's schema registry, written by AWS's own serialisers, and the client of the registry."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import traceback
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import protocol
from protocol.errors import ConfigurationError, RegistryFailed
from protocol.schemas import glue
from protocol.schemas.formats import language_of
from protocol.schemas.glue import open_registry
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.registry import RegisteredSchema, SchemaRegistry
from protocol.schemas.values import ColumnDecoder, choose_schema, choose_types, prefix_of
from protocol.testing import FakeKafka
from tests.protocol.schemas.conftest import ID, LONG, config, decoded, fixed_registry, glue_frame, header_column
from tests.support.cloud_endpoints import echo
from tests.support.glue_endpoint import GlueEndpoint, error

FRAMES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("glue_frames.json").read_text())
KEY, SECRET, TOKEN = "AKIDOFTHETEST", "secret-key-of-the-test", "session-token-of-the-test/" + "aB3" * 30
WITH_NOTE = LONG.replace("}]", '}, {"name": "note", "type": "string", "default": "none"}]')
OTHER = LONG.replace('"R"', '"S"')


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)


@pytest.fixture
def endpoint() -> Iterator[GlueEndpoint]:
    with GlueEndpoint() as running:
        yield running


@pytest.fixture
def registry(endpoint: GlueEndpoint) -> SchemaRegistry:
    return client(endpoint)


def properties(endpoint: GlueEndpoint, **more: str) -> dict[str, str]:
    """Return `schema.registry.glue.*` of the endpoint; `max_retries` is schema.registry.max.retries."""
    names = {f"schema.registry.{name.replace('_', '.')}": text for name, text in more.items()}
    glue = {"schema.registry.glue.region": "eu-central-1", "schema.registry.glue.endpoint": endpoint.url}
    return {"schema.registry.max.retries": "0", **glue, **names}


def client(endpoint: GlueEndpoint, **more: str) -> SchemaRegistry:
    return open_registry(config(**properties(endpoint, **more)))


@pytest.mark.parametrize("sample", FRAMES, ids=lambda sample: f"{sample['format']}-{sample['compression']}")
def test_frame_of_javas_serialiser_decodes(sample: dict[str, Any]) -> None:
    format, frame = sample["format"], bytes.fromhex(sample["frame"])
    registry = fixed_registry({sample["version_id"]: sample["schema"]})
    protobuf = ProtobufSettings(sample.get("message"))
    schema = choose_schema(format, registry, "orders", text=sample["schema"], protobuf=protobuf)
    (value,), invalid = decoded(ColumnDecoder(schema, registry), [frame])
    assert invalid == []
    assert value == {**sample["value"], **({"amounts": [("net", 8)]} if "amounts" in sample["value"] else {})}

    if sample["compression"] == "NONE":
        writer, message = language_of(format).writer(sample["schema"], {}, sample.get("message"), schema.type)
        written = writer.write(pa.array([value], schema.type))[0].as_py()
        prefix = prefix_of(format, RegisteredSchema("", guid=sample["version_id"]))
        assert prefix + message + written == frame


def test_values_of_several_versions_and_nulls_become_one_column(
    endpoint: GlueEndpoint, registry: SchemaRegistry
) -> None:
    first, second = endpoint.add("orders", LONG), endpoint.add("orders", WITH_NOTE)
    schema = choose_schema("glue-avro", registry, "orders")
    values = [
        glue_frame(first.version_id, b"\x02"),
        None,
        glue_frame(second.version_id, b"\x04\x02a", 5),
        glue_frame(first.version_id, b"\x06", 5),
        glue_frame(second.version_id, b"\x08\x02b"),
    ]
    expected = [{"id": 1, "note": "none"}, None, {"id": 2, "note": "a"}, {"id": 3, "note": "none"}]
    expected.append({"id": 4, "note": "b"})
    decoder = ColumnDecoder(schema, registry)
    assert decoded(decoder, values) == (expected, [])
    column = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
    headers_of_confluent = header_column([[("__value_schema_id", b"\x01" + bytes(16))]] * len(values))
    assert decoder.decode(column, headers_of_confluent)[0].to_pylist() == expected
    # The latest version for the reader's schema, and each version id once.
    assert endpoint.operations == ["GetSchemaVersion"] * 3
    assert decoded(decoder, []) == ([], [])
    assert decoded(decoder, [None]) == ([None], [])


def test_garbage_with_random_ids_is_refused_beyond_a_number_of_requests(
    endpoint: GlueEndpoint, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of most values are requested, and none of the others is remembered as unknown."""
    monkeypatch.setattr(glue, "_MAX_VERSION_IDS", 3)
    known = endpoint.add("orders", LONG)
    decoder = ColumnDecoder(choose_schema("glue-avro", registry, "orders"), registry)
    requests = len(endpoint.requests)
    garbage = [glue_frame(str(uuid.UUID(int=number)), b"\x02") for number in range(1, 10)]
    valid = [glue_frame(known.version_id, b"\x04"), glue_frame(known.version_id, b"\x06", 5)]
    column, errors = decoded(decoder, [*garbage, None, *valid])
    assert column == [None] * 10 + [{"id": 2}, {"id": 3}]
    assert len(endpoint.requests) == requests + 3
    assert sorted(text.partition(": ")[2] or text for text in errors) == [
        *["it and the values near it have more than 3 schema version ids, and its id is rare"] * 7,
        *["the registry does not have it"] * 2,
    ]
    for number in range(5, 8):
        endpoint.add("orders", LONG, version_id=str(uuid.UUID(int=number)))
    assert decoded(decoder, garbage[4:7]) == ([{"id": 1}] * 3, [])


def test_protobuf_message_that_the_schema_does_not_have_is_invalid() -> None:
    text = 'syntax = "proto3"; message B { int32 id = 1; } message A { }'
    decoder = ColumnDecoder(ReaderSchema("glue-protobuf", text), fixed_registry({ID: text}))
    payloads = [b"\x01\x08\x07", b"\x00", b"\x02", b"\x80\x80\x80\x80\x80\x01", b"", b"\x81\x00\x08\x07"]
    column, errors = decoded(decoder, [glue_frame(ID, payload) for payload in payloads])
    assert column == [{"id": 7}, None, None, None, None, {"id": 7}]
    assert [text.partition(": ")[2] for text in errors] == [
        "its message is A, not B",
        "its message is number [2], which its schema does not have, not B",
        *["its message indexes are truncated"] * 2,
    ]


def test_several_types_are_read_by_the_names_of_their_schemas(endpoint: GlueEndpoint, registry: SchemaRegistry) -> None:
    r, s = endpoint.add("orders-R", LONG), endpoint.add("orders-S", OTHER)
    decoder = ColumnDecoder(choose_types("glue-avro", registry, {"orders-R": None, "orders-S": None}), registry)
    values = [glue_frame(s.version_id, b"\x02", 5), glue_frame(r.version_id, b"\x04"), b"\x03"]
    column, invalid = decoder.decode(pa.array(values))
    assert column.to_pylist() == [{"R": None, "S": {"id": 1}}, {"R": {"id": 2}, "S": None}, None]
    assert [failure.row for failure in invalid] == [2]
    names, without_type = decoder.type_names(pa.array(values))
    assert names.to_pylist() == ["S", "R", None]
    assert without_type == invalid


# -- the client -----------------------------------------------------------------------------------


def test_version_is_found_by_name_number_and_text(endpoint: GlueEndpoint) -> None:
    first, second = (endpoint.add("orders", text, registry="shop") for text in (LONG, WITH_NOTE))
    registry = client(endpoint, glue_registry_name="shop")
    assert (registry.version("orders").guid, registry.version("orders", 1).guid) == (
        second.version_id,
        first.version_id,
    )
    assert registry.lookup("orders", RegisteredSchema(LONG)).guid == first.version_id
    requests = len(endpoint.requests)
    assert registry.version("orders", 1).text == LONG
    assert registry.version("orders").text == WITH_NOTE
    assert len(endpoint.requests) == requests + 1  # only the latest version may change
    assert endpoint.requests[0].headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={KEY}/")
    assert "/eu-central-1/glue/aws4_request" in endpoint.requests[0].headers["authorization"]


def test_unknown_schema_is_an_error_with_the_remedy(registry: SchemaRegistry, endpoint: GlueEndpoint) -> None:
    with pytest.raises(RegistryFailed, match=r"AWS Glue in eu-central-1 has not returned version latest of the schema "
                       r"orders: EntityNotFoundException: .* check schema\.registry\.glue\.registry\.name, which is "
                       "default-registry"):  # fmt: skip
        registry.version("orders")
    for _ in range(2):
        with pytest.raises(RegistryFailed, match="has not returned the schema version ab000"):
            registry.by_guid(ID)
    assert len(endpoint.requests) == 2  # an unknown id is not requested at once again
    endpoint.add("orders", LONG, status="FAILURE")
    with pytest.raises(RegistryFailed, match="version latest of the schema orders with the status FAILURE"):
        registry.version("orders")
    with pytest.raises(ConfigurationError, match="does not request the subjects from AWS Glue; use the aws command"):
        registry.subjects()


OVERLOADED = r"AWS Glue is overloaded, .* a higher schema\.registry\.max\.retries, which is 0, .* more often"
NOT_GLUE = r"orders: the response is not one of AWS Glue \([A-Za-z]+Error\); check schema\.registry\.glue\.endpoint$"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (error("AccessDeniedException", f"{KEY} is not authorized"), "allow glue:GetSchemaVersion to the role"),
        (error("UnrecognizedClientException", "invalid token"), "check schema.registry.glue.region and .*AWS_PROFILE"),
        (error("InternalServiceException", "later", 500), f"InternalServiceException.*later; {OVERLOADED}$"),
        ((503, {}, b""), f"{OVERLOADED}$"),
        (error("ThrottlingException", "Rate exceeded"), f"Rate exceeded; {OVERLOADED}$"),
        (error("TooManyRequestsException", "slow", 429), f"slow; {OVERLOADED}$"),
        ((200, {}, b"{}"), "the response of AWS Glue for version latest of the schema orders has no schema; check "),
        ((200, {}, b"no json"), "version latest of the schema orders"),
        ((200, {}, b"null"), NOT_GLUE),
        ((200, {}, b"[]"), NOT_GLUE),
        ((200, {}, b"\xff"), NOT_GLUE),
        ((200, {}, b"[" * 100_000), NOT_GLUE),
        (echo, "has not returned version latest of the schema orders"),
        (
            None,
            r"has not returned .* check schema\.registry\.glue\.region and schema\.registry\.glue\.endpoint; .* may "
            r"need a higher schema\.registry\.request\.timeout\.ms, which is 200$",
        ),
    ],
)
def test_failure_of_glue_names_the_remedy_and_no_secret(
    answer: Any, message: str, endpoint: GlueEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answers.clear()
    endpoint.otherwise = answer
    with pytest.raises(RegistryFailed, match=message) as failed:
        client(endpoint, request_timeout_ms="200").version("orders")
    shown = "".join(traceback.format_exception(failed.value)) + repr(failed.value) + repr(failed.value.__dict__)
    shown += "".join(capsys.readouterr())
    for secret in (KEY, SECRET, TOKEN):
        assert secret not in shown


def test_request_ends_after_its_timeouts_and_the_waits_between_them(endpoint: GlueEndpoint) -> None:
    registry: Any = client(endpoint, request_timeout_ms="100")
    ended = threading.Event()
    registry._glue = types.SimpleNamespace(get_schema_version=lambda **_: ended.wait(60))
    with pytest.raises(RegistryFailed, match=r"no response within 0\.1 s; .*request\.timeout\.ms, which is 100$"):
        registry.version("orders")
    ended.set()
    longest = [
        client(endpoint, request_timeout_ms="700", max_retries=retries)._longest_request_ms()
        for retries in ("0", "1", "3", "6")
    ]
    assert longest == [700, 2_400, 9_800, 55_900]


def test_credentials_that_are_replaced_are_taken_when_the_old_ones_expire(
    endpoint: GlueEndpoint, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    answer, valid = endpoint.answers["POST /"], ["FIRST"]

    def answer_if_valid(request: Any) -> Any:
        credentials = request.headers["authorization"].partition("Credential=")[2]
        is_valid = credentials.startswith(f"{valid[0]}/")
        return answer(request) if is_valid else error("ExpiredTokenException", "The token is expired")

    def replace_file(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")

    endpoint.answers["POST /"] = answer_if_valid
    endpoint.add("orders", LONG)
    with pytest.raises(RegistryFailed, match=r"NoCredentialsError: .* set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        registry.version("orders")
    replace_file("FIRST")
    assert registry.version("orders").text == LONG
    valid[0] = "SECOND"
    with pytest.raises(RegistryFailed, match=r"ExpiredTokenException.*set AWS_ACCESS_KEY_ID"):
        registry.version("orders")
    assert len(endpoint.requests) == 3  # once more, with the same credentials
    replace_file("SECOND")
    assert registry.version("orders").text == LONG
    assert len(endpoint.requests) == 5
    assert registry.version("orders").text == LONG
    assert len(endpoint.requests) == 6


def test_missing_botocore_names_the_extra(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigurationError, match=r"requires the package boto3 .*'spark-kafka-source\[aws\]'"):
        registry.version("orders")


def test_other_formats_do_not_import_botocore() -> None:
    code = (
        "import sys, protocol.schemas.values, protocol.decoded_columns; "
        "from protocol.schemas.glue import open_registry; from protocol.schemas.registry_config import parse_registry; "
        "open_registry(parse_registry({'schema.registry.url': 'http://r:1'})); "
        "sys.exit('botocore' in sys.modules or 'protocol.clouds' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- schemas without AWS --------------------------------------------------------------------------


def test_schemas_by_id_need_no_aws(tmp_path: Path) -> None:
    path = tmp_path / "schemas.json"
    path.write_text(json.dumps({"AB000000-0000-0000-0000-000000000001": json.loads(LONG)}))
    registry = open_registry(config(**{"schema.registry.glue.schemas": f"file:{path}"}))
    path.unlink()
    decoder = ColumnDecoder(choose_schema("glue-avro", registry, "orders", text=WITH_NOTE), registry)
    ids = [f"ab000000-0000-0000-0000-00000000000{number}" for number in (1, 2)]
    column, errors = decoded(decoder, [glue_frame(version_id, b"\x02", 5) for version_id in ids])
    assert column == [{"id": 1, "note": "none"}, None]
    assert errors == [f"schema id {ids[1]}: the registry does not have it"]
    with pytest.raises(
        ConfigurationError, match=r"by version id only, not version latest .*; give .* valueSchema or keySchema, "
    ):
        choose_schema("glue-avro", registry, "orders")


def test_format_of_another_registry_is_refused(registry: SchemaRegistry) -> None:
    with pytest.raises(ConfigurationError, match=r"confluent-avro needs schema\.registry\.url"):
        choose_schema("confluent-avro", registry, "orders")
    confluents = SchemaRegistry(config(**{"schema.registry.url": "http://r:1"}))
    with pytest.raises(ConfigurationError, match=r"glue-avro needs schema\.registry\.glue\.region"):
        choose_schema("glue-avro", confluents, "orders")


def test_read_decodes_by_the_schema_with_the_name_of_the_topic(endpoint: GlueEndpoint) -> None:
    key, value = endpoint.add("orders", LONG), endpoint.add("orders", WITH_NOTE)
    with FakeKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", glue_frame(value.version_id, b"\x04\x02a", 5), key=glue_frame(key.version_id, b"\x02"))
        cluster = {"bootstrap.servers": kafka.bootstrap_servers, **properties(endpoint)}
        table = protocol.read(cluster, "orders", key_format="glue-avro", value_format="glue-avro").read_all()
    assert table.column("key").to_pylist() == [{"id": 1, "note": "none"}]
    assert table.column("value").to_pylist() == [{"id": 2, "note": "a"}]


def test_schema_of_another_language_names_the_format(endpoint: GlueEndpoint, registry: SchemaRegistry) -> None:
    version = endpoint.add("orders", 'syntax = "proto3"; message M { }', "PROTOBUF")
    with pytest.raises(ConfigurationError, match="type PROTOBUF, which glue-avro cannot read; use glue-protobuf"):
        choose_schema("glue-avro", registry, "orders")
    decoder = ColumnDecoder(ReaderSchema("glue-avro", LONG), registry)
    assert "type PROTOBUF, not AVRO" in decoded(decoder, [glue_frame(version.version_id, b"\x02")])[1][0]
