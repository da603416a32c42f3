"""Tokens for MSK with IAM, and of STS, from stand-ins of AWS's endpoints for credentials.

The requests and responses are those of AWS's documentation; no test reaches AWS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed
from protocol.sasl.cloud_identity import AwsIam, AwsWebIdentity
from protocol.sasl.credentials import credentials
from tests.protocol.clouds.signing_in import CONFIG, MSK, TYPE, SigningIn, all_that_shows, decoded, failure
from tests.support.cloud_endpoints import BROKEN, GARBAGE, Answer, CloudEndpoint, echo, json_answer

MODULE = "software.amazon.msk.auth.iam.IAMLoginModule required"
KEY, SECRET, SESSION = "AKIATEST", "hunter2-of-the-access-key", "session-token/of+a=test"
ROLE = "arn:aws:iam::123456789012:role/orders"
AT = datetime(2026, 11, 25, 14, 13, 17, tzinfo=timezone.utc)
MSK_IAM = {TYPE: "aws_msk_iam"}
WEB_IDENTITY = {TYPE: "aws_iam", CONFIG: "region=eu-north-1,audience=https://confluent.cloud/oidc"}


@pytest.fixture
def signer() -> Any:
    reason = "pip install aws-msk-iam-sasl-signer-python brings AWS's signer"
    return pytest.importorskip("aws_msk_iam_sasl_signer.MSKAuthTokenProvider", reason=reason)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture
def stopped_clock(signer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let botocore sign at `AT`."""
    # The function that botocore 1.41 and later call.
    name = "botocore.auth.get_current_datetime"
    monkeypatch.setattr(name, lambda remove_tzinfo=True: AT.replace(tzinfo=None) if remove_tzinfo else AT)


def query_of(token: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(decoded(token)).query).items()}


def documented_token(region: str, key: str, secret: str, session: str | None, agent: str) -> str:
    """Return the token by AWS's description of Signature Version 4 in a query, without AWS's code."""
    day, moment = AT.strftime("%Y%m%d"), AT.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{day}/{region}/kafka-cluster/aws4_request"
    fields = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{key}/{scope}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": "900",
        **({"X-Amz-Security-Token": session} if session else {}),
        "X-Amz-SignedHeaders": "host",
    }
    host = f"kafka.{region}.amazonaws.com"

    def query(names: list[str]) -> str:
        return "&".join(f"{name}={quote(fields[name], safe='-_.~')}" for name in names)

    empty = hashlib.sha256(b"").hexdigest()
    canonical = f"GET\n/\n{query(sorted(fields))}\nhost:{host}\n\nhost\n{empty}"
    to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signing = f"AWS4{secret}".encode()
    for part in (day, region, "kafka-cluster", "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    signature = hmac.digest(signing, to_sign.encode(), "sha256").hex()
    # The order in the URL is the signer's: it adds the session token, the signature and its own version at the end.
    order = sorted(fields, key=lambda name: (name == "X-Amz-Security-Token", name))
    url = f"https://{host}/?{query(order)}&X-Amz-Signature={signature}&User-Agent={quote(agent, safe='')}"
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


# -- the token for MSK ------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [None, SESSION], ids=["permanent keys", "temporary keys"])
@pytest.mark.parametrize(
    "options",
    [{"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f"{MODULE};"}, MSK_IAM],
    ids=["AWS_MSK_IAM", "aws_msk_iam"],
)
@pytest.mark.usefixtures("keys", "stopped_clock")
def test_token_at_fixed_time_equals_the_signers_and_the_documented_one(
    signer: Any, monkeypatch: pytest.MonkeyPatch, session: str | None, options: dict[str, str]
) -> None:
    if session:
        monkeypatch.setenv("AWS_SESSION_TOKEN", session)
    token = SigningIn(MSK, options).again()
    expected, ends_at_ms = signer.generate_auth_token("eu-north-1")
    assert ends_at_ms == 1_000 * (AT + timedelta(seconds=900)).timestamp()
    assert token == expected
    assert token == documented_token("eu-north-1", KEY, SECRET, session, query_of(token)["User-Agent"])


@pytest.mark.parametrize(
    "options", [{CONFIG: "profile=other"}, {"sasl.jaas.config": f'{MODULE} awsProfileName="other";'}]
)
@pytest.mark.usefixtures("keys", "stopped_clock")
def test_token_of_profile_equals_the_signers(
    signer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, str]
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = of-the-other\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    how = MSK_IAM if CONFIG in options else {"sasl.mechanism": "AWS_MSK_IAM"}
    expected, _ = signer.generate_auth_token_from_profile("eu-north-1", "other")
    assert SigningIn(MSK, how | options).again() == expected


def test_region_comes_from_config_host_name_or_environment(
    signer: Any, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def region(address: str, options: dict[str, str]) -> str:
        return query_of(SigningIn(address, MSK_IAM | options).again())["X-Amz-Credential"].split("/")[2]

    assert region(MSK, {}) == "eu-north-1"
    assert region("boot-1.kafka-serverless.us-east-2.amazonaws.com:9098", {}) == "us-east-2"
    assert region(MSK, {CONFIG: "region=eu-west-1"}) == "eu-west-1"
    assert "names no AWS region; set the environment variable AWS_REGION" in str(failure("broker:9098", MSK_IAM))
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert region("broker:9098", {}) == "us-west-2"


def aws_keys(name: str, **more: str) -> dict[str, str]:
    ends = (datetime.now(timezone.utc) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"AccessKeyId": name, "SecretAccessKey": SECRET, "Token": SESSION, "Expiration": ends, **more}


def test_credentials_of_container_endpoint_are_used(
    signer: Any, endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "eks-pod-identity-token").write_text("token-of-the-pod")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "eks-pod-identity-token"))
    endpoint.answers["GET /v1/credentials"] = json_answer(**aws_keys("ASIACONTAINER"))
    query = query_of(SigningIn(MSK, MSK_IAM).again())
    assert query["X-Amz-Credential"].startswith("ASIACONTAINER/")
    assert query["X-Amz-Security-Token"] == SESSION
    assert endpoint.requests[0].headers["authorization"] == "token-of-the-pod"


def test_credentials_of_instance_metadata_version_2_are_used(
    signer: Any, endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint.url)
    roles = "GET /latest/meta-data/iam/security-credentials/"
    endpoint.answers |= {
        "PUT /latest/api/token": (200, {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}, b"token-of-imds"),
        roles: (200, {}, b"role-of-the-instance"),
        f"{roles}role-of-the-instance": json_answer(
            **aws_keys("ASIAINSTANCE", Code="Success", Type="AWS-HMAC", LastUpdated="2026-11-25T14:00:00Z")
        ),
    }
    assert query_of(SigningIn(MSK, MSK_IAM).again())["X-Amz-Credential"].startswith("ASIAINSTANCE/")
    first, *requests = endpoint.requests
    assert "x-aws-ec2-metadata-token-ttl-seconds" in first.headers
    assert {request.headers["x-aws-ec2-metadata-token"] for request in requests} == {"token-of-imds"}


def sts_answer(action: str, result: str) -> Answer:
    text = f"<{action}Response xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><{action}Result>{result}"
    return 200, {"Content-Type": "text/xml"}, f"{text}</{action}Result></{action}Response>".encode()


def sts_keys(action: str, name: str) -> Answer:
    fields = {name.replace("Token", "SessionToken"): value for name, value in aws_keys(name).items()}
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    return sts_answer(action, f"<Credentials>{inner}</Credentials>")


def test_credentials_of_web_identity_are_used(
    signer: Any, endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "service-account-token").write_text("token-of-the-service-account")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "service-account-token"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint.url)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    endpoint.answers["POST /"] = sts_keys("AssumeRoleWithWebIdentity", "ASIAWEB")
    assert query_of(SigningIn(MSK, MSK_IAM).again())["X-Amz-Credential"].startswith("ASIAWEB/")
    form = endpoint.requests[0].form
    assert (form["Action"], form["RoleArn"]) == (["AssumeRoleWithWebIdentity"], [ROLE])
    assert form["WebIdentityToken"] == ["token-of-the-service-account"]
    assert "authorization" not in endpoint.requests[0].headers


@pytest.mark.parametrize("way", ["jaas", "config"])
def test_role_is_assumed_first(
    signer: Any, keys: None, endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint.url)
    endpoint.answers["POST /"] = sts_keys("AssumeRole", "ASIAROLE")
    jaas = {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f'{MODULE} awsRoleArn="{ROLE}";'}
    properties = jaas if way == "jaas" else {**MSK_IAM, CONFIG: f"role_arn={ROLE}"}
    assert query_of(SigningIn(MSK, properties).again())["X-Amz-Credential"].startswith("ASIAROLE/")
    form = endpoint.requests[0].form
    assert (form["RoleArn"], form["RoleSessionName"]) == ([ROLE], ["spark-kafka-source"])
    assert "/eu-north-1/sts/" in endpoint.requests[0].headers["authorization"]


def test_missing_credentials_name_the_remedy(signer: Any) -> None:
    error = failure(MSK, MSK_IAM)
    assert isinstance(error, AuthenticationFailed)
    assert "AWS's libraries find no credentials in this process; set AWS_ACCESS_KEY_ID" in str(error)


@pytest.mark.parametrize("answer", [None, BROKEN, GARBAGE, echo], ids=["silence", "500", "garbage", "echo"])
@pytest.mark.usefixtures("signer")
def test_container_endpoint_failure_names_cause_and_remedy_without_secrets(
    endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", SECRET)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.01)
    endpoint.otherwise = answer
    with caplog.at_level(logging.DEBUG):
        error = failure(MSK, MSK_IAM, timeout_s=1 if answer is None else 60)
    assert "no token from AWS's signer for MSK in eu-north-1" in str(error)
    assert "run it with the role of an instance, a container or a web identity" in str(error)
    logged = "".join(record.getMessage() for record in caplog.records)
    assert [text for text in (str(error), all_that_shows(error), logged) if SECRET in text] == []


def test_debug_log_of_signing_shows_no_secret(
    signer: Any, keys: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    with caplog.at_level(logging.DEBUG):
        client = SigningIn(MSK, MSK_IAM)
        signature = query_of(client.again())["X-Amz-Signature"]
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "CanonicalRequest" in logged
    hidden = (SECRET, SESSION, quote(SESSION, safe=""), signature, client.sent[0])
    assert [text for text in hidden if text in logged or text in repr(client.config)] == []


# -- GetWebIdentityToken ----------------------------------------------------------------------------


@pytest.fixture
def sts(signer: Any, keys: None, endpoint: CloudEndpoint, monkeypatch: pytest.MonkeyPatch) -> CloudEndpoint:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint.url)
    return endpoint


def web_identity_answer(token: str, ends_s: float) -> Answer:
    ends = datetime.fromtimestamp(ends_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    inner = f"<WebIdentityToken>{token}</WebIdentityToken><Expiration>{ends}</Expiration>"
    return sts_answer("GetWebIdentityToken", inner)


def test_web_identity_token_is_asked_for_as_documented(sts: CloudEndpoint) -> None:
    sts.answers["POST /"] = web_identity_answer("token-of-sts", time.time() + 3_600)
    properties = {**WEB_IDENTITY, CONFIG: f"{WEB_IDENTITY[CONFIG]},duration_seconds=3600,tag_team=orders"}
    properties["sasl.oauthbearer.extensions"] = "logicalCluster=lkc-1"
    client = SigningIn("pkc-1.confluent.cloud:9092", properties)
    assert (client.again(), client.again()) == ("token-of-sts", "token-of-sts")
    assert client.fields["logicalCluster"] == "lkc-1"
    (request,) = sts.requests
    assert {name: values[0] for name, values in request.form.items()} == {
        "Action": "GetWebIdentityToken",
        "Version": "2011-06-15",
        "Audience.member.1": "https://confluent.cloud/oidc",
        "SigningAlgorithm": "ES384",
        "DurationSeconds": "3600",
        "Tags.member.1.Key": "team",
        "Tags.member.1.Value": "orders",
    }


def test_refusal_of_sts_names_its_code(sts: CloudEndpoint) -> None:
    sts.answers["POST /"] = (
        403,
        {"Content-Type": "text/xml"},
        b"<ErrorResponse><Error><Type>Sender</Type><Code>OutboundWebIdentityFederationDisabledException</Code>"
        b"<Message>Outbound web identity federation is disabled</Message></Error></ErrorResponse>",
    )
    error = failure("broker:9092", WEB_IDENTITY)
    assert isinstance(error, AuthenticationFailed)
    assert "OutboundWebIdentityFederationDisabledException" in str(error)
    assert "outbound identity federation must be enabled in the account" in str(error)


@pytest.mark.parametrize("answer", [None, BROKEN], ids=["silence", "500"])
def test_unavailable_sts_is_retriable(sts: CloudEndpoint, answer: Answer | None) -> None:
    sts.otherwise = answer
    error = failure("broker:9092", WEB_IDENTITY, timeout_s=1 if answer is None else 60)
    assert isinstance(error, ConnectFailed)
    assert "no token from STS in eu-north-1 (GetWebIdentityToken)" in str(error)


# -- settings ---------------------------------------------------------------------------------------


def source_of(text: str, kind: str = "aws_iam") -> object:
    return credentials(SigningIn("broker:9092", {TYPE: kind, CONFIG: text}).config.sasl)


def test_config_is_parsed_as_librdkafka_parses_it() -> None:
    assert source_of(r" region=a , audience=b\,c=d ,signing_algorithm=RS256,sts_endpoint=https://e,") == AwsWebIdentity(
        "a", "b,c=d", signing_algorithm="RS256", sts_endpoint="https://e"
    )
    assert source_of("region=a,profile=b,role_arn=c,role_session_name=d", "aws_msk_iam") == AwsIam("b", "c", "d", "a")
    assert source_of("${env:CONFIG_OF_A_TEST}") is None


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("aws_iam", "region=hunter2", "lacks audience; give region=REGION,audience=AUDIENCE"),
        ("aws_iam", "region=a,audience=b,duration_seconds=hunter2", "a wrong duration_seconds; allowed: 60 to 3600"),
        ("aws_iam", "region=a,audience=b,duration_seconds=9", "a wrong duration_seconds; allowed: 60 to 3600"),
        ("aws_iam", "region=a,audience=b,signing_algorithm=hunter2", "allowed: ES384, RS256"),
        ("aws_msk_iam", "regoin=hunter2", "has regoin; did you mean region?"),
        ("aws_msk_iam", "hunter2=hunter2", "has an unknown setting; allowed: region, profile, role_arn"),
        ("google_managed_kafka", "region=hunter2", "has an unknown setting; allowed: none"),
        ("azure_imds", "hunter2", "allowed: name=value,name=value"),
    ],
)
def test_wrong_config_is_refused_without_its_values(kind: str, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        source_of(text, kind)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sasl.mechanism": "PLAIN"}, "=aws_msk_iam requires sasl.mechanism=OAUTHBEARER"),
        ({"sasl.oauthbearer.token.provider": "a:b"}, "and sasl.oauthbearer.token.provider are two sources of a token"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://a"}, "are two sources of a token; give one"),
    ],
)
def test_second_source_of_a_token_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        SigningIn(MSK, MSK_IAM | options)
    assert says in str(refused.value)
