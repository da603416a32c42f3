"""Replies with wrong lengths, truncated, or mutated at random: this package's errors, at once, and little memory.

The positions of lengths come from Kafka's own definitions, not from the code under test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from protocol.wire.frame import decode_response
from protocol.wire.schema import Api
from tests.protocol.wire.kafka_facts import CORRELATION_ID, KafkaField, case_id, fields_of, kafka_frames, sample_of
from tests.support.hostile import cases, corrupted, provoke, tracing
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

CODES = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}

REPLIES = [
    (api, version, flavour, frame) for api, version, kind, flavour, frame in kafka_frames() if kind == "response"
]


# -- positions of lengths -------------------------------------------------------------------------


@dataclass(frozen=True)
class Length:
    """A length or a count in a frame."""

    what: str
    kind: str
    value: bytes


Piece = bytes | Length


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def length(label: str, count: int | None, kind: str) -> Length:
    if kind == "varint":
        return Length(label, kind, uvarint(0 if count is None else count + 1))
    return Length(label, kind, struct.pack(">h" if kind == "int16" else ">i", -1 if count is None else count))


def pieces(fields: tuple[KafkaField, ...], value: dict[str, Any], flexible: bool, path: str = "") -> Iterator[Piece]:
    """Yield the encoded parts of a struct."""
    for field in fields:
        if field.tag is None:
            yield from field_pieces(field, field.type, value[field.name], flexible, f"{path}.{field.name}")
    if flexible:
        sent = [field for field in fields if field.tag is not None and value[field.name] not in (None, [])]
        tagged = sorted(sent, key=lambda field: field.tag or 0)
        yield Length(f"{path}: tagged fields", "varint", uvarint(len(tagged)))
        for field in tagged:
            local = f"{path}.{field.name}"
            content = list(field_pieces(field, field.type, value[field.name], True, local))
            yield uvarint(field.tag or 0)
            yield Length(f"{local}: size", "varint", uvarint(len(joined(content))))
            yield from content


def field_pieces(field: KafkaField, kind: str, value: Any, flexible: bool, path: str) -> Iterator[Piece]:
    if kind.startswith("[]"):
        yield length(path, None if value is None else len(value), "varint" if flexible else "int32")
        for nth, element in enumerate(value or ()):
            yield from field_pieces(field, kind[2:], element, flexible, f"{path}[{nth}]")
    elif field.fields is not None:
        if field.nullable and not field.type.startswith("[]"):
            yield b"\xff" if value is None else b"\x01"
        if value is not None:
            yield from pieces(field.fields, value, flexible, path)
    elif kind in ("string", "bytes", "records"):
        data = value.encode() if isinstance(value, str) else value
        plain = "int16" if kind == "string" else "int32"
        yield length(path, None if data is None else len(data), "varint" if flexible else plain)
        yield data or b""
    elif kind == "uuid":
        yield value
    else:
        yield struct.pack(">" + CODES[kind], value)


def joined(parts: list[Piece]) -> bytes:
    return b"".join(part.value if isinstance(part, Length) else part for part in parts)


def reply_pieces(api: Api, version: int, flavour: str) -> list[Piece]:
    flexible = api.flexible(version)
    parts: list[Piece] = [struct.pack(">i", CORRELATION_ID)]
    if flexible and api.name != "ApiVersions":
        parts.append(Length("header: tagged fields", "varint", b"\0"))
    fields, value = fields_of(api, version, "response"), sample_of(api, version, "response", flavour)
    return [*parts, *pieces(fields, value, flexible)]


@pytest.mark.parametrize(("api", "version", "flavour", "frame"), REPLIES, ids=case_id)
def test_lengths_are_at_kafkas_positions(api: Api, version: int, flavour: str, frame: bytes) -> None:
    assert joined(reply_pieces(api, version, flavour)) == frame


# -- wrong lengths --------------------------------------------------------------------------------

# Versions that differ only in their number have equal frames.
LAYOUTS = REPLIES if SOAK else list({(reply[0].name, *reply[2:]): reply for reply in REPLIES}.values())

WRONG_LENGTHS = {
    "int16": {"-2": b"\xff\xfe", "0": b"\0\0", "2^15-1": b"\x7f\xff", "-2^15": b"\x80\0"},
    "int32": {"-2": b"\xff\xff\xff\xfe", "0": bytes(4), "2^31-1": b"\x7f\xff\xff\xff", "-2^31": b"\x80\0\0\0"},
    "varint": {
        "0": b"\0", "1": b"\1", "2^31-1": uvarint(2**31 - 1), "2^31": uvarint(2**31), "too large": uvarint(2**32),
        "-2 as 32 bits": uvarint(2**32 - 2), "over-long": b"\x80\x80\x80\x80\x80\0", "endless": b"\xff" * 40,
    },
}  # fmt: skip
HARMLESS = {"0", "1"}  # may be accepted: the following bytes may form a valid value


@pytest.mark.parametrize(("api", "version", "flavour", "frame"), LAYOUTS, ids=case_id)
def test_wrong_lengths_are_refused(api: Api, version: int, flavour: str, frame: bytes) -> None:
    parts = reply_pieces(api, version, flavour)
    read = partial(decode_response, api, version)
    read(frame)
    with tracing():
        for nth, part in enumerate(parts):
            if isinstance(part, Length):
                before, after = joined(parts[:nth]), joined(parts[nth + 1 :])
                for name, lie in WRONG_LENGTHS[part.kind].items():
                    well = provoke(read, before + lie + after)
                    assert not well or name in HARMLESS, f"{part.what} = {name} was taken"


def test_randomly_corrupted_replies_raise_only_protocol_errors() -> None:
    frames = [frame for *_, frame in REPLIES]
    for api, version, _, frame in REPLIES:
        decode_response(api, version, frame)
    with tracing():
        for rng in cases("replies", 2_000):
            api, version, _, frame = rng.choice(REPLIES)
            provoke(partial(decode_response, api, version), corrupted(frame, rng, frames))
