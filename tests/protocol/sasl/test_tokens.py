"""Tokens: their sources, the time until renewal, and the errors without a token."""

from __future__ import annotations

import base64
import json
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed
from protocol.net.tokens import Tokens
from protocol.sasl.cloud_identity import AwsIam
from protocol.sasl.config import SaslConfig
from protocol.sasl.credentials import (
    Password,
    TokenEndpoint,
    TokenFile,
    TokenProvider,
    TokenSource,
    UnsecuredToken,
    credentials,
)
from protocol.sasl.token import Token, jwt_expiry_s, unsecured_token
from protocol.settings.secret import Secret
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from tests.protocol.net.test_hostile_tls import Talk, server
from tests.support.tls_ends import authority_without_key_identifiers
from tests.support.token_endpoint import Endpoint
from tests.support.wall_clock import WallClock

KAFKA = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SECRET_OF_CLIENT = "hunter2&=ä"
LIFETIME_S = 100


def jwt(end_s: float | None) -> str:
    claims = {} if end_s is None else {"exp": end_s}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims))
    return ".".join((*parts, "c2ln"))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


def gives(**fields: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(fields).encode()


def ask(tokens: Tokens, source: TokenSource, clock: WallClock, **config: Any) -> Token:
    return tokens.token(source, SaslConfig(**config), "broker:9093", Deadline.after_ms(2_000, clock))


def client(url: str, scope: str | None = None) -> TokenEndpoint:
    return TokenEndpoint(url, Secret("me"), Secret(SECRET_OF_CLIENT), scope, {"traceId": "1"})


# -- renewal --------------------------------------------------------------------------------------


def test_token_is_renewed_after_four_fifths_of_its_lifetime(clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = clock.wall_ms() / 1000
    inputs = iter([("one", now_s + LIFETIME_S), ("two", now_s + 2 * LIFETIME_S)])
    source = provider(lambda: next(inputs), monkeypatch)
    tokens = Tokens(clock)
    observed = []
    for wait_s in (0, 79, 2):
        clock.at_s += wait_s
        observed.append(ask(tokens, source, clock).value.reveal())
    assert observed == ["one", "one", "two"]


def test_valid_token_is_used_if_renewal_fails(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = iter([("one", clock.wall_ms() / 1000 + LIFETIME_S)])
    source = provider(lambda: next(inputs), monkeypatch)
    tokens = Tokens(clock)
    ask(tokens, source, clock)
    clock.at_s += 90
    with caplog.at_level(logging.WARNING):
        assert ask(tokens, source, clock).value.reveal() == "one"
    assert "The current token is used until it expires" in caplog.text
    clock.at_s += 11
    with pytest.raises(AuthenticationFailed, match="raised StopIteration"):
        ask(tokens, source, clock)


def test_token_without_known_expiry_is_used_once(clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = iter(["one", "two"])
    source, tokens = provider(lambda: next(inputs), monkeypatch), Tokens(clock)
    assert [ask(tokens, source, clock).value.reveal() for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "end_s"),
    [
        *((jwt(1234), 1234), (jwt(None), None), ("opaque", None), ("a.b.c", None), ("a.W10.c", None), ("..", None)),
        *((jwt(10**400), None), (jwt(float("nan")), None), (jwt(True), None)),
    ],
)
def test_jwt_expiry_is_read(text: str, end_s: float | None) -> None:
    assert jwt_expiry_s(text) == end_s


# -- user-defined functions -----------------------------------------------------------------------


def provider(function: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> TokenProvider:
    module = ModuleType("module_of_a_test")
    module.__dict__["token"] = function
    monkeypatch.setitem(sys.modules, "module_of_a_test", module)
    return TokenProvider("module_of_a_test:token")


@pytest.mark.parametrize(
    ("inputs", "end_s", "extensions"),
    [("a", None, {}), (jwt(9e9), 9e9, {}), (("a", 9e9), 9e9, {}), (("a", None, {"b": "c"}), None, {"b": "c"})],
)
def test_function_results_are_accepted(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch, inputs: Any, end_s: float | None, extensions: dict[str, str]
) -> None:
    token = ask(Tokens(clock), provider(lambda: inputs, monkeypatch), clock)
    assert (token.expires_at_s, token.extensions) == (end_s, extensions)


MILLISECONDS = 1_700_000_000_000


@pytest.mark.parametrize(
    "inputs",
    [
        *(None, b"hunter2", ("hunter2", 1, {}, 4), 7, ()),
        *(("hunter2", end) for end in ("1", datetime.now(timezone.utc), float("nan"), 10**400, MILLISECONDS)),
        *(("hunter2", None, extensions) for extensions in ([("a", "b")], {"a": 1}, {1: "a"})),
    ],
)
def test_invalid_function_result_is_refused_without_showing_it(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch, inputs: object
) -> None:
    with pytest.raises(ConfigurationError, match=r"module_of_a_test:token returned \w+; it must return a to") as raised:
        ask(Tokens(clock), provider(lambda: inputs, monkeypatch), clock)
    assert "seconds (not milliseconds) since 1970" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_error_of_a_function_is_shown_only_if_it_is_of_this_package(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise error

    error: Exception = ValueError("hunter2")
    with pytest.raises(AuthenticationFailed, match="raised ValueError") as raised:
        ask(Tokens(clock), provider(fail, monkeypatch), clock)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    error = ConnectFailed("no token from a cloud; do this")
    with pytest.raises(ConnectFailed, match="no token from a cloud; do this"):
        ask(Tokens(clock), provider(fail, monkeypatch), clock)


@pytest.mark.parametrize("function", ["not_there_of_a_test:token", "json:not_there"])
def test_function_that_cannot_be_imported_names_driver_and_executors(clock: WallClock, function: str) -> None:
    with pytest.raises(ConfigurationError, match="Install it on the driver and on the executors"):
        ask(Tokens(clock), TokenProvider(function), clock)


# -- files, and unsigned tokens -------------------------------------------------------------------


def test_token_file_is_read_again(clock: WallClock, tmp_path: Path) -> None:
    file, tokens = tmp_path / "token", Tokens(clock)
    config = SaslConfig(mechanism="OAUTHBEARER", token_endpoint_url=f"file://{file}")
    source = credentials(config)
    assert source == TokenFile(str(file))
    file.write_text(f"{jwt(clock.wall_ms() / 1000 + LIFETIME_S)}\n")
    first = ask(tokens, source, clock)
    file.write_text("other")
    assert ask(tokens, source, clock) is first
    clock.at_s += LIFETIME_S
    assert ask(tokens, source, clock).value.reveal() == "other"


def test_missing_token_file_is_named(clock: WallClock) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read \(FileNotFoundError\): /no/such/token"):
        ask(Tokens(clock), TokenFile("/no/such/token"), clock)


def test_unsecured_token_has_the_configured_claims(clock: WallClock) -> None:
    text = (
        f'{KAFKA} unsecuredLoginStringClaim_sub="me" unsecuredLoginListClaim_scope="|a|b" '
        'unsecuredLoginNumberClaim_n="1.5" unsecuredLoginLifetimeSeconds="7" unsecuredLoginExtension_traceId="9";'
    )
    source = credentials(SaslConfig(mechanism="OAUTHBEARER", jaas_config=Secret(text)))
    assert isinstance(source, UnsecuredToken)
    token = unsecured_token(source.options, 1000.0)
    header, claims, signature = token.value.reveal().split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    expected = {"sub": "me", "scope": ["a", "b"], "n": 1.5, "iat": 1000, "exp": 1007}
    assert json.loads(base64.urlsafe_b64decode(claims + "==")) == expected
    assert (signature, token.expires_at_s, token.extensions) == ("", 1007, {"traceId": "9"})


AWS = "software.amazon.msk.auth.iam.IAMLoginModule required"


def test_aws_credentials_are_read_from_jaas_options() -> None:
    def of(settings: str) -> object:
        return credentials(SaslConfig(mechanism="AWS_MSK_IAM", jaas_config=Secret(f"{AWS} {settings};")))

    handler = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
    assert of('awsProfileName="" awsMaxRetries="7"') == AwsIam()
    assert credentials(SaslConfig(mechanism="OAUTHBEARER", login_handler=handler)) == AwsIam()
    who = {"username": Secret("me"), "password": Secret("hunter2")}
    assert credentials(SaslConfig(mechanism="PLAIN", login_handler=handler, **who)) == Password(*who.values())
    assert of('awsRoleArn="arn" awsRoleSessionName="me"') == AwsIam(role_arn="arn", role_session_name="me")
    with pytest.raises(ConfigurationError, match="whose awsRoleExternalId the AWS signer does not support") as refused:
        of('awsRoleArn="arn" awsRoleExternalId="hunter2"')
    assert "hunter2" not in str(refused.value)


# -- token endpoints ------------------------------------------------------------------------------


def test_client_credentials_get_a_token(endpoint: Endpoint, clock: WallClock) -> None:
    endpoint.answers = [gives(access_token="token", expires_in=LIFETIME_S, token_type="Bearer")]
    token = ask(Tokens(clock), client(endpoint.url, scope="a b"), clock)
    assert (token.value.reveal(), token.extensions) == ("token", {"traceId": "1"})
    assert token.expires_at_s == clock.wall_ms() / 1000 + LIFETIME_S
    ((path, headers, form),) = endpoint.asked
    assert path == "/token?tenant=a"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"me:{SECRET_OF_CLIENT}"
    assert form == {"grant_type": ["client_credentials"], "scope": ["a b"]}


def test_busy_endpoint_is_retried(endpoint: Endpoint, clock: WallClock) -> None:
    endpoint.answers = [(503, {}, b""), (429, {}, b"later"), gives(access_token="token")]
    assert ask(Tokens(clock), client(endpoint.url), clock).value.reveal() == "token"
    assert [round(wait_s, 1) for wait_s in clock.slept] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {}, b'{"error":"invalid_client","error_description":"not here"}'), "'invalid_client', 'not here'"),
        ((400, {}, json.dumps({"error": f"not {SECRET_OF_CLIENT}"}).encode()), "'not [hidden]'"),
        (gives(access_token=7, expires_in=10**400), "the response has status 200 and no access_token"),
        ((400, {}, b"not json"), "the response has status 400 and no access_token"),
        (gives(token="hunter2"), "the response has status 200 and no access_token"),
        ((200, {}, b"[" * 100_000), "the response has status 200 and no access_token"),
    ],
)
def test_refusal_is_final(endpoint: Endpoint, clock: WallClock, answer: Any, message: str) -> None:
    endpoint.answers = [answer]
    with pytest.raises(AuthenticationFailed, match="check the client's id, its secret and the scope") as raised:
        ask(Tokens(clock), client(endpoint.url), clock)
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert len(endpoint.asked) == 1


def test_secret_is_not_sent_to_a_redirect(endpoint: Endpoint, clock: WallClock) -> None:
    with Endpoint() as second:
        second.answers = endpoint.answers = [(307, {"Location": second.url}, b"")]
        with pytest.raises(AuthenticationFailed, match="the response has status 307"):
            ask(Tokens(clock), client(endpoint.url), clock)
    assert not second.asked


def test_certificate_of_an_endpoint_is_checked(clock: WallClock, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    with Endpoint(authority.issue("endpoint", ["127.0.0.1"])) as endpoint:
        endpoint.answers = [gives(access_token="token")]
        with pytest.raises(AuthenticationFailed, match=r"of the token endpoint https://127.0.0.1:\d+ is not"):
            ask(Tokens(clock), client(endpoint.url), clock)
        assert not endpoint.asked
        # As in many configurations copied from Kafka's documentation: in Java, SSL means TLS.
        tls = f'ssl.protocol="SSL" ssl.truststore.location="{authority.certificate}"'
        text = f'{KAFKA} clientId="me" clientSecret="secret" {tls};'
        config = SaslConfig(mechanism="OAUTHBEARER", jaas_config=Secret(text), token_endpoint_url=endpoint.url)
        source = credentials(config)
        assert isinstance(source, TokenEndpoint)
        assert ask(Tokens(clock), source, clock).value.reveal() == "token"


def test_ca_of_the_system_is_trusted_as_by_java(
    clock: WallClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = authority_without_key_identifiers(tmp_path, monkeypatch)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with Endpoint(authority.issue("endpoint", ["127.0.0.1"])) as endpoint:
        endpoint.answers = [gives(access_token="token")]
        assert ask(Tokens(clock), client(endpoint.url), clock).value.reveal() == "token"


NOWHERE = ("ftp://localhost/token", "https://", "https://[::1/", "https://a:b/", "https://a:99999/", "https://a/ä")


@pytest.mark.parametrize("url", NOWHERE)
def test_invalid_endpoint_is_refused(clock: WallClock, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is neither https://… nor file:///…"):
        ask(Tokens(clock), client(url), clock)


def test_user_in_the_endpoint_url_is_not_shown(endpoint: Endpoint, clock: WallClock) -> None:
    endpoint.answers = [(400, {}, b"")]
    with pytest.raises(AuthenticationFailed, match=r"no token from http://127.0.0.1:\d+: ") as raised:
        ask(Tokens(clock), client(endpoint.url.replace("//", "//me:hunter2@")), clock)
    assert "hunter2" not in str(raised.value)


def drips(sock: socket.socket) -> None:
    """Send single bytes in time, but never the whole response."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        time.sleep(0.02)
        sock.sendall(b" ")


def is_cut_off(sock: socket.socket) -> None:
    sock.recv(65_536)
    sock.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"access_token": "to')


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("talk", [drips, is_cut_off])
def test_endless_response_fails_in_time(talk: Talk, scheme: str) -> None:
    with server(talk) as (port, _):
        began_s = time.monotonic()
        config, source = SaslConfig(login_read_timeout_ms=300), client(f"{scheme}://127.0.0.1:{port}/")
        with pytest.raises(ConnectFailed, match=f"no token from {scheme}://127.0.0.1:{port}: "):
            Tokens(SYSTEM_CLOCK).token(source, config, "broker:9093", Deadline.after_ms(500))
        assert time.monotonic() - began_s < 15
