"""Compare whole frames with those of Kafka's own Java classes for the same values, for every API and version."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from protocol.wire.frame import decode_request, decode_response, encode_request, encode_response
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api
from tests.protocol.wire.kafka_facts import FLAVOURS, KINDS, case_id, plain, sample_of

CORRELATION_ID = 7
CLIENT_ID = "client-é"


def _kafka_frames() -> dict[tuple[str, ...], bytes]:
    lines = Path(__file__).with_name("kafka_frames.txt").read_text().splitlines()
    return {tuple(case): bytes.fromhex(frame) for *case, frame in map(str.split, lines)}


FRAMES = _kafka_frames()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_encoded_values_equal_kafkas_frames(api: Api, kind: str) -> None:
    for version, flavour in _versions(api):
        value = sample_of(api, version, kind, flavour)
        if kind == "request":
            parts = encode_request(api, version, CORRELATION_ID, CLIENT_ID, value)
        else:
            parts = encode_response(api, version, CORRELATION_ID, value)
        expected = FRAMES[api.name, str(version), kind, flavour]

        assert b"".join(parts) == len(expected).to_bytes(4, "big") + expected, f"version {version}, {flavour}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_kafkas_frames_are_decoded_to_their_values(api: Api, kind: str) -> None:
    for version, flavour in _versions(api):
        frame = FRAMES[api.name, str(version), kind, flavour]
        if kind == "request":
            *header, body = decode_request(frame)
            assert header == [api, version, CORRELATION_ID, CLIENT_ID]
        else:
            body = decode_response(api, version, frame)
        value = sample_of(api, version, kind, flavour)

        assert _common(value, plain(body)) == value, f"version {version}, {flavour}"


def _versions(api: Api) -> Iterator[tuple[int, str]]:
    return product(range(api.first, api.last + 1), FLAVOURS)


def _common(sent: Any, decoded: Any) -> Any:
    """Return the decoded value without fields that this version lacks."""
    if isinstance(sent, dict) and isinstance(decoded, dict):
        return {name: _common(sent[name], item) for name, item in decoded.items() if name in sent}
    if isinstance(sent, list) and isinstance(decoded, list) and len(sent) == len(decoded):
        return [_common(item, second) for item, second in zip(sent, decoded, strict=True)]
    return decoded
