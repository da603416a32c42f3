"""Kafka's `ssl.*` properties, and a client's values of them: trust store, key store, versions, ciphers.

The values are frozen and part of `protocol.config.ClientConfig`, created on the driver and sent to executors. `stores`
reads the files when a connection is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from protocol.base.once import warn_once
from protocol.errors import ConfigurationError
from protocol.settings.property_kinds import (
    NONEMPTY,
    SECRET,
    Kind,
    Property,
    Role,
    applies,
    forbidden,
    no_effect,
    one_of,
)
from protocol.settings.secret import Secret

# Insecure (RFC 8996), so never offered; ignored beside newer versions, since older defaults of Kafka list them.
_INSECURE = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
_VERSIONS = ("TLSv1.2", "TLSv1.3")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _protocols(text: str) -> tuple[str, ...]:
    versions = _names(text)
    if unknown := [name for name in versions if name not in _VERSIONS + _INSECURE]:
        raise ValueError(f"{unknown[0]} is not a TLS version")
    accepted = tuple(name for name in _VERSIONS if name in versions)
    if not accepted:
        raise ValueError("these versions are insecure (RFC 8996); all brokers support TLSv1.2" if versions else "")
    return accepted


_PROTOCOLS = Kind(",".join(_VERSIONS), _protocols)
_NAMES = Kind("names separated by commas", _names)
_STORE_TYPE = one_of("JKS", "PKCS12", "PEM", otherwise="other types of stores are not supported")
_PROTOCOL = one_of(
    # In Java the last two names allow all enabled versions.
    meanings={"TLSv1.3": "TLSv1.3", "TLSv1.2": "TLSv1.2", "TLS": "TLSv1.3", "SSL": "TLSv1.3"},
    otherwise="older versions are insecure (RFC 8996)",
)
_HOST_CHECK = replace(one_of("https", ""), allowed="https, or nothing")
_CLIENT = Role.CLIENT
_applies = partial(applies, _CLIENT)

TLS_PROPERTIES: tuple[Property, ...] = (
    _applies(
        "ssl.truststore.location",
        NONEMPTY,
        "file with the certificates of trusted CAs (PEM, JKS or PKCS12), read when a connection is opened, and "
        "again when it has changed; default: the system's",
    ),
    _applies("ssl.truststore.certificates", SECRET, "certificates of trusted CAs, as PEM text"),
    _applies("ssl.truststore.type", _STORE_TYPE, "detected from the file in any case; PEM requires a PEM file"),
    _applies("ssl.truststore.password", SECRET, "password of a JKS or PKCS12 store; optional for JKS"),
    _applies(
        "ssl.keystore.location",
        NONEMPTY,
        "file with the client's certificate, those of its CAs, and its key (PEM, JKS or PKCS12), for brokers that "
        "require one",
    ),
    _applies("ssl.keystore.certificate.chain", SECRET, "the client's certificate and its CAs', as PEM text"),
    _applies("ssl.keystore.key", SECRET, "the client's key, as PEM text (PKCS8, encrypted or not)"),
    _applies("ssl.keystore.type", _STORE_TYPE, "as ssl.truststore.type"),
    _applies("ssl.keystore.password", SECRET, "password of a JKS or PKCS12 store"),
    _applies("ssl.key.password", SECRET, "password of the key in a store or PEM file; default: the store's"),
    _applies(
        "ssl.endpoint.identification.algorithm",
        _HOST_CHECK,
        "https: a broker's certificate must match its host name; empty: no check",
    ),
    _applies("ssl.enabled.protocols", _PROTOCOLS, "TLS versions; older ones in the list are ignored"),
    _applies("ssl.protocol", _PROTOCOL, "newest TLS version"),
    _applies("ssl.cipher.suites", _NAMES, "cipher suites by Java's or OpenSSL's names; default: OpenSSL's"),
    *no_effect(_CLIENT, "ssl.provider ssl.secure.random.implementation", "this client uses OpenSSL"),
    *no_effect(_CLIENT, "ssl.keymanager.algorithm ssl.trustmanager.algorithm", "OpenSSL verifies certificates"),
    *forbidden(_CLIENT, "ssl.engine.factory.class", "Java classes are not supported; use stores or PEM"),
    # librdkafka's properties.
    *forbidden(_CLIENT, "ssl.ca.location", "set this file as ssl.truststore.location"),
    *forbidden(_CLIENT, "ssl.ca.pem", "set this text as ssl.truststore.certificates"),
    *forbidden(
        _CLIENT,
        "ssl.certificate.location ssl.key.location",
        "set one file with the key and its certificates as ssl.keystore.location, or ${dir:FOLDER:FILE} of each as "
        "ssl.keystore.key and ssl.keystore.certificate.chain",
    ),
    *forbidden(_CLIENT, "ssl.certificate.pem", "set this text as ssl.keystore.certificate.chain"),
    *forbidden(_CLIENT, "ssl.key.pem", "set this text as ssl.keystore.key"),
    *forbidden(
        _CLIENT, "enable.ssl.certificate.verification", "brokers' certificates are always verified; configure the CA's"
    ),
)

# For error messages about any of them, see `protocol.errors.KafkaError`.
TLS_NAMES = ("bootstrap.servers", "security.protocol", *(row.name for row in TLS_PROPERTIES))


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


def parse_tls(values: Mapping[str, Any]) -> TLSConfig:
    """Create a `TLSConfig` from values by field.

    As in Java's client (`DefaultSslEngineFactory`), a setting must not be given twice, or in part. Logs
    a warning (once) if the verification of host names is off.

    `values`: parsed values by field of `TLSConfig`.
    Raises `ConfigurationError`: settings contradict each other, or one is missing.
    """
    config = TLSConfig(**values)
    key, chain = "ssl.keystore.key", "ssl.keystore.certificate.chain"
    if config.truststore_location and config.truststore_certificates:
        raise _both_set("ssl.truststore.location", "ssl.truststore.certificates")
    if config.keystore_location and config.keystore_key:
        raise _both_set("ssl.keystore.location", key)
    if config.keystore_location and config.keystore_certificate_chain:
        raise _both_set("ssl.keystore.location", chain)
    if config.keystore_key and not config.keystore_certificate_chain:
        raise _only_one_set(key, chain)
    if config.keystore_certificate_chain and not config.keystore_key:
        raise _only_one_set(chain, key)
    if not config.versions:
        raise ConfigurationError(
            f"ssl.enabled.protocols={','.join(config.enabled_protocols)}: all are newer than "
            f"ssl.protocol={config.protocol}. Remove one of the two properties.",
            settings=("ssl.enabled.protocols", "ssl.protocol"),
        )
    if not config.check_hostname:
        warn_once(
            "ssl.endpoint.identification.algorithm is empty: host names in brokers' certificates are not verified, so "
            "any server with a certificate of a trusted CA can impersonate a broker",
            "ssl.endpoint.identification.algorithm",
        )
    return config


def _both_set(name: str, rival: str) -> ConfigurationError:
    return ConfigurationError(f"{name} and {rival} are both set. Remove one of them.", settings=(name, rival))


def _only_one_set(name: str, missing: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is set, but {missing} is not. Set both or neither.", settings=(name, missing))


# TLS 1.3: OpenSSL offers the three suites that brokers support.
_TLS13_SUITE = re.compile(r"TLS_(AES_\d+_(GCM|CCM|CCM_8)|CHACHA20_POLY1305)_SHA\d+")
_JAVA_SUITE = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+)_WITH_(?P<cipher>\w+)_(?P<digest>SHA\d*|MD5)")


def is_tls13_suite(name: str) -> bool:
    """Return True if the name is a cipher suite of TLS 1.3."""
    return bool(_TLS13_SUITE.fullmatch(name))


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite; names that are not Java's are unchanged.

    `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` becomes `ECDHE-RSA-AES256-GCM-SHA384`.
    """
    match = _JAVA_SUITE.fullmatch(name)
    if match is None:
        return name
    # OpenSSL omits the key exchange RSA, the mode CBC and the digest after POLY1305.
    exchange = "" if match["exchange"] == "RSA" else match["exchange"].replace("_", "-") + "-"
    cipher = re.sub(r"^(AES|CAMELLIA)_", r"\1", match["cipher"].removesuffix("_CBC")).replace("_", "-")
    cipher = "DES-CBC3" if cipher == "3DES-EDE" else cipher
    digest = "" if cipher.endswith("POLY1305") else f"-{match['digest']}"
    return f"{exchange}{cipher}{digest}"
