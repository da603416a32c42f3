"""Tokens of Microsoft Entra ID, for Event Hubs and for clusters that trust Entra ID."""

from __future__ import annotations

from typing import Any

from protocol.clouds.library_call import call_library, import_library

_TRANSIENT_STATUS = frozenset((404, 408, 410, 429, 500, 502, 503, 504))
_REMEDY = (
    "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET (or AZURE_FEDERATED_TOKEN_FILE) in this process, or "
    "run it with a managed identity; AZURE_TOKEN_CREDENTIALS limits the tried credentials"
)


def azure_token(
    scope: str, *, credential: Any = None, client_id: str | None = None, timeout_s: float = 30.0
) -> tuple[str, float]:
    """Return an access token of Entra ID.

    Returns and raises as `protocol.clouds` says.

    Parameters
    ----------
    scope : str
        `https://NAMESPACE.servicebus.windows.net/.default` for Event Hubs, `api://APPLICATION/.default` for others.
    credential : azure.core.credentials.TokenCredential, optional
        The default is `azure.identity.DefaultAzureCredential`: environment variables, workload identity, managed
        identity, then the tools of developers.
    client_id : str, optional
        The user-assigned managed identity, or the application of a workload identity. Only without `credential`.
    timeout_s : float

    Raises
    ------
    ConfigurationError
        azure-identity is not installed.
    AuthenticationFailed
        No credential of this process gives a token.
    """

    def ask() -> tuple[str, float]:
        if credential is not None:
            token = credential.get_token(scope)
            return token.token, float(token.expires_on)
        identity = import_library("azure.identity", "azure-identity", "azure")
        timeouts: dict[str, Any] = {"connection_timeout": timeout_s, "read_timeout": timeout_s}
        if client_id is not None:
            timeouts["managed_identity_client_id"] = client_id
        # The caller retries; the library's ten retries hide the cause until the deadline.
        with identity.DefaultAzureCredential(retry_total=1, **timeouts) as default:
            token = default.get_token(scope)
        return token.token, float(token.expires_on)

    return call_library(
        ("azure", scope, client_id, id(credential)),
        ask,
        timeout_s,
        source=f"Entra ID for the scope {scope} (azure-identity)",
        remedy=_REMEDY,
        transient=is_transient,
    )


def is_transient(error: BaseException) -> bool:
    """Return True if another attempt may succeed."""
    names = {base.__name__ for base in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    return bool(names & {"ServiceRequestError", "ServiceResponseError"}) or status in _TRANSIENT_STATUS
