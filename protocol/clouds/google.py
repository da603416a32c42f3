"""Tokens for Google Cloud's Managed Service for Apache Kafka."""

from __future__ import annotations

import base64
import json
from datetime import timezone
from functools import partial
from typing import Any

from protocol.base.clock import SYSTEM_CLOCK
from protocol.clouds.library_call import call_library, import_library
from protocol.errors import AuthenticationFailed

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_HEADER = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
_REMEDY = (
    "set GOOGLE_APPLICATION_CREDENTIALS to a file of credentials in this process, or run it with a service account of "
    "Google Cloud"
)


def google_managed_kafka_token(*, credentials: Any = None, timeout_s: float = 30.0) -> tuple[str, float]:
    """Return a token for Managed Kafka: an access token, in the form of a JSON Web Token that names the principal.

    Returns and raises as `protocol.clouds` says.

    Parameters
    ----------
    credentials : google.auth.credentials.Credentials, optional
        The default are the application default credentials: the file of `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's, or
        the metadata server.
    timeout_s : float

    Raises
    ------
    ConfigurationError
        google-auth or requests is not installed.
    AuthenticationFailed
        No credentials, or Google refuses them, or they have no email address.
    """

    def ask() -> tuple[str, float]:
        auth = import_library("google.auth", "google-auth", "google")
        transport = import_library("google.auth.transport.requests", "requests", "google")
        used = credentials if credentials is not None else auth.default(scopes=[_SCOPE])[0]
        used.refresh(partial(transport.Request(), timeout=timeout_s))
        expires_at_s = used.expiry.replace(tzinfo=timezone.utc).timestamp()
        return _for_kafka(used.token, _principal(used), expires_at_s), expires_at_s

    return call_library(
        ("google", id(credentials)),
        ask,
        timeout_s,
        source="Google (google-auth)",
        remedy=_REMEDY,
        transient=is_transient,
    )


def _for_kafka(access_token: str, principal: str, expires_at_s: float) -> str:
    """Make the text that Google's brokers take; the third part is the access token, not a signature."""
    now_s = SYSTEM_CLOCK.wall_ms() // 1000
    claims = {"exp": int(expires_at_s), "iss": "Google", "iat": now_s, "scope": "kafka", "sub": principal}
    parts = (json.dumps(_HEADER), json.dumps(claims), access_token)
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def _principal(credentials: Any) -> str:
    """Return the email address of the account: of a service account, or of a user that gcloud has logged in."""
    email = getattr(credentials, "service_account_email", None) or getattr(credentials, "account", None)
    email = email or _claims(getattr(credentials, "id_token", None)).get("email")
    if not isinstance(email, str) or "@" not in email:
        raise AuthenticationFailed(
            f"google-auth's {type(credentials).__name__} has no email address, which Google's brokers require; use a "
            "service account, or impersonate one"
        )
    return email


def _claims(id_token: Any) -> dict[str, Any]:
    try:
        part = str(id_token).split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, IndexError):
        return {}
    return claims if isinstance(claims, dict) else {}


def is_transient(error: BaseException) -> bool:
    """Return True if another attempt may succeed."""
    return type(error).__name__ == "TransportError" or bool(getattr(error, "retryable", False))
