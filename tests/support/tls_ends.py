"""Client and server of TLS connections without a broker: a certificate for "localhost", and a key with a password."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from protocol.net.tls_context import new_context
from protocol.security.tls_config import TLSConfig
from spark_kafka_source.local_kafka.certificates import CertificateAuthority

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Ends:
    """Both ends: `certificate` is the server's file of certificate and key; the client's `config` trusts its CA."""

    certificate: Path
    config: TLSConfig

    def client_context(self) -> ssl.SSLContext:
        return new_context(self.config)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        return context


def make_ends(folder: Path) -> Ends:
    authority = CertificateAuthority(folder)
    return Ends(authority.issue("localhost", HOSTS), TLSConfig(truststore_location=str(authority.certificate)))


def authority_without_key_identifiers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CertificateAuthority:
    """Return one whose certificates Python's default context refuses since 3.13, and Java accepts."""
    add = x509.CertificateBuilder.add_extension

    def add_others(builder: x509.CertificateBuilder, extension: x509.ExtensionType, critical: bool) -> object:
        if isinstance(extension, x509.AuthorityKeyIdentifier | x509.SubjectKeyIdentifier):
            return builder
        return add(builder, extension, critical)

    monkeypatch.setattr(x509.CertificateBuilder, "add_extension", add_others)
    return CertificateAuthority(folder)


def encrypted_key(pem: str, password: str) -> str:
    """Return the private key in `pem`, encrypted, as PKCS #8."""
    encryption = serialization.BestAvailableEncryption(password.encode())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return serialization.load_pem_private_key(pem.encode(), None).private_bytes(*form, encryption).decode()
