"""A server that impersonates a broker learns no password, and keeps a client busy for a moment only."""

from __future__ import annotations

import base64
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import AuthenticationFailed, DeadlineExceeded, KafkaError, ProtocolError
from protocol.sasl.mechanisms import oauthbearer, scram
from protocol.settings.secret import Secret
from protocol.testing.fake_kafka.listener import Handler
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.messages.m36_sasl_authenticate import SASL_AUTHENTICATE
from tests.support.hostile import cases, corrupted, provoke, tracing

pytestmark = pytest.mark.soak

PASSWORD = "hunter2-of-a-test"
SALT = base64.b64encode(b"salt of a test").decode()


def nonce_of(message: bytes) -> str:
    match = re.search(rb"r=([^,]+)", message)
    assert match is not None
    return match[1].decode()


def frame(correlation_id: int, auth_bytes: bytes, length: bytes | None = None) -> bytes:
    """Return a SaslAuthenticate v2 reply; `length` replaces the correct length of its bytes."""
    length = bytes([len(auth_bytes) + 1]) if length is None else length
    body = struct.pack(">i", correlation_id) + b"\0" + b"\0\0" + b"\0" + length + auth_bytes + bytes(8) + b"\0"
    return struct.pack(">i", len(body)) + body


FIRST = {
    "1 iteration": lambda nonce: f"r={nonce}x,s={SALT},i=1",
    "2^31-1 iterations": lambda nonce: f"r={nonce}x,s={SALT},i=2147483647",
    "another nonce": lambda nonce: f"r=abcdefghijklmnopqrstuvwxyz,s={SALT},i=4096",
    "our nonce": lambda nonce: f"r={nonce},s={SALT},i=4096",
    "success at once": lambda nonce: "",
    "a megabyte": lambda nonce: f"r={nonce}{'x' * 1_000_000},s={SALT},i=4096,",
    "two megabytes": lambda nonce: "x" * 2_000_000,
}


@contextmanager
def posing(first: Any, final: str = "") -> Iterator[FakeKafka]:
    """Run a server that answers the first message with `first`, given its nonce, and the second with `final`."""

    def answer(body: dict[str, Any], version: int) -> dict[str, Any]:
        message = bytes(body["auth_bytes"])
        reply = first(nonce_of(message)) if message.startswith(b"n,,") else final
        return {"auth_bytes": reply.encode()}

    with server(answer) as kafka:
        yield kafka


@contextmanager
def server(authenticate: Handler) -> Iterator[FakeKafka]:
    """Run a server that takes any mechanism, and answers each SaslAuthenticate with `authenticate`."""
    with FakeKafka() as kafka:
        kafka.handlers[SASL_HANDSHAKE] = lambda body, version: {"mechanisms": []}
        kafka.handlers[SASL_AUTHENTICATE] = authenticate
        yield kafka


def refused(kafka: FakeKafka, mechanism: str = "SCRAM-SHA-256") -> KafkaError:
    who = {"sasl.mechanism": mechanism, "sasl.username": "me", "sasl.password": PASSWORD}
    where = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    where |= {"default.api.timeout.ms": 2_000}
    began_s, cpu_s = time.monotonic(), time.process_time()
    with Client(parse_client(where | who)) as client, pytest.raises(KafkaError) as raised:
        client.metadata([])
    assert time.process_time() - cpu_s < 1
    assert time.monotonic() - began_s < 15
    assert PASSWORD not in repr(kafka.requests)
    assert PASSWORD not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("first", FIRST)
def test_invalid_first_message_ends_the_exchange(first: str, mechanism: str) -> None:
    with posing(FIRST[first]) as kafka:
        assert isinstance(refused(kafka, mechanism), AuthenticationFailed)
        sent = [body["auth_bytes"] for name, _, body in kafka.requests if name == "SaslAuthenticate"]
    # The client has sent nothing that guessed passwords could be tested against.
    assert len(sent) == 1


@pytest.mark.parametrize("word", ["a", "me:hunter2@"])
def test_long_refusal_is_truncated(word: str) -> None:
    answer = {"error_code": 58, "error_message": (word * 32_767)[:32_767]}
    with server(lambda body, version: answer) as kafka:
        assert len(str(refused(kafka))) < 1_000


@pytest.mark.parametrize(
    "reply",
    [
        struct.pack(">i", 2**31 - 1),
        frame(2, b"r=", length=b"\xff\xff\xff\xff\x07"),
        frame(2, b"", length=b"\0"),
        frame(9, b"r="),
    ],
    ids=["a frame of 2 GiB", "a challenge of 2 GiB", "no challenge", "another request's reply"],
)
def test_invalid_frame_is_refused_before_it_arrives(reply: bytes) -> None:
    with server(lambda body, version: reply) as kafka:
        assert isinstance(refused(kafka), ProtocolError | DeadlineExceeded)  # a retry may succeed, or not


def test_randomly_corrupted_challenges_are_refused() -> None:
    """Only a refusal may be the result, in time, and with little memory."""
    first = f"r=nonce-of-a-client-and-more,s={SALT},i=4096".encode()
    final = b"v=" + base64.b64encode(bytes(32))
    further = [first, final, b'{"status":"invalid_token","scope":"a"}', b"e=other-error"]

    def read(data: bytes) -> None:
        half = len(data) // 2
        for exchange, challenges in (
            (scram("sha256", Secret("me"), Secret("p"), nonce="nonce-of-a-client"), (data, data)),
            (scram("sha256", Secret("me"), Secret("p"), nonce="nonce-of-a-client"), (first, data)),
            (oauthbearer(Secret("token"), {}), (data, data[half:])),
        ):
            next(exchange)
            try:
                for challenge in challenges:
                    exchange.send(challenge)
            except AuthenticationFailed:
                continue
            except StopIteration:
                assert not challenges[0], "believed"
                continue

    with tracing():
        for rng in cases("challenges", 60):
            provoke(read, corrupted(rng.choice(further), rng, further))
