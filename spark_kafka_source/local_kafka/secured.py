"""TLS and SASL listeners of a local Kafka: broker settings and client properties.

Called by `cluster`. Certificates come from `certificates`; all brokers have the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from protocol.errors import UsageError
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from spark_kafka_source.local_kafka.config import LOOPBACK
from spark_kafka_source.local_kafka.users import sasl_listener_settings, sasl_properties

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
USERS: Mapping[str, str] = MappingProxyType({"alice": "alice-secret"})
_WITH_TLS = ("SSL", "SASL_SSL")
_WITH_SASL = ("SASL_PLAINTEXT", "SASL_SSL")


def listeners_of(security: str | Iterable[str]) -> dict[str, str]:
    """Return additional listeners, named by their protocols: `{"SSL": "SSL"}` for `"ssl"`. Raises `UsageError`."""
    names = [name.upper() for name in ([security] if isinstance(security, str) else security)]
    if unknown := [name for name in names if name not in ("PLAINTEXT", *PROTOCOLS)]:
        raise UsageError(f"security={unknown[0]} is not among plaintext, {', '.join(PROTOCOLS).lower()}")
    return {name: name for name in names if name in PROTOCOLS}


def uses_tls(listeners: Mapping[str, str]) -> bool:
    """Return True if a listener uses TLS."""
    return any(protocol in _WITH_TLS for protocol in listeners.values())


def tls_settings(authority: CertificateAuthority) -> dict[str, str]:
    """Return TLS settings of brokers; settings of a listener (`listener.name.….ssl.client.auth`) take precedence."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker", [LOOPBACK, "localhost"])),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }


def sasl_listeners(listeners: Mapping[str, str]) -> list[str]:
    """Return the names of SASL listeners among those of `listeners_of`. Callers configure their own listeners."""
    return [name for name in listeners if name in _WITH_SASL]


def sasl_settings(listeners: Iterable[str], users: Mapping[str, str]) -> dict[str, str]:
    """Return broker settings of SASL listeners for these users (name -> password)."""
    return {name: value for listener in listeners for name, value in sasl_listener_settings(listener, users).items()}


def client_properties(
    protocol: str, authority: CertificateAuthority | None, users: Mapping[str, str]
) -> dict[str, str]:
    """Return client properties, without addresses, for a listener with `protocol`; the user is the first one."""
    properties = {"security.protocol": protocol}
    if protocol in _WITH_TLS and authority is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}
    if protocol in _WITH_SASL:
        name, password = next(iter(users.items()))
        properties |= sasl_properties("SCRAM-SHA-512", name, password)
    return properties
