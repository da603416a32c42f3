"""Faults of `FakeKafka` act on each kind of request, or are refused: otherwise a user's test passes untested."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import UsageError
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.handlers import HANDLERS, SASL, VERSIONS
from protocol.wire import frame
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.parts import error_parts
from protocol.wire.schema import Api, Array, Struct

APIS = [*HANDLERS, *SASL]
NEWEST = {api: last for api, (_, last) in VERSIONS.items()} | {api: api.last for api in SASL}
TOPIC_ID = bytes(range(16))
POLICY_VIOLATION = 44  # no handler returns this code otherwise


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(users={"alice": "pw"}, anonymous=True) as fake:
        yield fake


def sample(of: Any, version: int) -> Any:
    """Return a request about the topic, group or user "orders", with one row in each array."""
    if isinstance(of, Struct):
        return {field.name: sample(field.type, version) for field in of.fields if field.present(version)}
    if isinstance(of, Array):
        return [sample(of.of, version)]
    return {"string": "orders", "uuid": TOPIC_ID, "bytes": b"", "records": None}.get(of, 0)


def answer(fake: FakeKafka, api: Api) -> bytes:
    """Send a request; return the bytes of the reply, nothing if the connection was reset."""
    if "orders" not in fake.controller.image.topics:  # DeleteTopics has deleted it
        fake.create_topic("orders", topic_id=TOPIC_ID)
    version = NEWEST[api]
    body = sample(api.request, version) | ({"acks": 1} if api is PRODUCE else {})
    host, port = fake.addresses[1]
    with socket.create_connection((host, port), 10) as connection, contextlib.suppress(ConnectionResetError):
        connection.sendall(b"".join(frame.encode_request(api, version, 1, "test", body)))
        with connection.makefile("rb") as stream:
            return stream.read(int.from_bytes(stream.read(4), "big"))
    return b""


def codes(api: Api, reply: bytes) -> set[int]:
    return {part.code for part in error_parts(api, frame.decode_response(api, NEWEST[api], reply))}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_each_kind_of_request_is_refused_with_the_code(fake: FakeKafka, api: Api) -> None:
    fake.refuse(api.name, "POLICY_VIOLATION")
    assert POLICY_VIOLATION in codes(api, answer(fake, api))
    assert POLICY_VIOLATION not in codes(api, answer(fake, api))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_each_kind_of_request_is_lost_or_its_reply_lost_late_or_edited(fake: FakeKafka, api: Api) -> None:
    fake.lose_requests(api.name)
    assert answer(fake, api) == b""
    fake.lose_replies(api.name)
    assert answer(fake, api) == b""
    fake.delay_replies(api.name, 0.02)
    started_s = time.monotonic()
    assert answer(fake, api) != b""
    assert time.monotonic() - started_s >= 0.02
    fake.edit_replies(api.name, lambda body: b"\0\0\0\6edited", times=1)
    assert answer(fake, api) == b"edited"


def test_refused_api_versions_is_readable_for_any_client(fake: FakeKafka) -> None:
    fake.refuse("ApiVersions", "UNSUPPORTED_VERSION")
    assert codes(API_VERSIONS, answer(fake, API_VERSIONS)) == {35}


def test_fault_without_effect_is_a_usage_error() -> None:
    with FakeKafka() as fake:
        for fault in (lambda kind: fake.refuse(kind, "POLICY_VIOLATION"), fake.lose_requests, fake.lose_replies):
            with pytest.raises(UsageError, match="FakeKafka does not handle WriteTxnMarkers"):
                fault("WriteTxnMarkers")
            with pytest.raises(UsageError, match="no client of this cluster sends SaslHandshake"):
                fault("SaslHandshake")
        with pytest.raises(UsageError, match="Heartbeat is refused as a whole"):
            fake.refuse("Heartbeat", "POLICY_VIOLATION", partition=("orders", 0))
