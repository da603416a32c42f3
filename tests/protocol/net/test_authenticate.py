"""Authentication shared by a client's connections: which connection tries, and when a refusal is retried."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed, ConnectionLost, RequestTimedOut
from protocol.net.authenticate import Authenticator
from protocol.sasl.config import SaslConfig
from protocol.settings.secret import Secret
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.schema import Api
from tests.support.background import background

ALICE = SaslConfig(mechanism="PLAIN", username=Secret("alice"), password=Secret("secret"))
TAKEN: dict[str, Any] = {"error_code": 0, "auth_bytes": b"", "session_lifetime_ms": 0}
REFUSED = {**TAKEN, "error_code": 58, "error_message": "no such user"}


class Broker:
    """Answer SaslAuthenticate with `answer`, or raise it; count the requests."""

    def __init__(self, answer: Mapping[str, Any] | Exception = TAKEN) -> None:
        self.answer = answer
        self.tries = 0

    def ask(self, api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        if api is SASL_HANDSHAKE:
            return {"error_code": 0, "mechanisms": []}
        self.tries += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def sign_in(
    authenticator: Authenticator, broker: Broker, clock: ManualClock, timeout_ms: float = 1_000
) -> float | None:
    deadline = Deadline.after_ms(timeout_ms, clock)
    return authenticator.authenticate("broker:9093", broker.ask, deadline).reauthenticate_after_s


@pytest.mark.parametrize(
    ("lifetime_ms", "again_in_s"), [(0, None), (3_600_000, 2_880), (2_000, 1.6), (1_000, 1.05), (10, 1.05)]
)
def test_session_is_renewed_before_it_expires_but_not_within_a_second(
    lifetime_ms: int, again_in_s: float | None
) -> None:
    clock = ManualClock()
    broker = Broker({**TAKEN, "session_lifetime_ms": lifetime_ms})
    assert sign_in(Authenticator(ALICE, clock), broker, clock) == again_in_s


def test_refused_credentials_are_retried_with_growing_delays() -> None:
    clock, broker = ManualClock(), Broker(REFUSED)
    authenticator, observed = Authenticator(ALICE, clock), []
    for _ in range(200):
        with pytest.raises(AuthenticationFailed, match="no such user"):
            sign_in(authenticator, broker, clock)
        observed.append(broker.tries)
        clock.advance(1)
    tries_at_s = [second for second in range(1, 200) if observed[second] > observed[second - 1]]
    assert 8 <= tries_at_s[0] <= 13
    assert 16 <= tries_at_s[1] - tries_at_s[0] <= 25
    assert broker.tries <= 6
    broker.answer = TAKEN
    clock.advance(400)
    assert sign_in(authenticator, broker, clock) is None


def test_password_file_missing_during_replacement_keeps_the_old_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    config = replace(ALICE, password=Secret(f"${{dir:{tmp_path}:password}}"))
    clock, broker = ManualClock(), Broker()
    authenticator = Authenticator(config, clock)
    sign_in(authenticator, broker, clock)
    file.unlink()
    sign_in(authenticator, broker, clock)
    assert "cannot be resolved" in caplog.text
    assert "The previous value is still used" in caplog.text
    # A connection without earlier success gets the error.
    with pytest.raises(ConfigurationError, match="cannot be resolved"):
        sign_in(Authenticator(config, clock), broker, clock)
    # A refused password is not kept either.
    broker.answer = REFUSED
    with pytest.raises(AuthenticationFailed):
        sign_in(authenticator, broker, clock)
    clock.advance(20)
    with pytest.raises(ConfigurationError, match="cannot be resolved"):
        sign_in(authenticator, broker, clock)


def test_refused_token_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that sign tokens may change long before a token expires."""
    properties: list[str] = []

    def token() -> tuple[str, float]:
        properties.append(f"token{len(properties)}")
        return properties[-1], clock.wall_ms() / 1000 + 3_600

    monkeypatch.setattr("tests.support.token_of_alice.token", token)
    clock, broker = ManualClock(), Broker()
    source = SaslConfig(mechanism="OAUTHBEARER", token_provider="tests.support.token_of_alice:token")
    authenticator = Authenticator(source, clock)
    for _ in range(2):
        sign_in(authenticator, broker, clock)
    assert properties == ["token0"]
    broker.answer = REFUSED
    with pytest.raises(AuthenticationFailed):
        sign_in(authenticator, broker, clock)
    broker.answer = TAKEN
    clock.advance(20)
    sign_in(authenticator, broker, clock)
    assert properties == ["token0", "token1"]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (ConnectionLost("gone"), ConnectionLost, "gone"),
        (RequestTimedOut("late"), RequestTimedOut, "late"),
        (
            {**TAKEN, "error_code": ErrorCode.UNKNOWN_SERVER_ERROR},
            ConnectFailed,
            "broker:9093: not authenticated: the broker replied UNKNOWN_SERVER_ERROR",
        ),
    ],
    ids=["lost connection", "timeout", "failure of the broker"],
)
def test_failure_while_authenticating_does_not_count_as_refusal(
    answer: Mapping[str, Any] | Exception, error: type[Exception], words: str
) -> None:
    clock, broker = ManualClock(), Broker(answer)
    authenticator = Authenticator(ALICE, clock)
    with pytest.raises(error, match=words):
        sign_in(authenticator, broker, clock)
    broker.answer = TAKEN
    assert sign_in(authenticator, broker, clock) is None


def test_connections_wait_for_the_first_authentication() -> None:
    clock, first, second = ManualClock(), Broker(), Broker()
    authenticator = Authenticator(ALICE, clock)
    event, answered = threading.Event(), threading.Event()

    def slowly(api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        event.set()
        answered.wait(10)
        return first.ask(api, at_least, body, deadline)

    def sign_in_slowly() -> None:
        authenticator.authenticate("broker:9093", slowly, Deadline.after_ms(10_000, clock))

    with background(sign_in_slowly):
        event.wait(10)
        with pytest.raises(RequestTimedOut, match="another connection was still trying"):
            sign_in(authenticator, second, clock, timeout_ms=10)
        answered.set()
    assert (first.tries, second.tries) == (1, 0)
    assert sign_in(authenticator, second, clock) is None


EXTRAS = {
    "kerberos": SaslConfig("GSSAPI", kerberos_service_name="kafka"),
    "msk-iam": SaslConfig("AWS_MSK_IAM"),
    "aws": SaslConfig("OAUTHBEARER", metadata_type="aws_iam", metadata_config=Secret("region=a,audience=b")),
    "azure": SaslConfig("OAUTHBEARER", metadata_type="azure", scope="api://a/.default"),
    "google": SaslConfig("OAUTHBEARER", metadata_type="google_managed_kafka"),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_missing_package_is_named(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = ("gssapi", "aws_msk_iam_sasl_signer", "botocore", "azure", "google.auth")
    # Other tests of this process may have imported their modules.
    imported = [name for name in sys.modules if name.startswith(tuple(f"{package}." for package in packages))]
    for name in (*packages, *imported):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    clock, broker = ManualClock(), Broker()
    with pytest.raises(ConfigurationError, match=rf"pip install 'spark-kafka-source\[{extra}\]'"):
        sign_in(Authenticator(EXTRAS[extra], clock), broker, clock)
    assert broker.tries == 0
