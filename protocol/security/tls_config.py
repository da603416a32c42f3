"""TLS settings of a client: trust store, key store, versions, ciphers. Frozen, part of `protocol.config.ClientConfig`.

Created on the driver and sent to executors. `stores` reads the files when a connection is opened.
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
    """The `ssl.*` properties, without that prefix. Unset ones have the default of the system or of OpenSSL.

    Locations are paths on the machine that opens a connection.
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
        """TLS versions to offer, oldest first."""
        return tuple(name for name in self.enabled_protocols if name <= self.protocol)

    @property
    def check_hostname(self) -> bool:
        """True if the broker's certificate must match its host name."""
        return bool(self.endpoint_identification_algorithm)

    @property
    def has_key(self) -> bool:
        """True if a client key is configured."""
        return bool(self.keystore_location or self.keystore_key)


DEFAULT_TLS = TLSConfig()


def parse_tls(values: Mapping[str, Any], *, prefix: str = "") -> TLSConfig:
    """Create a `TLSConfig` from values by field.

    As in Java's client (`DefaultSslEngineFactory`), a setting must not be given twice, or in part. Logs
    a warning (once) if the verification of host names is off.

    Parameters
    ----------
    values
        Parsed values by field of `TLSConfig`.
    prefix
        Prefix of property names in messages ("kafka.").

    Raises
    ------
    ConfigurationError
        Settings contradict each other, or one is missing.
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
            f"{prefix}ssl.endpoint.identification.algorithm is empty: host names in brokers' certificates are not "
            "verified, so any server with a certificate of a trusted CA can impersonate a broker"
        )
    return config


def _wrong(prefix: str, name: str, why: str) -> ConfigurationError:
    ssl = f"{prefix}ssl."
    return ConfigurationError(f"{ssl}{name} is given, but {why.format(ssl)}.", name=ssl + name)
