"""An error collector that records the variables of a traceback finds no secret that was resolved for the call."""

from __future__ import annotations

import base64
import json
import re
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from protocol import tables
from protocol.admin.admin import Admin
from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_consumer, parse_producer
from protocol.consumer.consumer_group import ConsumerGroup
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import ConnectionLost, KafkaError
from protocol.fetch.consumer import Consumer
from protocol.net.authenticate import Authenticator
from protocol.net.byte_stream import Buffer, ByteStream
from protocol.net.connection import Connection
from protocol.net.tls_context import new_context
from protocol.processing.processor import Processor
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.sasl.config import SaslConfig
from protocol.security.tls_config import TLSConfig
from protocol.settings.secret import Secret, SecretBytes
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.messages.m36_sasl_authenticate import SASL_AUTHENTICATE
from protocol.wire.schema import Api
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.sink.foreach_batch import foreach_batch_writer
from tests.support.tls_ends import encrypted_key, make_ends
from tests.support.token_endpoint import Endpoint

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
    "a token": (SaslConfig("OAUTHBEARER", token_provider="tests.support.token_of_alice:token"), refuses_token),
    "a missing reference beside a password": (
        SaslConfig("PLAIN", Secret(f'{MODULE} username="${{env:NOT_THERE}}" password="{ITS_TEXT}";')), refuses),
    "no semicolon": (SaslConfig("PLAIN", Secret(f'{MODULE} password="{REFERENCE.reveal()}"')), refuses),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_A_TEST", ITS_TEXT)
    monkeypatch.setattr("tests.support.token_of_alice.token", lambda: (ITS_TEXT, 9e9))


def shown(config: SaslConfig, answer: Answer) -> str:
    """Return the traceback of the failure, with all variables."""

    def ask(api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        return {"error_code": 0} if api is SASL_HANDSHAKE else answer(body["auth_bytes"])

    with pytest.raises(KafkaError) as failed:
        Authenticator(config, SYSTEM_CLOCK).authenticate("broker:9093", ask, Deadline.after_ms(5_000))
    return with_variables(failed.value)


def with_variables(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def lines_with(secret: str, shown: str | BaseException) -> list[str]:
    """Return the lines with a secret, of a text or of an error with its variables."""
    text = shown if isinstance(shown, str) else with_variables(shown)
    return [line for line in text.splitlines() if secret in line]


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_authentication_shows_no_secret(failure: str) -> None:
    text = shown(*FAILURES[failure])
    assert "_sign_in" in text
    assert lines_with(ITS_TEXT, text) == lines_with("salted_password", text) == []


@pytest.mark.parametrize(
    "inputs",
    [(ITS_TEXT, "soon"), (ITS_TEXT, 9e9, {"a-b": "x"}), (ITS_TEXT + "\n", 9e9), {"token": ITS_TEXT}],
    ids=["wrong expiry", "wrong extension", "newline", "no text"],
)
def test_invalid_result_of_a_token_provider_shows_no_secret(inputs: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.token_of_alice.token", lambda: inputs)
    text = shown(*FAILURES["a token"])
    assert "_sign_in" in text
    assert lines_with(ITS_TEXT, text) == []


@pytest.mark.parametrize(
    "answer",
    [
        (401, {}, b""),
        (401, {}, json.dumps({"error": "invalid_client", "error_description": f"not me:{ITS_TEXT}"}).encode()),
        (200, {}, json.dumps({"id_token": ITS_TEXT}).encode()),
        (202, {}, json.dumps({"access_token": ITS_TEXT}).encode()),
    ],
    ids=["refusal", "secret repeated", "other token", "other status"],
)
def test_token_endpoint_failure_shows_no_secret(answer: tuple[int, dict[str, str], bytes]) -> None:
    with Endpoint() as endpoint:
        endpoint.answers = [answer]
        who = {"client_id": Secret("me"), "client_secret": REFERENCE}
        text = shown(SaslConfig("OAUTHBEARER", token_endpoint_url=endpoint.url, **who), refuses)
    assert "ask_endpoint" in text
    coded = base64.b64encode(f"me:{ITS_TEXT}".encode()).decode()
    assert lines_with(ITS_TEXT, text) == lines_with(coded, text) == []


PEM = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize("form", [None, "x{}", PEM], ids=["another password", "no PEM", "no key"])
def test_unreadable_key_shows_no_secret(tmp_path: Path, form: str | None) -> None:
    text = make_ends(tmp_path).certificate.read_text()
    key = Secret(encrypted_key(text, "other") if form is None else form.format(ITS_TEXT))
    config = TLSConfig(keystore_key=key, keystore_certificate_chain=Secret(text), key_password=REFERENCE)
    with pytest.raises(KafkaError, match="cannot be decrypted" if form is None else "") as failed:
        new_context(config)
    assert lines_with(ITS_TEXT, failed.value) == []


def test_connection_lost_while_sending_a_password_shows_no_secret() -> None:
    class Broken(ByteStream):
        def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
            raise ConnectionLost("gone")

    class Password:
        def authenticate(self, address: str, ask: Callable[..., Any], deadline: Deadline, session: object) -> None:
            ask(SASL_AUTHENTICATE, 0, {"auth_bytes": SecretBytes(b"\0me\0" + ITS_TEXT.encode())}, deadline)

    with socket.socket() as sock:
        connection = Connection(
            Broken(sock, "broker:1"), "id", clock=SYSTEM_CLOCK, max_response_bytes=1_000, authenticator=Password()
        )
        connection.versions = {SASL_AUTHENTICATE.key: (0, 0)}
        connection.reauthenticate_at_s = 0
        with pytest.raises(ConnectionLost) as failed:
            connection.send(METADATA, 0, {}, Deadline.after_ms(5_000))
    assert lines_with(ITS_TEXT, failed.value) == []


def read_table(of_caller: dict[str, object]) -> object:
    return tables.read(of_caller, "orders")


def write_table(of_caller: dict[str, object]) -> object:
    return tables.write(of_caller, "orders", pa.table({"value": [b"x"]}))


def process(of_caller: dict[str, object]) -> object:
    return Processor(of_caller, print, ["orders"])


WITH_PROPERTIES: list[Callable[..., object]] = [
    *(parse_client, parse_consumer, parse_producer, parse_group_consumer),
    *(Client, Consumer, KafkaConsumer, ConsumerGroup, Producer, TransactionalProducer, Admin),
    *(read_table, write_table, process),
]
WITH_OPTIONS = [foreach_batch_writer, parse_sink_options, partial(parse_source_options, streaming=True)]


@pytest.mark.parametrize(
    ("prefix", "call"),
    [*(("", call) for call in WITH_PROPERTIES), *(("kafka.", call) for call in WITH_OPTIONS)],
)
def test_invalid_other_property_shows_no_secret(prefix: str, call: Callable[..., object]) -> None:
    def properties() -> dict[str, object]:
        jaas = f'{MODULE} username="me" password="{ITS_TEXT}";'
        wrong = dict.fromkeys(("request.timeout.ms", "fetch.max.wait.ms", "batch.size"), "soon")
        texts = {"bootstrap.servers": "localhost:1", "sasl.jaas.config": jaas, **wrong}
        return {f"{prefix}{name}": text for name, text in texts.items()}

    with pytest.raises(KafkaError, match="is 'soon'") as failed:
        call(properties())
    assert "test_invalid_other_property" in with_variables(failed.value)
    # The caller's own frames are not hidden.
    shown = lines_with(ITS_TEXT, failed.value)
    assert [line for line in shown if not line.strip().startswith("of_caller = ")] == []
