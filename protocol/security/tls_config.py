"""How to speak TLS: whom to trust, who we are, and which versions. Frozen, part of `protocol.config.ClientConfig`.

Made on the driver and carried to executors; stores are read (`stores`) where a connection is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from protocol.errors import ConfigurationError
from protocol.once import warn_once
from protocol.secret import Secret

StoreType = Literal["JKS", "PKCS12", "PEM"]


@dataclass(frozen=True)
class TLSConfig:
    """The properties `ssl.*`, without that prefix. What none of them says is left to the system, or to OpenSSL.

    Locations are paths on whichever machine opens a connection.
    """

    truststore_location: str | None = None
    truststore_certificates: Secret | None = None
    truststore_type: StoreType | None = None
    truststore_password: Secret | None = None
    keystore_location: str | None = None
    keystore_certificate_chain: Secret | None = None
    keystore_key: Secret | None = None
    keystore_type: StoreType | None = None
    keystore_password: Secret | None = None
    key_password: Secret | None = None
    endpoint_identification_algorithm: Literal["https", ""] = "https"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    protocol: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.3"
    cipher_suites: tuple[str, ...] = ()

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of TLS to speak, from the oldest on."""
        return tuple(name for name in self.enabled_protocols if name <= self.protocol)

    @property
    def check_hostname(self) -> bool:
        return bool(self.endpoint_identification_algorithm)

    @property
    def has_key(self) -> bool:
        return bool(self.keystore_location or self.keystore_key)


DEFAULT_TLS = TLSConfig()


def parse_tls(values: Mapping[str, Any], *, prefix: str = "") -> TLSConfig:
    """From values by field. As in Java's client (`DefaultSslEngineFactory`) nothing may be given twice, or by half.

    Raises `ConfigurationError`, which puts `prefix` ("kafka.") before names.
    """
    config = TLSConfig(**values)
    if config.truststore_location and config.truststore_certificates:
        raise _wrong(prefix, "truststore.location", "{}truststore.certificates is given, too. Leave out one of the two")
    if config.keystore_location and (config.keystore_key or config.keystore_certificate_chain):
        raise _wrong(
            prefix, "keystore.location", "a key or its certificates are given, too. Leave out the one or the other"
        )
    if config.keystore_key and not config.keystore_certificate_chain:
        raise _wrong(prefix, "keystore.key", "{}keystore.certificate.chain is missing: a key without its certificate")
    if config.keystore_certificate_chain and not config.keystore_key:
        raise _wrong(prefix, "keystore.certificate.chain", "{}keystore.key is missing: a certificate without its key")
    if not config.versions:
        raise _wrong(prefix, "enabled.protocols", "{}protocol allows only older versions. Leave out one of the two")
    if not config.check_hostname:
        warn_once(
            f"{prefix}ssl.endpoint.identification.algorithm is empty: the name in a broker's certificate is not looked "
            "at, so whoever has any certificate of a trusted CA can pass for a broker"
        )
    return config


def _wrong(prefix: str, name: str, why: str) -> ConfigurationError:
    ssl = f"{prefix}ssl."
    return ConfigurationError(f"{ssl}{name} is given, but {why.format(ssl)}.", name=ssl + name)
