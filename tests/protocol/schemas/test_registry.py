"""The registry's client: each answer and failure; Confluent's own client judges the double, and reads Apicurio."""

from __future__ import annotations

import gc
import json
import threading
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from protocol.errors import ConfigurationError, KafkaError, RegistryFailed
from protocol.schemas import registry as registry_module
from protocol.schemas.registry import RegisteredSchema, SchemaReference, SchemaRegistry, is_unknown
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.schema_registry import FakeSchemaRegistry
from tests.protocol.schemas.conftest import OAUTH, client
from tests.support.cloud_endpoints import Answer, CloudEndpoint, Request, json_answer
from tests.support.refusing_address import refusing_address
from tests.support.tls_ends import authority_without_key_identifiers
from tests.support.token_endpoint import Endpoint

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
WITH_NOTE = ORDER.replace("]", ', {"name": "note", "type": "string", "default": ""}]')
WITHOUT_DEFAULT = WITH_NOTE.replace(', "default": ""', "")


def test_schema_is_found_by_id_and_by_subject(server: FakeSchemaRegistry) -> None:
    registry = client(server.url)
    first = registry.register("orders-value", RegisteredSchema(ORDER))
    second = registry.register("orders-value", RegisteredSchema(WITH_NOTE))
    assert registry.by_id(first).text == ORDER
    assert registry.version("orders-value").text == WITH_NOTE
    assert registry.version("orders-value", 1).schema_id == first
    with pytest.raises(RegistryFailed, match=r"version 0 of the subject orders-value with the status 404"):
        registry.version("orders-value", 0)
    assert (registry.version("orders-value").version, registry.version("orders-value").schema_id) == (2, second)
    assert registry.by_guid(str(registry.version("orders-value", 1).guid)).text == ORDER
    assert registry.lookup("orders-value", RegisteredSchema(ORDER)).version == 1
    assert (registry.subjects(), registry.versions("orders-value")) == (["orders-value"], [1, 2])


def test_unknown_id_is_asked_for_again_after_a_while(server: FakeSchemaRegistry) -> None:
    clock = ManualClock()
    registry = client(server.url, clock)
    for _ in range(3):
        with pytest.raises(RegistryFailed, match=r"schema with the id 7 with the status 404 \(error code 40403\)"):
            registry.by_id(7)
    assert len(server.requests) == 1
    clock.advance(11)
    for number in range(7):
        server.register(f"s{number}", ORDER.replace("id", f"id{number}"))
    assert "id6" in registry.by_id(7).text


def test_failures_of_an_unknown_id_do_not_keep_or_change_each_other(registry: SchemaRegistry) -> None:
    """A caller appends to the message; the frames of its traceback hold its batch."""

    def refusal() -> tuple[str, int, weakref.ref[Any]]:
        batch = np.zeros(1)
        try:
            registry.by_id(7)
        except RegistryFailed as error:
            seen = str(error), len(traceback.extract_tb(error.__traceback__)), weakref.ref(batch)
            error.message += " more"
            return seen
        pytest.fail("the id is unknown")

    first, second, third = refusal(), refusal(), refusal()
    assert first[0] == second[0] == third[0]
    assert second[1] == third[1]
    gc.collect()
    assert [batch() for *_, batch in (first, second, third)] == [None] * 3


def test_unknown_ids_are_remembered_up_to_a_limit(
    server: FakeSchemaRegistry, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_MAX_UNKNOWN", 3)
    for schema_id in (7, 8, 9, 10, 10, 8, 7):
        with pytest.raises(RegistryFailed, match=f"id {schema_id} "):
            registry.by_id(schema_id)
    assert server.requests == [f"GET /schemas/ids/{schema_id}" for schema_id in (7, 8, 9, 10, 7)]


def test_references_come_behind_those_that_they_use(server: FakeSchemaRegistry) -> None:
    server.register("c", '{"type": "enum", "name": "C", "symbols": ["X"]}')
    c = {"name": "C", "subject": "c", "version": 1}
    server.register("b", '{"type": "record", "name": "B", "fields": [{"name": "c", "type": "C"}]}', references=[c])
    registry = client(server.url)
    schema = RegisteredSchema("", references=(SchemaReference("B", "b", 1), SchemaReference("C", "c", 1)))
    assert list(registry.references(schema)) == ["C", "B"]


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"[]", b"{}", b"null", b"<html>", b"[" * 9_999),
        *(b'{"schema": 1, "references": 5}', b'{"schema": 1, "ruleSet": [1]}', b'{"schema": "1", "version": "x"}'),
        b'{"schema": "1", "references": [{"name": "a", "subject": "a", "version": Infinity}]}',
    ],
)
def test_answer_that_is_no_schema_is_an_error_of_the_registry(answer: bytes) -> None:
    with CloudEndpoint() as server:
        server.otherwise = 200, {}, answer
        with pytest.raises(RegistryFailed):
            client(server.url).by_id(1)


@pytest.mark.parametrize(
    "answer", [b"[]", b"{}", b"null", b"7", b'{"a": 1}', b"[{}, []]", b'{"id": "x", "messages": 7}']
)
def test_unexpected_answer_is_an_error_of_the_registry(answer: bytes) -> None:
    with CloudEndpoint() as server:
        server.otherwise = 200, {}, answer
        registry = client(server.url)
        if answer != b"[]":
            for request in (registry.subjects, lambda: registry.versions("a")):
                with pytest.raises(RegistryFailed, match=r"for the subject.* check .*schema\.registry\.url"):
                    request()
        for send in (registry.register, registry.compatible, registry.lookup):
            with pytest.raises(RegistryFailed):
                send("a", RegisteredSchema(ORDER))


def test_ca_of_the_system_is_trusted_as_by_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = authority_without_key_identifiers(tmp_path, monkeypatch)
    with Endpoint(authority.issue("registry", ["127.0.0.1"])) as endpoint:
        endpoint.answers = [(200, {}, b'{"id": 7}')]
        with pytest.raises(RegistryFailed, match="is not trusted"):
            client(endpoint.url).register("orders-value", RegisteredSchema(ORDER))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert client(endpoint.url).register("orders-value", RegisteredSchema(ORDER)) == 7


class Gated(CloudEndpoint):
    """A registry whose response for the id 1 waits until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.opened, self.arrived = threading.Event(), threading.Event()
        self.otherwise = json_answer(schema=ORDER)
        self.answers["GET /schemas/ids/1"] = self._wait

    def _wait(self, request: Request) -> Answer:
        self.arrived.set()
        self.opened.wait(30)
        return json_answer(schema=ORDER)


@pytest.fixture
def gated() -> Iterator[Gated]:
    with Gated() as running:
        yield running
        running.opened.set()


def test_known_and_other_ids_do_not_wait_for_a_slow_response(gated: Gated) -> None:
    with ThreadPoolExecutor() as pool:
        registry = client(gated.url)
        registry.by_id(2)
        slow = pool.submit(registry.by_id, 1)
        assert gated.arrived.wait(20)
        for schema_id in (2, 3):
            assert pool.submit(registry.by_id, schema_id).result(20).text == ORDER
        assert not slow.done()
        gated.opened.set()
        assert slow.result(20).text == ORDER


def test_threads_that_want_one_id_share_its_request(gated: Gated) -> None:
    with ThreadPoolExecutor() as pool:
        registry = client(gated.url)
        collected = [pool.submit(registry.by_id, 1) for _ in range(4)]
        assert gated.arrived.wait(20)
        gated.opened.set()
        assert {future.result(20).text for future in collected} == {ORDER}
        assert [request.path for request in gated.requests] == ["/schemas/ids/1"]


def test_wait_for_the_request_of_another_thread_ends_at_its_deadline(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor() as pool:
        registry = client(gated.url)
        slow = pool.submit(registry.by_id, 1)
        assert gated.arrived.wait(20)
        monkeypatch.setattr(registry, "_longest_request_ms", lambda: 50)
        with pytest.raises(RegistryFailed, match="for the schema with the id 1: another thread is still waiting"):
            registry.by_id(1)
        gated.opened.set()
        assert slow.result(20).text == ORDER


def test_incompatible_schema_is_refused_with_the_reason(server: FakeSchemaRegistry) -> None:
    registry = client(server.url)
    registry.register("orders-value", RegisteredSchema(ORDER))
    refusal = r"new version of the subject orders-value with the status 409: .*note is missing.* reader's$"
    with pytest.raises(RegistryFailed, match=refusal):
        registry.register("orders-value", RegisteredSchema(WITHOUT_DEFAULT))
    assert registry.compatible("orders-value", RegisteredSchema(WITH_NOTE)) == (True, [])
    ok, messages = registry.compatible("orders-value", RegisteredSchema(WITHOUT_DEFAULT))
    assert not ok
    assert "note is missing" in messages[0]


def test_passing_failures_are_retried_and_the_next_address_is_asked(server: FakeSchemaRegistry) -> None:
    with refusing_address() as away:
        registry = client(f"http://{away}, {server.url}/")
        server.fail_next(503, 2)
        assert registry.register("a", RegisteredSchema(ORDER)) == 1
        server.fail_next(503, 1)
        assert registry.by_id(1).text == ORDER
    assert server.requests == ["POST /subjects/a/versions"] * 3 + ["GET /schemas/ids/1"] * 2


def test_user_is_sent_and_wrong_one_is_refused_with_the_property() -> None:
    with FakeSchemaRegistry(user_info="me:hunter2") as server:
        assert client(server.url, basic_auth_user_info="me:hunter2").subjects() == []
        with pytest.raises(RegistryFailed, match=r"status 401: .*basic.auth.user.info") as refused:
            client(server.url, basic_auth_user_info="me:wrong").subjects()
    assert "wrong" not in str(refused.value)


def test_secret_is_taken_from_the_environment_when_a_request_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_USER", "me:hunter2")
    with FakeSchemaRegistry(user_info="me:hunter2") as server:
        registry = client(server.url, basic_auth_user_info="${env:REGISTRY_USER}:".removesuffix(":"))
        assert registry.subjects() == []
        assert "hunter2" not in repr(registry.config)


def test_token_comes_from_the_endpoint_once(server: FakeSchemaRegistry) -> None:
    with Endpoint() as endpoint:
        endpoint.answers = [(200, {}, b'{"access_token": "t0ken", "expires_in": 100}')]
        clock = ManualClock()
        registry = client(
            server.url, clock, bearer_auth_credentials_source="OAUTHBEARER", bearer_auth_client_id="me",
            bearer_auth_client_secret="hunter2", bearer_auth_issuer_endpoint_url=endpoint.url,
        )  # fmt: skip
        registry.subjects()
        registry.subjects()
        assert len(endpoint.asked) == 1
        clock.advance(90)
        registry.subjects()
        assert len(endpoint.asked) == 2


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("endpoint", ConfigurationError, r"issuer\.endpoint\.url is neither http://… nor https://…"),
        ("", RegistryFailed, r"issuer\.endpoint\.url: no token from http://127.0.0.1:\d+: .* 401 \('invalid_client'\)"),
    ],
)
def test_failed_token_is_reported_with_the_properties_of_the_registry(
    server: FakeSchemaRegistry, url: str, error: type[KafkaError], message: str
) -> None:
    with Endpoint() as endpoint:
        endpoint.answers = [(401, {}, b'{"error": "invalid_client"}')]
        properties = {**OAUTH, "bearer.auth.issuer.endpoint.url": url or endpoint.url}
        registry = client(server.url, **{name.replace(".", "_"): value for name, value in properties.items()})
        with pytest.raises(error, match=rf"schema\.registry\.bearer\.auth\.{message}") as failed:
            registry.subjects()
    assert {str(name).split(".")[0] for name in failed.value.context["settings"]} == {"schema"}


@pytest.mark.parametrize("token", ["hunter2\nx", "hunter2\u2014"])
def test_token_that_no_header_can_have_is_refused_and_not_shown(server: FakeSchemaRegistry, token: str) -> None:
    with pytest.raises(ConfigurationError, match=r"schema\.registry\.bearer\.auth\.token gives a value") as refused:
        client(server.url, bearer_auth_token=token).subjects()
    assert "hunter2" not in str(refused.value)
    assert client(server.url, bearer_auth_token="hunter2\n").subjects() == []


def test_confluents_client_works_with_the_double(server: FakeSchemaRegistry) -> None:
    reference = SchemaRegistryClient({"url": server.url})
    schema_id = reference.register_schema("orders-value", Schema(ORDER, "AVRO"))
    assert reference.register_schema("orders-value", Schema(WITH_NOTE, "AVRO")) == schema_id + 1
    assert reference.get_latest_version("orders-value").version == 2
    assert reference.get_schema(schema_id).schema_str == ORDER
    assert reference.lookup_schema("orders-value", Schema(ORDER, "AVRO")).schema_id == schema_id
    assert reference.get_subjects() == ["orders-value"]
    assert reference.test_compatibility("orders-value", Schema(WITH_NOTE, "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        reference.register_schema("orders-value", Schema(WITHOUT_DEFAULT.replace("note", "other"), "AVRO"))
    assert refused.value.http_status_code == 409
    with pytest.raises(SchemaRegistryError) as missing:
        reference.get_latest_version("nothing")
    assert missing.value.error_code == 40401


def test_page_that_an_address_does_not_have_is_no_unknown_schema() -> None:
    """A proxy answers with its own page: the schema may exist."""
    with Endpoint() as proxy:
        proxy.answers = [(404, {"Content-Length": "4"}, b"oops")]
        with pytest.raises(RegistryFailed, match="status 404; check the address") as raised:
            client(proxy.url.removesuffix("/token?tenant=a")).register("orders-value", RegisteredSchema(ORDER))
    assert not is_unknown(raised.value)


# -- Apicurio: replies that version 2.6.13 has given --------------------------------------------

APICURIO = "/apis/ccompat/v7"
ADDRESS = '{"type":"record","name":"Address","namespace":"shop","fields":[{"name":"city","type":"string"}]}'
PARCEL = '{"type":"record","name":"Parcel","namespace":"shop","fields":[{"name":"to","type":"shop.Address"}]}'
OF_ADDRESS = [{"name": "shop.Address", "subject": "address", "version": 1}]
PARCEL_VERSION = {"id": 3, "subject": "parcels-value", "version": 2, "schema": PARCEL, "references": OF_ADDRESS}
ADDRESS_VERSION = {"id": 1, "subject": "address", "version": 1, "schema": ADDRESS, "references": []}
CONFLUENTS = "application/vnd.schemaregistry.v1+json"
INCOMPATIBLE = (
    "Incompatible artifact: address [AVRO], num of incompatible diffs: {1}, list of diff types: [town at /fields/0] "
    "Causes: town at /fields/0"
)
APICURIO_REPLIES: dict[str, Any] = {
    "GET /subjects": ["address", "parcels-value", "proto-value"],
    "GET /subjects/parcels-value/versions": [1, 2],
    "GET /subjects/parcels-value/versions/latest": PARCEL_VERSION,
    "GET /subjects/address/versions/1": ADDRESS_VERSION,
    "GET /schemas/ids/3": {"schema": PARCEL, "references": OF_ADDRESS},
    "GET /schemas/ids/4": {
        "schema": 'syntax = "proto3"; message M { int64 id = 1; }', "schemaType": "PROTOBUF", "references": [],
    },
    "POST /subjects/parcels-value": PARCEL_VERSION,
    "POST /subjects/parcels-value/versions": {"id": 3},
    "POST /compatibility/subjects/address/versions": {"is_compatible": False, "reason": INCOMPATIBLE},
}  # fmt: skip
# It does not resolve references for this check.
INVALID = json_answer(422, error_code=42201, message="Could not execute compatibility rule on invalid Avro schema")


@pytest.fixture
def apicurio() -> Iterator[CloudEndpoint]:
    with CloudEndpoint() as server:
        for request, reply in APICURIO_REPLIES.items():
            content = {"Content-Type": "application/json"}, json.dumps(reply).encode()
            server.answers[request.replace(" ", f" {APICURIO}")] = 200, *content
        server.answers[f"POST {APICURIO}/compatibility/subjects/parcels-value/versions"] = INVALID
        missing = "No artifact with ID 'bills-value' in group 'null' was found."
        latest = f"GET {APICURIO}/subjects/bills-value/versions/latest"
        server.answers[latest] = json_answer(404, error_code=40401, message=missing)
        yield server


@pytest.mark.parametrize("slash", ["", "/"])
def test_apicurio_is_used_below_its_path(apicurio: CloudEndpoint, slash: str) -> None:
    registry = client(f"{apicurio.url}{APICURIO}{slash}")
    latest = registry.version("parcels-value")
    assert (latest.version, latest.schema_id, latest.kind, latest.guid, latest.rules) == (2, 3, "AVRO", None, ())
    assert [schema.text for schema in registry.references(latest).values()] == [ADDRESS]
    assert (registry.by_id(3).text, registry.by_id(4).kind) == (PARCEL, "PROTOBUF")
    assert (registry.subjects()[:2], registry.versions("parcels-value")) == (["address", "parcels-value"], [1, 2])
    assert registry.lookup("parcels-value", latest).version == 2
    assert registry.register("parcels-value", latest, normalize=True) == 3
    assert {request.path[: len(APICURIO)] for request in apicurio.requests} == {APICURIO}
    assert all(CONFLUENTS in request.headers["accept"] for request in apicurio.requests)
    posted = [request for request in apicurio.requests if request.method == "POST"]
    assert {request.headers["content-type"] for request in posted} == {CONFLUENTS}
    (of_reference,) = (request for request in apicurio.requests if request.path.endswith("/address/versions/1"))
    assert of_reference.query == {"deleted": ["true"]}
    assert all(json.loads(request.body) == {"schema": PARCEL, "references": OF_ADDRESS} for request in posted)
    confluents = SchemaRegistryClient({"url": f"{apicurio.url}{APICURIO}"})
    judged = confluents.get_latest_version("parcels-value")
    assert (judged.version, judged.schema_id, judged.schema.schema_str) == (2, 3, latest.text)
    assert confluents.get_schema(3).schema_str == registry.by_id(3).text
    address = replace(latest, text=ADDRESS.replace("city", "town"), references=())
    assert registry.compatible("address", address) == (False, [INCOMPATIBLE])
    with pytest.raises(RegistryFailed, match="42201"):
        registry.compatible("parcels-value", latest)
    with pytest.raises(RegistryFailed, match=r"\(error code 40401\): No artifact with ID 'bills-value'") as failed:
        registry.version("bills-value")
    assert is_unknown(failed.value)
