"""Kafka's own message definitions, for tests: the fields of each version, a sample value of each, and its frame.

It must not import `protocol.wire.messages`, which it checks.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from protocol.wire.frame import decode_request, decode_response, encode_request, encode_response
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api

CORRELATION_ID, CLIENT_ID = 7, "client-é"
API_BY_NAME = {api.name: api for api in API_BY_KEY.values()}
KAFKA: dict[str, Any] = json.loads(Path(__file__).with_name("kafka_schemas.json").read_text())
KINDS = ("request", "response")
FLAVOURS = ("full", "sparse")
ALL_VERSIONS = [
    (api, version, kind) for api in API_BY_KEY.values() for version in range(api.first, api.last + 1) for kind in KINDS
]


def case_id(value: Any) -> str:
    if isinstance(value, Api):
        return value.name
    return f"{len(value)}-bytes" if isinstance(value, bytes) else str(value)


def kafka_frames() -> list[tuple[Api, int, str, str, bytes]]:
    """Return API, version, kind, flavour, and the frame of Kafka's own Java classes, without its size."""
    lines = Path(__file__).with_name("kafka_frames.txt").read_text().splitlines()
    return [
        (API_BY_NAME[api], int(version), kind, flavour, bytes.fromhex(frame))
        for api, version, kind, flavour, frame in map(str.split, lines)
    ]


def encode(api: Api, version: int, kind: str, value: dict[str, Any]) -> bytes:
    """Return the frame of a message, with its size."""
    if kind == "request":
        return b"".join(encode_request(api, version, CORRELATION_ID, CLIENT_ID, value))
    return b"".join(encode_response(api, version, CORRELATION_ID, value))


def decode(api: Api, version: int, kind: str, frame: bytes) -> dict[str, Any]:
    """Return the body in a frame without its size."""
    return decode_request(frame)[4] if kind == "request" else decode_response(api, version, frame)


def bounds(text: str | None) -> tuple[int, float]:
    """Return first and last version of "3+", "0-12", "4" or "none"."""
    if text is None or text == "none":
        return 1, 0
    if text.endswith("+"):
        return int(text[:-1]), float("inf")
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def within(version: int, text: str | None) -> bool:
    first, last = bounds(text)
    return first <= version <= last


@dataclass(frozen=True)
class KafkaField:
    """A field in one version; `fields` are those of its struct (or of its array's elements)."""

    name: str
    kafka_name: str
    type: str
    nullable: bool
    tag: int | None
    fields: tuple[KafkaField, ...] | None


def sample_of(api: Api, version: int, kind: str, flavour: str = "full") -> dict[str, Any]:
    """Return the sample of a whole message."""
    return sample(fields_of(api, version, kind), sparse=flavour == "sparse")


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def kafka_fields(facts: list[dict[str, Any]], version: int) -> tuple[KafkaField, ...]:
    return tuple(
        KafkaField(
            name=snake_case(fact["name"]),
            kafka_name=fact["name"],
            type=fact["type"],
            nullable=within(version, fact.get("nullable")),
            tag=fact["tag"] if within(version, fact.get("tagged")) else None,
            fields=kafka_fields(fact["fields"], version) if "fields" in fact else None,
        )
        for fact in facts
        if within(version, fact["versions"])
    )


def fields_of(api: Api, version: int, kind: str) -> tuple[KafkaField, ...]:
    return kafka_fields(KAFKA[api.name][kind], version)


NUMBER_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "int64": 64}


def sample(fields: tuple[KafkaField, ...], sparse: bool = False, path: str = "") -> dict[str, Any]:
    """Return a value for every field, always the same for the same path.

    Full: no nulls, no empty lists. Sparse: null for every nullable field, and some empty lists.
    """
    value: dict[str, Any] = {}
    for field in fields:
        local = f"{path}/{field.name}"
        if field.nullable and sparse:
            value[field.name] = None
        elif field.type.startswith("[]"):
            count = crc32(local.encode()) % 2 + (not sparse)
            value[field.name] = [_sample_of(field, field.type[2:], sparse, f"{local}/{i}") for i in range(count)]
        else:
            value[field.name] = _sample_of(field, field.type, sparse, local)
    return value


def _sample_of(field: KafkaField, kind: str, sparse: bool, path: str) -> Any:
    seed = crc32(path.encode())
    if field.fields is not None:
        return sample(field.fields, sparse, path)
    if kind in NUMBER_BITS:
        bits = NUMBER_BITS[kind]
        number = (seed * 0x9E3779B97F4A7C15) % (1 << bits)
        return number - (1 << bits) if number >> (bits - 1) and kind != "uint16" else number
    if kind == "float64":
        return seed / 8
    if kind == "bool":
        return bool(seed & 1)
    if kind == "string":
        return f"{field.name[:12]}-é{seed % 100}"
    if kind == "uuid":
        return bytes((seed + i) % 256 for i in range(16))
    return bytes((seed + 3 * i) % 256 for i in range(1 + seed % 9))


def java_json(fields: tuple[KafkaField, ...], value: dict[str, Any]) -> dict[str, Any]:
    """Return the sample as JSON for Kafka's own converters."""
    return {f.kafka_name[0].lower() + f.kafka_name[1:]: _java_value(f, value[f.name]) for f in fields}


def _java_value(field: KafkaField, value: Any) -> Any:
    if isinstance(value, list):
        return [_java_value(field, element) for element in value]
    if isinstance(value, dict):
        return java_json(field.fields or (), value)
    if isinstance(value, bytes):
        if field.type.removeprefix("[]") == "uuid":
            return base64.urlsafe_b64encode(value).decode().rstrip("=")
        return base64.b64encode(value).decode()
    return value


def common(sent: Any, decoded: Any) -> Any:
    """Return a decoded value, with memoryviews as bytes, and without fields of other versions, which `sent` lacks."""
    if isinstance(sent, dict) and isinstance(decoded, dict):
        return {name: common(sent[name], field) for name, field in decoded.items() if name in sent}
    if isinstance(sent, list) and isinstance(decoded, list) and len(sent) == len(decoded):
        return [common(*pair) for pair in zip(sent, decoded, strict=True)]
    return bytes(decoded) if isinstance(decoded, memoryview) else decoded
