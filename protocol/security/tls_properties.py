"""The `ssl.*` rows of the table of Kafka's client properties. Part of `protocol.properties`."""

from __future__ import annotations

from dataclasses import replace

from protocol.property import Property, Role, applies, forbidden, no_effect
from protocol.property_kinds import NONEMPTY, SECRET, Kind, one_of

# Insecure (RFC 8996), so never offered. Jobs that list them beside newer versions still have an old default.
_OUTDATED = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
_VERSIONS = ("TLSv1.2", "TLSv1.3")


def _protocols(text: str) -> tuple[str, ...]:
    given = [name.strip() for name in text.split(",")]
    if unknown := [name for name in given if name not in _VERSIONS + _OUTDATED]:
        raise ValueError(f"{unknown[0]} is not a TLS version")
    found = tuple(name for name in _VERSIONS if name in given)
    if not found:
        raise ValueError("these versions are insecure (RFC 8996); all brokers support TLSv1.2")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


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

TLS_PROPERTIES: tuple[Property, ...] = (
    applies(
        _CLIENT,
        "ssl.truststore.location",
        NONEMPTY,
        "file with the certificates of trusted CAs (PEM, JKS or PKCS12), read when a connection is opened, and "
        "again when it has changed; default: the system's",
    ),
    applies(_CLIENT, "ssl.truststore.certificates", SECRET, "certificates of trusted CAs, as PEM text"),
    applies(_CLIENT, "ssl.truststore.type", _STORE_TYPE, "detected from the file in any case; PEM requires a PEM file"),
    applies(_CLIENT, "ssl.truststore.password", SECRET, "password of a JKS or PKCS12 store; optional for JKS"),
    applies(
        _CLIENT,
        "ssl.keystore.location",
        NONEMPTY,
        "file with the client's certificate, those of its CAs, and its key (PEM, JKS or PKCS12), for brokers that "
        "require one",
    ),
    applies(_CLIENT, "ssl.keystore.certificate.chain", SECRET, "the client's certificate and its CAs', as PEM text"),
    applies(_CLIENT, "ssl.keystore.key", SECRET, "the client's key, as PEM text (PKCS8, encrypted or not)"),
    applies(_CLIENT, "ssl.keystore.type", _STORE_TYPE, "as ssl.truststore.type"),
    applies(_CLIENT, "ssl.keystore.password", SECRET, "password of a JKS or PKCS12 store"),
    applies(_CLIENT, "ssl.key.password", SECRET, "password of the key in a store or PEM file; default: the store's"),
    applies(
        _CLIENT,
        "ssl.endpoint.identification.algorithm",
        _HOST_CHECK,
        "https: a broker's certificate must match its host name; empty: no check",
    ),
    applies(_CLIENT, "ssl.enabled.protocols", _PROTOCOLS, "TLS versions; older ones in the list are ignored"),
    applies(_CLIENT, "ssl.protocol", _PROTOCOL, "newest TLS version"),
    applies(_CLIENT, "ssl.cipher.suites", _NAMES, "cipher suites by Java's or OpenSSL's names; default: OpenSSL's"),
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
        _CLIENT,
        "enable.ssl.certificate.verification",
        "brokers' certificates are always verified; configure the CA's",
    ),
)

# For error messages about any of them, see `protocol.errors.KafkaError`.
TLS_NAMES = ("bootstrap.servers", "security.protocol", *(row.name for row in TLS_PROPERTIES))
