"""Whole frames against those that Kafka's own Java classes made of the same values, for every API and version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.wire.frame import decode_request, decode_response, encode_request, encode_response
from protocol.wire.schema import Api
from tests.protocol.wire.kafka_facts import ALL_VERSIONS, FLAVOURS, case_id, plain, sample_of

CORRELATION_ID = 7
CLIENT_ID = "client-é"


def _kafka_frames() -> dict[tuple[str, ...], bytes]:
    lines = Path(__file__).with_name("kafka_frames.txt").read_text().splitlines()
    return {tuple(case): bytes.fromhex(frame) for *case, frame in map(str.split, lines)}


FRAMES = _kafka_frames()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(("api", "version", "kind"), ALL_VERSIONS, ids=case_id)
def test_a_value_is_encoded_as_kafka_encodes_it(api: Api, version: int, kind: str, flavour: str) -> None:
    value = sample_of(api, version, kind, flavour)
    if kind == "request":
        parts = encode_request(api, version, CORRELATION_ID, CLIENT_ID, value)
    else:
        parts = encode_response(api, version, CORRELATION_ID, value)
    expected = FRAMES[api.name, str(version), kind, flavour]

    assert b"".join(parts) == len(expected).to_bytes(4, "big") + expected


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(("api", "version", "kind"), ALL_VERSIONS, ids=case_id)
def test_a_frame_of_kafka_is_decoded_to_its_value(api: Api, version: int, kind: str, flavour: str) -> None:
    frame = FRAMES[api.name, str(version), kind, flavour]
    if kind == "request":
        decoded_api, decoded_version, correlation_id, client_id, body = decode_request(frame)
        assert (decoded_api, decoded_version, correlation_id, client_id) == (api, version, CORRELATION_ID, CLIENT_ID)
    else:
        body = decode_response(api, version, frame)
    value = sample_of(api, version, kind, flavour)

    assert _common(value, plain(body)) == value


def _common(sent: Any, decoded: Any) -> Any:
    """What was decoded, without the fields that this version lacks."""
    if isinstance(sent, dict) and isinstance(decoded, dict):
        return {name: _common(sent[name], item) for name, item in decoded.items() if name in sent}
    if isinstance(sent, list) and isinstance(decoded, list) and len(sent) == len(decoded):
        return [_common(item, other) for item, other in zip(sent, decoded, strict=True)]
    return decoded
