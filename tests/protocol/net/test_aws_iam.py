"""AWS_MSK_IAM: the client sends the token that AWS's own signer creates."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from protocol.clock import SYSTEM_CLOCK, Deadline
from protocol.net.authenticate import Authenticator
from protocol.sasl.config import SaslConfig
from protocol.secret import Secret
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.schema import Api

signer = pytest.importorskip(
    "aws_msk_iam_sasl_signer.MSKAuthTokenProvider",
    reason="pip install aws-msk-iam-sasl-signer-python brings AWS's signer",
)
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule required"
ADDRESS = "b-1.orders.abc123.c2.kafka.eu-north-1.amazonaws.com:9098"


def sent(jaas: str, address: str) -> tuple[str, str]:
    """Return the mechanism and the token that a broker at `address` receives."""
    seen: list[str] = []

    def ask(api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        seen.append(body["mechanism"] if api is SASL_HANDSHAKE else bytes(body["auth_bytes"]).decode())
        return {"error_code": 0, "auth_bytes": b"", "session_lifetime_ms": 0}

    config = SaslConfig(mechanism="AWS_MSK_IAM", jaas_config=Secret(jaas))
    Authenticator(config, SYSTEM_CLOCK).authenticate(address, ask, Deadline.after_ms(5_000))
    return seen[0], seen[1].split("\x01")[1].removeprefix("auth=Bearer ")


def signed_at(token: str) -> str:
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    return parse_qs(urlsplit(url).query)["X-Amz-Date"][0]


@pytest.mark.parametrize("profile", [None, "other"])
def test_token_equals_the_signers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str | None) -> None:
    keys = tmp_path / "credentials"
    keys.write_text("[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = of-the-other\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-a-test")
    while True:  # until both have the same second
        mechanism, token = sent(f'{MODULE} awsProfileName="{profile}";' if profile else f"{MODULE};", ADDRESS)
        if profile:
            expected, _ = signer.generate_auth_token_from_profile("eu-north-1", profile)
        else:
            expected, _ = signer.generate_auth_token("eu-north-1")
        if signed_at(token) == signed_at(expected):
            break
    assert (mechanism, token) == ("OAUTHBEARER", expected)


def test_region_comes_from_the_environment_if_the_host_name_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-a-test")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    _, token = sent(f"{MODULE};", "broker.example.com:9098")
    assert b"us-west-2" in base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
