"""Tokens of AWS: signed requests for MSK, and JSON Web Tokens of STS for clusters that trust AWS as an issuer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.clouds.library_call import call_library, import_library
from protocol.errors import AuthenticationFailed, ConfigurationError

_SIGNER = "aws-msk-iam-sasl-signer-python"
_SESSION_NAME = "spark-kafka-source"
_TRANSIENT_CODES = frozenset(("ServiceUnavailable", "InternalFailure", "Throttling", "ThrottlingException"))
_TOO_MANY_REQUESTS = 429
_CREDENTIALS_CODES = frozenset(
    (
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "UnrecognizedClientException",
    )
)
CREDENTIALS_REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE in this process, or run it with the role of an "
    "instance, a container or a web identity"
)


def aws_msk_iam_token(
    region: str,
    *,
    profile: str | None = None,
    role_arn: str | None = None,
    role_session_name: str | None = None,
    session: Any = None,
    timeout_s: float = 30.0,
) -> tuple[str, float]:
    """Return a token for MSK with IAM access control: a signed request for `kafka-cluster:Connect`.

    AWS's signer for MSK makes the token, with botocore's credentials: environment variables, web identity, profile,
    container, instance (IMDSv2). It expires after 15 minutes. Returns and raises as `protocol.clouds` says.

    Parameters
    ----------
    region : str
        Region of the cluster.
    profile : str, optional
        Profile of AWS's configuration files.
    role_arn, role_session_name : str, optional
        Role to assume first.
    session : botocore.session.Session, optional
        Credentials instead of the default ones.
    timeout_s : float

    Raises
    ------
    ConfigurationError
        The signer is not installed.
    AuthenticationFailed
        No credentials, or AWS refuses the role.
    """

    def ask() -> tuple[str, float]:
        signer = import_library("aws_msk_iam_sasl_signer.MSKAuthTokenProvider", _SIGNER, "msk-iam")
        credentials = _credentials(_session(session, profile, "msk-iam"))
        if role_arn is not None:
            chosen = role_session_name or _SESSION_NAME
            client = _sts(_session(session, profile, "msk-iam"), region, None, timeout_s)
            credentials = _assumed(client.assume_role(RoleArn=role_arn, RoleSessionName=chosen)["Credentials"])
        # The signer takes an instance of a subclass only.
        base = import_library("botocore.credentials", "botocore", "msk-iam").CredentialProvider
        provider = type("Given", (base,), {"load": lambda self: credentials})()
        text, expires_at_ms = signer.generate_auth_token_from_credentials_provider(region, provider)
        return text, expires_at_ms / 1000

    return call_library(
        ("msk", region, profile, role_arn, role_session_name, id(session)),
        ask,
        timeout_s,
        source=f"AWS's signer for MSK in {region}",
        remedy=CREDENTIALS_REMEDY,
        transient=is_transient,
    )


def aws_web_identity_token(
    region: str,
    audience: str,
    *,
    duration_s: int = 300,
    signing_algorithm: str = "ES384",
    sts_endpoint: str | None = None,
    tags: Mapping[str, str] | None = None,
    session: Any = None,
    timeout_s: float = 30.0,
) -> tuple[str, float]:
    """Return a JSON Web Token of STS (GetWebIdentityToken), as librdkafka's `aws_iam` names it.

    Returns and raises as `protocol.clouds` says.

    Parameters
    ----------
    region, audience : str
    duration_s : int
        Lifetime of the token, 60 to 3600 seconds.
    signing_algorithm : str
        ES384 or RS256.
    sts_endpoint : str, optional
        URL of another endpoint of STS.
    tags : mapping, optional
        Further claims.
    session : botocore.session.Session, optional
        Credentials instead of the default ones.
    timeout_s : float

    Raises
    ------
    ConfigurationError
        boto3 is not installed, or too old.
    AuthenticationFailed
        No credentials, or STS refuses.
    """
    request: dict[str, Any] = {"Audience": [audience], "SigningAlgorithm": signing_algorithm}
    request["DurationSeconds"] = duration_s
    if tags:
        request["Tags"] = [{"Key": name, "Value": value} for name, value in tags.items()]

    def ask() -> tuple[str, float]:
        made = _session(session, None, "aws")
        _credentials(made)
        client = _sts(made, region, sts_endpoint, timeout_s)
        if not hasattr(client, "get_web_identity_token"):
            raise ConfigurationError(
                "the token requires boto3 1.42.25 or later on driver and executors: "
                "pip install 'spark-kafka-source[aws]'."
            )
        reply = client.get_web_identity_token(**request)
        return reply["WebIdentityToken"], reply["Expiration"].timestamp()

    return call_library(
        ("sts", region, sts_endpoint, id(session), repr(request)),
        ask,
        timeout_s,
        source=f"STS in {region} (GetWebIdentityToken)",
        remedy=f"{CREDENTIALS_REMEDY}; outbound identity federation must be enabled in the account",
        transient=is_transient,
    )


def _session(session: Any, profile: str | None, extra: str) -> Any:
    if session is not None:
        return session
    return import_library("botocore.session", "botocore", extra).Session(profile=profile)


def _credentials(session: Any) -> Any:
    credentials = session.get_credentials()
    if credentials is None:
        raise AuthenticationFailed(f"AWS's libraries find no credentials in this process; {CREDENTIALS_REMEDY}")
    return credentials


def _sts(session: Any, region: str, endpoint: str | None, timeout_s: float) -> Any:
    config = import_library("botocore.config", "botocore", "aws").Config(
        connect_timeout=timeout_s, read_timeout=timeout_s, retries={"total_max_attempts": 2}
    )
    return session.create_client("sts", region_name=region, endpoint_url=endpoint, config=config)


def _assumed(properties: Mapping[str, str]) -> Any:
    kind = import_library("botocore.credentials", "botocore", "msk-iam").Credentials
    return kind(properties["AccessKeyId"], properties["SecretAccessKey"], properties["SessionToken"])


def is_transient(error: BaseException) -> bool:
    """Return True if another attempt may succeed."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return (
            status >= 500 or status == _TOO_MANY_REQUESTS or response.get("Error", {}).get("Code") in _TRANSIENT_CODES
        )
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"HTTPClientError", "MetadataRetrievalError", "ResponseParserError"})


def is_of_credentials(error: BaseException) -> bool:
    """Return True if there are no credentials, or AWS refuses them: they may have been replaced."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("Error", {}).get("Code") in _CREDENTIALS_CODES
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
