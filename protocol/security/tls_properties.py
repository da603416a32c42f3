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
        raise ValueError(f"{unknown[0]} is no version of TLS")
    found = tuple(name for name in _VERSIONS if name in given)
    if not found:
        raise ValueError("these versions are broken (RFC 8996); brokers speak TLSv1.2 since long")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_PROTOCOLS = Kind(",".join(_VERSIONS), _protocols)
_NAMES = Kind("names with commas between", _names)
_STORE_TYPE = one_of("JKS", "PKCS12", "PEM", otherwise="no other kind of store can be read")
_PROTOCOL = one_of(
    # In Java the last two names allow all enabled versions.
    meanings={"TLSv1.3": "TLSv1.3", "TLSv1.2": "TLSv1.2", "TLS": "TLSv1.3", "SSL": "TLSv1.3"},
    otherwise="older versions are broken (RFC 8996)",
)
_HOST_CHECK = replace(one_of("https", ""), allowed="https, or nothing")
_CLIENT = Role.CLIENT

TLS_PROPERTIES: tuple[Property, ...] = (
    applies(
        _CLIENT,
        "ssl.truststore.location",
        NONEMPTY,
        "a file with the certificates of CAs to trust (PEM, JKS or PKCS12), read where a connection is opened, and "
        "again when it has changed; by default the system's",
    ),
    applies(_CLIENT, "ssl.truststore.certificates", SECRET, "these certificates themselves, as PEM"),
    applies(_CLIENT, "ssl.truststore.type", _STORE_TYPE, "said or not, what the file is counts; PEM must be PEM"),
    applies(_CLIENT, "ssl.truststore.password", SECRET, "of a JKS or PKCS12 store; a JKS store is read without, too"),
    applies(
        _CLIENT,
        "ssl.keystore.location",
        NONEMPTY,
        "a file with our own certificate, those of its CAs, and its key (PEM, JKS or PKCS12), for brokers that "
        "ask for one",
    ),
    applies(_CLIENT, "ssl.keystore.certificate.chain", SECRET, "our certificate and those of its CAs, as PEM"),
    applies(_CLIENT, "ssl.keystore.key", SECRET, "its key, as PEM (PKCS8, encrypted or not)"),
    applies(_CLIENT, "ssl.keystore.type", _STORE_TYPE, "as ssl.truststore.type"),
    applies(_CLIENT, "ssl.keystore.password", SECRET, "of a JKS or PKCS12 store"),
    applies(_CLIENT, "ssl.key.password", SECRET, "of the key in a store or PEM file; by default the store's"),
    applies(
        _CLIENT,
        "ssl.endpoint.identification.algorithm",
        _HOST_CHECK,
        "https: a broker's certificate must be for the name we connect to; empty: for any",
    ),
    applies(_CLIENT, "ssl.enabled.protocols", _PROTOCOLS, "versions of TLS; older ones in the list are left out"),
    applies(_CLIENT, "ssl.protocol", _PROTOCOL, "the newest of them"),
    applies(_CLIENT, "ssl.cipher.suites", _NAMES, "cipher suites, in Java's names or OpenSSL's; by default OpenSSL's"),
    *no_effect(_CLIENT, "ssl.provider ssl.secure.random.implementation", "TLS is OpenSSL's here"),
    *no_effect(_CLIENT, "ssl.keymanager.algorithm ssl.trustmanager.algorithm", "certificates are checked by OpenSSL"),
    *forbidden(_CLIENT, "ssl.engine.factory.class", "JVM classes cannot run here; give stores or PEM"),
    # librdkafka's properties.
    *forbidden(_CLIENT, "ssl.ca.location", "give that file as ssl.truststore.location"),
    *forbidden(_CLIENT, "ssl.ca.pem", "give that text as ssl.truststore.certificates"),
    *forbidden(
        _CLIENT,
        "ssl.certificate.location ssl.key.location",
        "give one file with the key and its certificates as ssl.keystore.location, or ${dir:FOLDER:FILE} of each as "
        "ssl.keystore.key and ssl.keystore.certificate.chain",
    ),
    *forbidden(_CLIENT, "ssl.certificate.pem", "give that text as ssl.keystore.certificate.chain"),
    *forbidden(_CLIENT, "ssl.key.pem", "give that text as ssl.keystore.key"),
    *forbidden(
        _CLIENT, "enable.ssl.certificate.verification", "brokers' certificates are always checked; give the CA's"
    ),
)

# For error messages about any of them, see `protocol.errors.KafkaError`.
TLS_NAMES = ("bootstrap.servers", "security.protocol", *(row.name for row in TLS_PROPERTIES))
