"""The SASL settings of a client: the values of `protocol.sasl.properties`. Part of `ClientConfig`.

`credentials` converts them to credentials. Texts may contain references (`${env:…}`); `resolved` replaces them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from protocol.config_providers import resolved
from protocol.secret import Secret, hide_variables


@dataclass(frozen=True)
class SaslConfig:
    """SASL settings by field; `protocol.sasl.properties` documents each.

    `login_handler`, `client_handler` and `jwt_retriever` are full names of Java classes whose function this client
    implements. The last two have no effect: this client always does what these classes do.
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

    @hide_variables
    def resolved(self) -> SaslConfig:
        """Return a copy with all references replaced; raise `ConfigurationError` for one that cannot be resolved."""
        return dataclasses.replace(self, **{name: _resolved(value) for name, value in vars(self).items()})


NO_SASL = SaslConfig()


def _resolved(value: Any) -> Any:
    if isinstance(value, Secret):
        return Secret(resolved(value.reveal()))
    return resolved(value) if isinstance(value, str) else value
