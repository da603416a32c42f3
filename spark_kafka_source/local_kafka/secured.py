"""Listeners of a local Kafka that are not plain text: what brokers are told of them, and what clients need.

Called by `cluster`. Certificates come from `certificates`; every broker has the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from protocol.errors import UsageError
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from spark_kafka_source.local_kafka.config import LOOPBACK
from spark_kafka_source.local_kafka.users import signed_in, signing_in

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
USERS: Mapping[str, str] = MappingProxyType({"alice": "alice-secret"})
_WITH_TLS = ("SSL", "SASL_SSL")
_WITH_SASL = ("SASL_PLAINTEXT", "SASL_SSL")


def listeners_of(security: str | Iterable[str]) -> dict[str, str]:
    """Listeners beside the plain one, named by their protocols: `"ssl"` -> `{"SSL": "SSL"}`. Raises `UsageError`."""
    names = [name.upper() for name in ([security] if isinstance(security, str) else security)]
    if wrong := [name for name in names if name not in ("PLAINTEXT", *PROTOCOLS)]:
        raise UsageError(f"security={wrong[0]} is not among plaintext, {', '.join(PROTOCOLS).lower()}")
    return {name: name for name in names if name in PROTOCOLS}


def uses_tls(listeners: Mapping[str, str]) -> bool:
    return any(protocol in _WITH_TLS for protocol in listeners.values())


def tls_settings(authority: CertificateAuthority) -> dict[str, str]:
    """Of brokers; a listener of its own may have others (`listener.name.….ssl.client.auth`)."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker", [LOOPBACK, "localhost"])),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }


def sasl_listeners(listeners: Mapping[str, str]) -> list[str]:
    """Those of `security`; what others need stands in the caller's settings."""
    return [name for name in listeners if name in _WITH_SASL]


def sasl_settings(listeners: Iterable[str], users: Mapping[str, str]) -> dict[str, str]:
    return {name: value for listener in listeners for name, value in signing_in(listener, users).items()}


def client_properties(
    protocol: str, authority: CertificateAuthority | None, users: Mapping[str, str]
) -> dict[str, str]:
    """Kafka's properties, without the addresses, for a client of a listener that speaks `protocol`: the first user."""
    properties = {"security.protocol": protocol}
    if protocol in _WITH_TLS and authority is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}
    if protocol in _WITH_SASL:
        name, password = next(iter(users.items()))
        properties |= signed_in("SCRAM-SHA-512", name, password)
    return properties
