"""The message schemas equal Kafka's own definitions, and the frames those of its Java classes, in every version."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from protocol.wire.frame import decode_request
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api, Array, Field, Struct
from tests.protocol.wire import kafka_facts
from tests.protocol.wire.kafka_facts import (
    FLAVOURS,
    KAFKA,
    KINDS,
    bounds,
    case_id,
    sample_of,
    snake_case,
    within,
)

FRAMES = {tuple(case): frame for *case, frame in kafka_facts.kafka_frames()}

OUR_DEFAULTS = {
    "ListOffsets.request.replica_id": -1,  # Kafka's default 0 would mean broker 0
    "InitProducerId.request.transactional_id": None,  # brokers refuse Kafka's default, the empty string
}
LAST_VERSIONS = {"AddPartitionsToTxn": 3}  # later ones are for brokers


def _inner(field: Field) -> Struct | None:
    kind = field.type.of if isinstance(field.type, Array) else field.type
    return kind if isinstance(kind, Struct) else None


@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_versions_and_flexibility_equal_kafkas(api: Api) -> None:
    facts = KAFKA[api.name]
    first, last = bounds(facts["versions"])
    assert api.key == facts["key"]
    assert api.first >= first
    newest = LAST_VERSIONS.get(api.name, last - (1 if facts["unstable"] else 0))
    assert api.last == newest, "speak up to the newest stable version"
    for flexible in facts["flexible"]:
        assert api.flexible_since == (None if flexible == "none" else bounds(flexible)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_defaults_nulls_and_ignorable_fields_equal_kafkas(api: Api, kind: str) -> None:
    struct = api.request if kind == "request" else api.response
    assert list(_differences(struct, KAFKA[api.name][kind], api, f"{api.name}.{kind}")) == []


def _differences(struct: Struct, facts: list[dict[str, Any]], api: Api, path: str) -> Any:
    facts_by_name = {snake_case(fact["name"]): fact for fact in facts}
    for field in struct.fields:
        fact, local = facts_by_name[field.name], f"{path}.{field.name}"
        default = OUR_DEFAULTS.get(local, _kafka_default(fact)) if "fields" not in fact else field.default_value()
        if field.default_value() != default:
            yield f"{local}: default {field.default_value()!r}, Kafka's is {default!r}"
        versions = range(api.first, api.last + 1)
        for version in filter(field.present, versions):
            if field.nullable(version) != within(version, fact.get("nullable")):
                yield f"{local}: nullable in version {version}: {field.nullable(version)}"
        missing_somewhere = not all(map(field.present, versions))
        if missing_somewhere and field.ignorable != bool(fact.get("ignorable")):
            yield f"{local}: ignorable={field.ignorable}, Kafka's is {fact.get('ignorable')}"
        inner = _inner(field)
        if inner is not None:
            yield from _differences(inner, fact["fields"], api, local)


def _kafka_default(fact: dict[str, Any]) -> Any:
    kind, default = fact["type"], fact.get("default")
    if default == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "bool":
        return str(default).lower() == "true"
    if kind in ("string", "uuid", "bytes", "records"):
        return default or {"string": "", "uuid": bytes(16), "bytes": b"", "records": None}[kind]
    return int(str(default), 0) if default is not None else 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_messages_are_encoded_and_decoded_as_by_kafka(api: Api, kind: str) -> None:
    for version, flavour in product(range(api.first, api.last + 1), FLAVOURS):
        value, frame = sample_of(api, version, kind, flavour), FRAMES[api, version, kind, flavour]
        encoded = kafka_facts.encode(api, version, kind, value)
        assert encoded == len(frame).to_bytes(4, "big") + frame, f"version {version}, {flavour}"
        if kind == "request":
            assert decode_request(frame)[:4] == (api, version, kafka_facts.CORRELATION_ID, kafka_facts.CLIENT_ID)
        decoded = kafka_facts.decode(api, version, kind, frame)
        assert kafka_facts.common(value, decoded) == value, f"version {version}, {flavour}"
        again = kafka_facts.encode(api, version, kind, decoded)
        assert again == encoded, "a decoded message can be sent on as it is"
