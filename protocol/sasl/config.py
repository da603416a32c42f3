"""What a client was told of SASL, in Kafka's words: the values of `protocol.sasl.properties`. Part of `ClientConfig`.

What they come to is in `credentials`. Texts may still have references (`${env:…}`), which `resolved` follows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from protocol.config_providers import resolved
from protocol.secret import Secret


@dataclass(frozen=True)
class SaslConfig:
    """`login_handler`, `client_handler`, `jwt_retriever`: the full names of Java's classes that are done here.

    Of the last two nothing more is asked: what they name is done anyway.
    """

    mechanism: str | None = None
    jaas_config: Secret | None = None
    username: Secret | None = None
    password: Secret | None = None
    login_handler: str | None = None
    client_handler: str | None = None
    jwt_retriever: str | None = None
    token_provider: str | None = None
    token_endpoint_url: str | None = None
    client_id: Secret | None = None
    client_secret: Secret | None = None
    scope: str | None = None
    header_urlencode: bool = False
    login_read_timeout_ms: int = 5_000
    login_retry_backoff_ms: int = 100
    login_retry_backoff_max_ms: int = 10_000
    kerberos_service_name: str | None = None

    def resolved(self) -> SaslConfig:
        """With what its texts refer to. Raises `ConfigurationError` for what leads nowhere."""
        return dataclasses.replace(self, **{name: _resolved(value) for name, value in vars(self).items()})


NO_SASL = SaslConfig()


def _resolved(value: Any) -> Any:
    if isinstance(value, Secret):
        return Secret(resolved(value.reveal()))
    return resolved(value) if isinstance(value, str) else value
