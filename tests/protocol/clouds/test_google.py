"""Tokens for Google's Managed Kafka, from stand-ins of the metadata server and of the token endpoint.

The requests and responses are those of Google's documentation; no test reaches Google.
"""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.clouds import google_managed_kafka_token
from protocol.errors import AuthenticationFailed, ConnectFailed
from tests.protocol.clouds.signing_in import TYPE, SigningIn, all_that_shows, decoded, failure, jwt, tokens_over_time
from tests.support.cloud_endpoints import BROKEN, GARBAGE, Answer, CloudEndpoint, echo, json_answer

BROKER = "bootstrap.orders.us-central1.managedkafka.project.cloud.goog:9092"
GOOGLE = {TYPE: "google_managed_kafka"}
HANDLER = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"
JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
EMAIL = "orders@project.iam.gserviceaccount.com"
ACCOUNT = "/computeMetadata/v1/instance/service-accounts"
FLAVOR = {"Metadata-Flavor": "Google", "Content-Type": "application/text"}
JSON_FLAVOR = {**FLAVOR, "Content-Type": "application/json"}
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ACCESS_TOKEN = "ya29.c.access-token_of-a.test"


@pytest.fixture(autouse=True)
def google_auth() -> None:
    pytest.importorskip("google.auth", reason="pip install google-auth brings it")


@pytest.fixture
def metadata_server(endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudEndpoint]:
    """A stand-in for metadata.google.internal."""
    # google-auth reads the first variable when it is imported, and the second one then or later.
    module = importlib.import_module("google.auth.compute_engine._metadata")
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, endpoint.address)
    importlib.reload(module)
    endpoint.answers |= {
        "GET /": (200, FLAVOR, b"computeMetadata/"),
        "GET /computeMetadata/v1/": (200, FLAVOR, b"instance/"),
        "GET /computeMetadata/v1/project/project-id": (200, FLAVOR, b"project"),
        "GET /computeMetadata/v1/universe/universe-domain": (200, FLAVOR, b"googleapis.com"),
        f"GET {ACCOUNT}/default/": json_answer(headers=JSON_FLAVOR, email=EMAIL, aliases=["default"], scopes=[SCOPE]),
    }
    for account in ("default", EMAIL):
        endpoint.answers[f"GET {ACCOUNT}/{account}/token"] = metadata_token(ACCESS_TOKEN)
    yield endpoint
    monkeypatch.undo()
    importlib.reload(module)


def metadata_token(text: str, lifetime_s: int = 3_599) -> Answer:
    return json_answer(headers=JSON_FLAVOR, access_token=text, expires_in=lifetime_s, token_type="Bearer")


@pytest.fixture
def service_account(endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A service account's file, whose token endpoint is the stand-in; return the private key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    form = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    file = tmp_path / "key.json"
    fields = {"type": "service_account", "project_id": "project", "private_key_id": "1", "private_key": pem}
    fields |= {"client_email": EMAIL, "client_id": "1", "token_uri": f"{endpoint.url}/token"}
    file.write_text(json.dumps(fields))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    endpoint.answers["POST /token"] = json_answer(access_token=ACCESS_TOKEN, expires_in=3_599, token_type="Bearer")
    return pem


def parts_of(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    header, claims, access_token = token.split(".")
    return json.loads(decoded(header)), json.loads(decoded(claims)), decoded(access_token)


def require_form_of_brokers(token: str) -> None:
    header, claims, access_token = parts_of(token)
    assert header == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    assert (claims["iss"], claims["scope"], claims["sub"]) == ("Google", "kafka", EMAIL)
    assert claims["iat"] <= time.time() < claims["exp"] <= time.time() + 3_600
    assert access_token == ACCESS_TOKEN


@pytest.mark.parametrize(
    "options",
    [GOOGLE, {"sasl.login.callback.handler.class": HANDLER, "sasl.jaas.config": JAAS}],
    ids=["the type", "the class of Google's Java library"],
)
def test_metadata_server_gives_token_in_the_form_of_brokers(
    metadata_server: CloudEndpoint, options: dict[str, str]
) -> None:
    require_form_of_brokers(SigningIn(BROKER, options).again())
    assert {request.headers["metadata-flavor"] for request in metadata_server.requests} == {"Google"}


def test_service_account_file_gives_token_in_the_form_of_brokers(endpoint: CloudEndpoint, service_account: str) -> None:
    require_form_of_brokers(SigningIn(BROKER, GOOGLE).again())
    (request,) = endpoint.requests
    assert request.form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    claims = json.loads(decoded(request.form["assertion"][0].split(".")[1]))
    assert (claims["iss"], claims["scope"]) == (EMAIL, SCOPE)


def test_google_token_is_renewed_after_four_fifths(metadata_server: CloudEndpoint) -> None:
    texts = iter(["one", "two"])
    for account in ("default", EMAIL):
        metadata_server.answers[f"GET {ACCOUNT}/{account}/token"] = lambda request: metadata_token(next(texts), 1_000)
    tokens = tokens_over_time(BROKER, GOOGLE, (0, 700, 200))
    assert [parts_of(token)[2] for token in tokens] == ["one", "one", "two"]


@pytest.mark.parametrize("answer", [None, BROKEN, GARBAGE, echo], ids=["silence", "500", "garbage", "echo"])
def test_google_failure_names_cause_and_remedy_without_secrets(
    endpoint: CloudEndpoint, service_account: str, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    endpoint.answers["POST /token"] = answer  # type: ignore[assignment]
    with caplog.at_level(logging.DEBUG):
        # google-auth retries after a 500 for some seconds.
        error = failure(BROKER, GOOGLE, timeout_s=2 if answer in (None, BROKEN) else 60)
    assert isinstance(error, ConnectFailed if answer in (None, BROKEN) else AuthenticationFailed)
    assert "no token from Google (google-auth)" in str(error)
    assert "set GOOGLE_APPLICATION_CREDENTIALS to a file of credentials in this process" in str(error)
    logged = "".join(record.getMessage() for record in caplog.records)
    line = service_account.splitlines()[1]
    assertions = [request.form["assertion"][0] for request in endpoint.requests]
    shown = (str(error), all_that_shows(error), logged)
    assert [text for text in shown if line in text or any(assertion in text for assertion in assertions)] == []


def test_missing_file_of_credentials_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/key.json")
    error = failure(BROKER, GOOGLE)
    assert isinstance(error, AuthenticationFailed)
    assert "DefaultCredentialsError: File /no/such/key.json was not found" in str(error)


class Given:
    """Credentials as google-auth's, without an account."""

    def __init__(self, **fields: Any) -> None:
        from datetime import datetime, timedelta, timezone

        self.token, self.expiry = ACCESS_TOKEN, datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(hours=1)
        vars(self).update(fields)

    def refresh(self, request: object) -> None:
        pass


@pytest.mark.parametrize(
    "fields", [{"service_account_email": EMAIL}, {"account": EMAIL}, {"account": "", "id_token": jwt(email=EMAIL)}]
)
def test_principal_is_the_email_of_given_credentials(fields: dict[str, Any]) -> None:
    token, ends_s = google_managed_kafka_token(credentials=Given(**fields))
    require_form_of_brokers(token)
    assert abs(ends_s - time.time() - 3_600) < 60


def test_credentials_without_email_are_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="Given has no email address, which Google's brokers require"):
        google_managed_kafka_token(credentials=Given())
