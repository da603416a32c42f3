"""Tokens of Entra ID, from stand-ins of the metadata endpoint (IMDS) and of Entra ID's token endpoint.

The requests and responses are those of Microsoft's documentation; no test reaches Azure.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed
from protocol.sasl.cloud_identity import AzureImds, cloud_identity
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from tests.protocol.clouds import signing_in
from tests.protocol.clouds.signing_in import CONFIG, EVENT_HUBS, TYPE, SigningIn, all_that_shows, failure, jwt
from tests.support.cloud_endpoints import BROKEN, GARBAGE, Answer, CloudEndpoint, Request, echo, json_answer

IMDS = "GET /metadata/identity/oauth2/token"
URL = "sasl.oauthbearer.token.endpoint.url"
NAMESPACE = "https://orders.servicebus.windows.net"
OWN_QUERY = "api-version=2025-04-07&resource=api://app&client_id=1234"
SECRET = "hunter2-of-the-client"
NO_IDENTITY = json_answer(400, error="invalid_request", error_description="Identity not found")


def imds_token(token: str, lifetime_s: int = 86_400) -> Answer:
    """Answer as documented: all numbers are texts."""
    now_s, lifetime = int(time.time()), str(lifetime_s)
    return json_answer(
        access_token=token, client_id="c0ffee", resource=NAMESPACE, token_type="Bearer", not_before=str(now_s),
        expires_in=lifetime, ext_expires_in=lifetime, expires_on=str(now_s + lifetime_s),
    )  # fmt: skip


def imds(endpoint: CloudEndpoint, **arguments: str) -> dict[str, str]:
    return {TYPE: "azure_imds", URL: f"{endpoint.url}/metadata/identity/oauth2/token", **arguments}


# -- azure_imds: without a library -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "config", "query"),
    [
        (EVENT_HUBS, {}, f"api-version=2018-02-01&resource={NAMESPACE}"),
        ("broker:9092", {CONFIG: f"query={OWN_QUERY}"}, OWN_QUERY),
    ],
    ids=["namespace, as documented", "own query, as librdkafka"],
)
def test_imds_is_asked_with_the_query(
    endpoint: CloudEndpoint, address: str, config: dict[str, str], query: str
) -> None:
    endpoint.answers[IMDS] = imds_token("opaque-token")
    assert SigningIn(address, imds(endpoint, **config)).again() == "opaque-token"
    (request,) = endpoint.requests
    assert request.headers["metadata"] == "true"
    assert request.query == parse_qs(query)


def test_imds_without_query_for_another_broker_names_the_setting(endpoint: CloudEndpoint) -> None:
    error = failure("broker:9092", imds(endpoint))
    assert isinstance(error, ConfigurationError)
    assert "set sasl.oauthbearer.config to query=api-version=2018-02-01&resource=RESOURCE" in str(error)


def test_default_imds_address_is_the_documented_one() -> None:
    config = SigningIn(EVENT_HUBS, {TYPE: "azure_imds"}).config.sasl
    assert config.token_endpoint_url is None
    assert cloud_identity(config) == AzureImds("http://169.254.169.254/metadata/identity/oauth2/token", None)


def test_imds_token_is_renewed_before_it_expires(endpoint: CloudEndpoint) -> None:
    inputs = iter(["one", "two"])
    endpoint.answers[IMDS] = lambda request: imds_token(next(inputs), lifetime_s=100)
    assert signing_in.tokens_over_time(EVENT_HUBS, imds(endpoint), (0, 79, 2)) == ["one", "one", "two"]


@pytest.mark.parametrize("status", [404, 410, 429, 500, 503])
def test_busy_imds_is_retried(endpoint: CloudEndpoint, status: int) -> None:
    answers: Iterator[Answer] = iter([(status, {}, b""), imds_token("late-token")])
    endpoint.answers[IMDS] = lambda request: next(answers)
    assert SigningIn(EVENT_HUBS, imds(endpoint)).again() == "late-token"


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (None, ConnectFailed, "no complete response in time"),
        (BROKEN, ConnectFailed, "the response has status 500 and no access_token"),
        (GARBAGE, AuthenticationFailed, "the response has status 200 and no access_token"),
        (NO_IDENTITY, AuthenticationFailed, "'Identity not found'"),
    ],
    ids=["silence", "500", "garbage", "no identity"],
)
def test_imds_failure_names_cause_and_remedy(
    endpoint: CloudEndpoint, answer: Answer | None, kind: type[Exception], says: str
) -> None:
    endpoint.otherwise = answer
    # The next attempt would be after the deadline.
    once = {"sasl.login.retry.backoff.ms": "90000", "sasl.login.retry.backoff.max.ms": "90000"}
    silence = {"sasl.login.read.timeout.ms": "200"} if answer is None else {}
    error = failure(EVENT_HUBS, imds(endpoint, **once, **silence))
    assert isinstance(error, kind)
    assert says in str(error)
    assert "check that this process runs on an Azure VM with a managed identity" in str(error)


# -- azure: azure-identity -------------------------------------------------------------------------


@pytest.fixture
def entra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CloudEndpoint]:
    """A stand-in for login.microsoftonline.com, which azure-identity reaches with TLS only."""
    identity = pytest.importorskip("azure.identity", reason="pip install azure-identity brings it")
    authority = CertificateAuthority(tmp_path / "ca")
    # MSAL would ask login.microsoftonline.com whether it knows the stand-in.
    unknown = functools.partial(identity.DefaultAzureCredential, disable_instance_discovery=True)
    monkeypatch.setattr("azure.identity.DefaultAzureCredential", unknown)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))
    with CloudEndpoint(authority.issue("login", ["127.0.0.1"])) as login:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", login.url)
        login.answers["GET /tenant/v2.0/.well-known/openid-configuration"] = json_answer(
            token_endpoint=f"{login.url}/tenant/oauth2/v2.0/token",
            authorization_endpoint=f"{login.url}/tenant/oauth2/v2.0/authorize",
            issuer=f"{login.url}/tenant/v2.0",
        )
        yield login


TOKEN = "POST /tenant/oauth2/v2.0/token"


def last_form(entra: CloudEndpoint) -> dict[str, str]:
    return {name: values[0] for name, values in entra.requests[-1].form.items()}


def client_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "application")
    monkeypatch.setenv("AZURE_CLIENT_SECRET", SECRET)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")


def entra_token(token: str, lifetime_s: int = 3_599) -> Answer:
    return json_answer(access_token=token, expires_in=lifetime_s, ext_expires_in=lifetime_s, token_type="Bearer")


def test_client_secret_of_the_environment_gets_a_token(entra: CloudEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    client_secret(monkeypatch)
    entra.answers[TOKEN] = entra_token("token-of-entra")
    assert SigningIn(EVENT_HUBS, {TYPE: "azure"}).again() == "token-of-entra"
    secret = {"client_id": "application", "client_secret": SECRET}
    expected = {**secret, "grant_type": "client_credentials", "scope": f"{NAMESPACE}/.default"}
    assert expected.items() <= last_form(entra).items()


def test_workload_identity_sends_the_service_account_token(
    entra: CloudEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "azure-identity-token").write_text("projected-service-account-token")
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "application")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "azure-identity-token"))
    entra.answers[TOKEN] = entra_token("token-of-entra")
    properties = {TYPE: "azure", "sasl.oauthbearer.scope": "api://kafka/.default"}
    assert SigningIn("broker:9092", properties).again() == "token-of-entra"
    expected = {
        "client_id": "application",
        "client_assertion": "projected-service-account-token",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "grant_type": "client_credentials",
        "scope": "api://kafka/.default",
    }
    assert expected.items() <= last_form(entra).items()


def test_managed_identity_is_asked_for_with_its_client_id(
    endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("azure.identity", reason="pip install azure-identity brings it")
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", endpoint.url)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    endpoint.answers[IMDS] = imds_token(jwt(exp=int(time.time()) + 86_400))
    token = SigningIn(EVENT_HUBS, {TYPE: "azure", CONFIG: "client_id=1234"}).again()
    assert token.startswith("ey")
    request = endpoint.requests[-1]
    assert request.headers["metadata"] == "true"
    assert (request.query["resource"], request.query["client_id"]) == ([NAMESPACE], ["1234"])


def test_entra_token_is_renewed_after_four_fifths(entra: CloudEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    client_secret(monkeypatch)
    inputs = iter(["one", "two"])
    entra.answers[TOKEN] = lambda request: entra_token(next(inputs), lifetime_s=1_000)
    assert signing_in.tokens_over_time(EVENT_HUBS, {TYPE: "azure"}, (0, 700, 200)) == ["one", "one", "two"]


@pytest.mark.parametrize("answer", [None, BROKEN, GARBAGE, echo], ids=["silence", "500", "garbage", "echo"])
def test_entra_failure_names_cause_and_remedy_without_secrets(
    entra: CloudEndpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    client_secret(monkeypatch)
    entra.answers[TOKEN] = answer  # type: ignore[assignment]
    with caplog.at_level(logging.DEBUG):
        error = failure(EVENT_HUBS, {TYPE: "azure"}, timeout_s=2 if answer is None else 60)
    assert "no token from Entra ID for the scope https://orders.servicebus.windows.net/.default" in str(error)
    assert "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET" in str(error)
    assert isinstance(error, ConnectFailed if answer is None else AuthenticationFailed)
    assert "within 2" in str(error) or "Error" in str(error)
    ours = "".join(record.getMessage() for record in caplog.records)
    assert [text for text in (str(error), all_that_shows(error), ours) if SECRET in text] == []


def test_scope_is_required_for_another_broker() -> None:
    error = failure("broker:9092", {TYPE: "azure"})
    assert "broker:9092 is no Event Hubs namespace; set sasl.oauthbearer.scope" in str(error)


def test_confluent_extensions_are_sent_with_the_token(endpoint: CloudEndpoint) -> None:
    endpoint.answers[IMDS] = imds_token("opaque-token")
    extensions = {"sasl.oauthbearer.extensions": r"logicalCluster=lkc-1,identityPoolId=pool-a\,pool-b"}
    client = SigningIn("pkc-1.confluent.cloud:9092", imds(endpoint, **{CONFIG: "query=resource=a"}, **extensions))
    client.again()
    pool = {"logicalCluster": "lkc-1", "identityPoolId": "pool-a,pool-b"}
    assert client.fields == {"auth": "Bearer opaque-token", **pool}


def test_silent_request_is_not_repeated_by_the_next_attempt(endpoint: CloudEndpoint) -> None:
    """A connection per second to a silent endpoint must not collect threads."""
    from protocol.clouds import azure_token

    requested: list[str] = []
    started = threading.Event()

    class Silent:
        def get_token(self, scope: str) -> Request:
            requested.append(scope)
            started.set()
            endpoint.closing.wait(60)
            raise TimeoutError

    credential = Silent()
    for _ in range(3):
        with pytest.raises(ConnectFailed, match=r"within 0\.1 s"):
            azure_token("a", credential=credential, timeout_s=0.1)
    assert started.wait(30)
    assert requested == ["a"]
