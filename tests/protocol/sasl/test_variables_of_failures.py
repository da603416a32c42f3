"""An error collector that records the variables of a traceback finds no secret that was resolved for the call."""

from __future__ import annotations

import base64
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.clock import SYSTEM_CLOCK, Deadline
from protocol.errors import ConnectionLost, KafkaError
from protocol.net.authenticate import Authenticator
from protocol.net.tls_context import new_context
from protocol.sasl.config import SaslConfig
from protocol.secret import Secret
from protocol.security.tls_config import TLSConfig
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.schema import Api
from tests.tls_ends import encrypted_key, make_ends
from tests.token_endpoint import Endpoint

REFERENCE = Secret("${env:PASSWORD_OF_A_TEST}")
ITS_TEXT = "hunter2"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ME = {"username": Secret("me"), "password": REFERENCE}

Answer = Callable[[bytes], Mapping[str, Any]]


def refuses(message: bytes) -> Mapping[str, Any]:
    return {"error_code": 58, "error_message": "no"}


def hangs_up(message: bytes) -> Mapping[str, Any]:
    raise ConnectionLost("gone")


def refuses_token(message: bytes) -> Mapping[str, Any]:
    return {"error_code": 0, "auth_bytes": b'{"status":"invalid_token"}'}


def proves_nothing(message: bytes) -> Mapping[str, Any]:
    nonce = re.search(rb"r=([^,]+)", message)
    assert nonce is not None
    first = b"r=%sx,s=%s,i=4096" % (nonce[1], base64.b64encode(b"salt"))
    return {"error_code": 0, "auth_bytes": first if message.startswith(b"n,,") else b"v=AAAA"}


FAILURES: dict[str, tuple[SaslConfig, Answer]] = {
    "a wrong password": (SaslConfig("PLAIN", **ME), refuses),
    "a connection that breaks": (SaslConfig("PLAIN", **ME), hangs_up),
    "a broker that proves nothing": (SaslConfig("SCRAM-SHA-256", **ME), proves_nothing),
    "a token": (SaslConfig("OAUTHBEARER", token_provider="tests.token_of_alice:token"), refuses_token),
    "no semicolon": (SaslConfig("PLAIN", Secret(f'{MODULE} password="{REFERENCE.reveal()}"')), refuses),
}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_A_TEST", ITS_TEXT)
    monkeypatch.setattr("tests.token_of_alice.token", lambda: (ITS_TEXT, 9e9))


def shown(config: SaslConfig, answer: Answer) -> str:
    """Return the traceback of the failure, with all variables."""

    def ask(api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        return {"error_code": 0} if api is SASL_HANDSHAKE else answer(body["auth_bytes"])

    with pytest.raises(KafkaError) as failed:
        Authenticator(config, SYSTEM_CLOCK).authenticate("broker:9093", ask, Deadline.after_ms(5_000))
    return with_variables(failed.value)


def with_variables(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


@pytest.mark.parametrize("failure", FAILURES)
def test_a_sign_in_that_fails(failure: str) -> None:
    text = shown(*FAILURES[failure])
    assert "_sign_in" in text
    assert [line for line in text.splitlines() if ITS_TEXT in line or "salted_password" in line] == []


def test_a_token_endpoint_that_refuses() -> None:
    with Endpoint() as endpoint:
        endpoint.answers = [(401, {}, b"")]
        who = {"client_id": Secret("me"), "client_secret": REFERENCE}
        text = shown(SaslConfig("OAUTHBEARER", token_endpoint_url=endpoint.url, **who), refuses)
    assert "ask_endpoint" in text
    coded = base64.b64encode(f"me:{ITS_TEXT}".encode()).decode()
    assert [line for line in text.splitlines() if ITS_TEXT in line or coded in line] == []


def test_a_key_that_has_another_password(tmp_path: Path) -> None:
    mine = make_ends(tmp_path).certificate.read_text()
    key = Secret(encrypted_key(mine, "other"))
    config = TLSConfig(keystore_key=key, keystore_certificate_chain=Secret(mine), key_password=REFERENCE)
    with pytest.raises(KafkaError, match="cannot be decrypted") as failed:
        new_context(config)
    assert [line for line in with_variables(failed.value).splitlines() if ITS_TEXT in line] == []
