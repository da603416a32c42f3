"""Apicurio as a registry: replies that version 2.6.13 has given; Confluent's own client reads them, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from protocol.errors import RegistryFailed
from protocol.schemas.registry import is_unknown
from tests.protocol.schemas.conftest import client
from tests.support.cloud_endpoints import CloudEndpoint, json_answer

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
