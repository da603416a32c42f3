"""Frames that are truncated, have wrong values or random corruptions: protocol errors, at once, and little memory."""

from __future__ import annotations

from functools import partial

import pytest

from protocol.errors import Corrupt, Truncated
from protocol.wire import primitives
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.schema import Api
from tests.protocol.wire.kafka_facts import case_id, decode, encode, kafka_frames
from tests.support.hostile import cases, corrupted, provoke, tracing
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

LIES = [
    b"\xff\xfe",  # -2 as int16
    b"\x7f\xff",
    b"\xff\xff\xff\xfe",  # -2 as int32
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",  # the largest unsigned varint
    b"\xff" * 11,  # an endless one
    b"\x00",
]


FRAMES = [(api, version, kind, frame) for api, version, kind, flavour, frame in kafka_frames() if flavour == "full"]


def layout(case: tuple[Api, int, str, bytes]) -> tuple[str, str, bytes]:
    """Return a key that is equal for versions that differ only in their number, which a request contains."""
    api, _, kind, frame = case
    return api.name, kind, frame[4:] if kind == "request" else frame


LAYOUTS = FRAMES if SOAK else list({layout(case): case for case in FRAMES}.values())
NEWEST = [case for case in FRAMES if SOAK or case[1] == case[0].last]


@pytest.mark.parametrize(("api", "version", "kind", "frame"), LAYOUTS, ids=case_id)
def test_prefixes_are_truncated_and_further_bytes_corrupt(api: Api, version: int, kind: str, frame: bytes) -> None:
    for cut in range(len(frame)):
        with pytest.raises(Truncated):
            decode(api, version, kind, frame[:cut])
    with pytest.raises(Corrupt, match="1 bytes too many"):
        decode(api, version, kind, frame + b"\0")


@pytest.mark.parametrize(("api", "version", "kind", "frame"), NEWEST, ids=case_id)
def test_wrong_values_in_the_body_give_a_value_or_a_protocol_error(
    api: Api, version: int, kind: str, frame: bytes
) -> None:
    read = partial(decode, api, version, kind)
    assert read(frame)
    start = 18 if kind == "request" else 4  # after the header, which only a broker decodes
    with tracing():
        for position in range(start, len(frame)):
            for lie in LIES:
                provoke(read, frame[:position] + lie + frame[position + len(lie) :])


def test_randomly_corrupted_replies_raise_only_protocol_errors() -> None:
    responses = [case for case in FRAMES if case[2] == "response"]
    replies = [(partial(decode, api, version, kind), frame) for api, version, kind, frame in responses]
    for read, frame in replies:
        read(frame)
    frames = [frame for _, frame in replies]
    with tracing():
        for rng in cases("replies", 2_000):
            read, frame = rng.choice(replies)
            provoke(read, corrupted(frame, rng, frames))


def test_elements_of_a_message_have_a_common_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"topics": [{"name": "t", "partitions": [{"partition_index": at} for at in range(3)]}] * 2}
    frame = encode(METADATA, 12, "response", body)[4:]
    monkeypatch.setattr(primitives, "MAX_ELEMENTS", 8)
    assert len(decode(METADATA, 12, "response", frame)["topics"]) == 2
    monkeypatch.setattr(primitives, "MAX_ELEMENTS", 7)
    with pytest.raises(Corrupt, match="more than 7"):
        decode(METADATA, 12, "response", frame)
