"""Observable effects of each SASL property: a part of the table of `test_properties_apply`."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from protocol.base.clock import SYSTEM_CLOCK, Clock, Deadline
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import ConnectFailed, KafkaError
from protocol.net import http_exchange
from protocol.sasl.credentials import Kerberos, credentials
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.messages.m36_sasl_authenticate import SASL_AUTHENTICATE
from tests.support.cloud_endpoints import CloudEndpoint, Request, json_answer
from tests.support.small_cluster import SmallCluster
from tests.support.token_endpoint import Endpoint

_KAFKA = "org.apache.kafka.common.security"
_PASSWORD = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "secret"}
_NOT_OURS = "com.example.Handler"


def authentication_request(options: dict[str, str], clock: Clock = SYSTEM_CLOCK) -> tuple[str, bytes]:
    """Return the mechanism and the first message of the exchange; "" and b"" if there was no exchange."""
    mechanisms: list[str] = []
    messages: list[bytes] = []

    def handshake(body: dict[str, Any], version: int) -> dict[str, Any]:
        mechanisms.append(body["mechanism"])
        return {"mechanisms": []}

    def authenticate(body: dict[str, Any], version: int) -> dict[str, Any]:
        messages.append(bytes(body["auth_bytes"]))
        return {"error_code": 58}

    with FakeKafka() as kafka:
        kafka.handlers.update({SASL_HANDSHAKE: handshake, SASL_AUTHENTICATE: authenticate})
        where = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
        with Client(parse_client(where | options), clock) as client, suppress(KafkaError):
            client.metadata([])
    return "".join(mechanisms[:1]), b"".join(messages[:1])


def first_message(cluster: SmallCluster, options: dict[str, str]) -> bytes:
    return authentication_request(_PASSWORD | options)[1]


def first_message_by_jaas(cluster: SmallCluster, options: dict[str, str]) -> bytes:
    module = f"{_KAFKA}.plain.PlainLoginModule required"
    return authentication_request(
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{module} {options['sasl.jaas.config']};"}
    )[1]


def token(cluster: SmallCluster, options: dict[str, str]) -> bytes:
    """Return the sent token; `<folder>` has files with tokens."""
    with TemporaryDirectory() as folder:
        for name in ("one", "two"):
            Path(folder, name).write_text(name)
        properties = {name: value.replace("<folder>", folder) for name, value in options.items()}
        return authentication_request({"sasl.mechanism": "OAUTHBEARER", **properties})[1].split(b"\1")[1]


def endpoint_request(look: Callable[[dict[str, str], dict[str, list[str]]], object]) -> Any:
    """Observe a request at the token endpoint: its headers and its form."""

    def observe(cluster: SmallCluster, options: dict[str, str]) -> object:
        with Endpoint() as endpoint:
            endpoint.answers = [(200, {}, b'{"access_token":"token"}')]
            authentication_request({**_endpoint_properties(endpoint.url), **options})
            return look(*endpoint.asked[0][1:])

    return observe


def cloud_request(look: Callable[[Request], object]) -> Any:
    """Observe a request at a stand-in for Azure's metadata endpoint, which also is a token endpoint."""

    def observe(cluster: SmallCluster, options: dict[str, str]) -> object:
        with CloudEndpoint() as endpoint:
            endpoint.otherwise = json_answer(access_token="token")
            kind = "sasl.oauthbearer.metadata.authentication.type"
            config = {"sasl.oauthbearer.config": "query=a=b"} if options.get(kind) == "azure_imds" else {}
            more = {} if kind in options else {kind: "azure_imds"}
            authentication_request({**_endpoint_properties(f"{endpoint.url}/token"), **config, **more, **options})
            return look(endpoint.requests[0])

    return observe


def _endpoint_properties(url: str) -> dict[str, str]:
    name, secret = "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret"
    who = {"sasl.mechanism": "OAUTHBEARER", name: "me", secret: "secret"}
    return {**who, "sasl.oauthbearer.token.endpoint.url": url}


def _id_and_secret(headers: dict[str, str], form: object) -> str:
    return base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()


def retry_delays_ms(cluster: SmallCluster, options: dict[str, str]) -> list[int]:
    """Return the delays between requests to a busy endpoint, in ms, rounded to a power of ten."""
    clock = ManualClock()
    with Endpoint() as endpoint:
        endpoint.answers = [(503, {}, b"")]
        deadlines = {"default.api.timeout.ms": "60000", "socket.connection.setup.timeout.ms": "60000"}
        authentication_request({**_endpoint_properties(endpoint.url), **deadlines, **options}, clock)
    return [10 ** round(math.log10(1_000 * each_s)) for each_s in clock.slept]


def read_timeout_ms(cluster: SmallCluster, options: dict[str, str]) -> int:
    """Return the longest wait for a reply of an endpoint, in ms."""
    waits_ms: list[int] = []

    def no_answer(host: str, port: int, deadline: Deadline) -> None:
        waits_ms.append(round(deadline.remaining_ms()))
        raise ConnectFailed("there is no endpoint")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_exchange, "connect", no_answer)
        authentication_request({**_endpoint_properties("http://127.0.0.1:1/token"), **options}, ManualClock())
    return waits_ms[0]


def kerberos_service_name(cluster: SmallCluster, options: dict[str, str]) -> str:
    where = {"bootstrap.servers": "localhost:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    who = credentials(parse_client(where | options).sasl)
    assert isinstance(who, Kerberos)
    return who.service_name


def is_accepted(cluster: SmallCluster, options: dict[str, str]) -> bool:
    try:
        parse_client({"bootstrap.servers": "localhost:1", **options})
    except KafkaError:
        return False
    return True


def one() -> str:
    return "one"


def two() -> str:
    return "two"


_OAUTHBEARER = f"{_KAFKA}.oauthbearer"
_HANDLERS = {
    "sasl.login.callback.handler.class": f"{_OAUTHBEARER}.OAuthBearerLoginCallbackHandler",
    "sasl.client.callback.handler.class": f"kafkashaded.{_KAFKA}.authenticator.SaslClientCallbackHandler",
    "sasl.oauthbearer.jwt.retriever.class": f"{_OAUTHBEARER}.DefaultJwtRetriever",
}

SASL_OBSERVERS: dict[str, tuple[Callable[[SmallCluster, dict[str, str]], object], dict[str, Any]]] = {
    "sasl.mechanism": (
        lambda cluster, inputs: authentication_request(_PASSWORD | inputs)[0],
        {"PLAIN": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "SCRAM-SHA-512": "SCRAM-SHA-512"},
    ),
    "sasl.jaas.config": (
        first_message_by_jaas,
        {"username=a password=b": b"\0a\0b", "username='c' password=\"d\"": b"\0c\0d"},
    ),
    "sasl.username": (first_message, {"a": b"\0a\0secret", "b": b"\0b\0secret"}),
    "sasl.password": (first_message, {"a": b"\0me\0a", "b": b"\0me\0b"}),
    "sasl.oauthbearer.token.provider": (
        token,
        {f"{__name__}:one": b"auth=Bearer one", f"{__name__}:two": b"auth=Bearer two"},
    ),
    "sasl.oauthbearer.token.endpoint.url": (
        token,
        {"file://<folder>/one": b"auth=Bearer one", "file:///<folder>/two": b"auth=Bearer two"},
    ),
    "sasl.oauthbearer.metadata.authentication.type": (
        cloud_request(lambda request: request.method),
        {"none": "POST", "azure_imds": "GET"},
    ),
    "sasl.oauthbearer.config": (
        cloud_request(lambda request: request.query),
        {"query=resource=a": {"resource": ["a"]}, "query=resource=b": {"resource": ["b"]}},
    ),
    "sasl.oauthbearer.extensions": (
        lambda cluster, inputs: authentication_request(
            {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.provider": f"{__name__}:one", **inputs}
        )[1].split(b"\1")[2:4],
        {"a=1,b=2": [b"a=1", b"b=2"], r"c=1\,2": [b"c=1,2", b""]},
    ),
    "sasl.oauthbearer.client.credentials.client.id": (
        endpoint_request(_id_and_secret),
        {"a": "a:secret", "b": "b:secret"},
    ),
    "sasl.oauthbearer.client.credentials.client.secret": (endpoint_request(_id_and_secret), {"a": "me:a", "b": "me:b"}),
    "sasl.oauthbearer.header.urlencode": (
        lambda cluster, inputs: endpoint_request(_id_and_secret)(
            cluster, {"sasl.oauthbearer.client.credentials.client.secret": "a+b c", **inputs}
        ),
        {"true": "me:a%2Bb+c", "false": "me:a+b c"},
    ),
    "sasl.oauthbearer.scope": (endpoint_request(lambda headers, form: form["scope"]), {"a": ["a"], "b c": ["b c"]}),
    "sasl.login.read.timeout.ms": (read_timeout_ms, {"20": 20, "5000": 5000}),
    "sasl.login.retry.backoff.ms": (lambda *arguments: retry_delays_ms(*arguments)[0], {"10": 10, "1000": 1000}),
    "sasl.login.retry.backoff.max.ms": (
        lambda *arguments: max(retry_delays_ms(*arguments)),
        {"1000": 1000, "10000": 10000},
    ),
    "sasl.kerberos.service.name": (kerberos_service_name, {"kafka": "kafka", "queue": "queue"}),
    **{name: (is_accepted, {remembered: True, _NOT_OURS: False}) for name, remembered in _HANDLERS.items()},
}
