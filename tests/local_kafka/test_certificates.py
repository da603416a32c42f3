"""Certificates of local brokers have the form that RFC 5280 requires, which strict TLS clients check."""

from __future__ import annotations

import socket
import ssl
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cryptography import x509

from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from tests.support.loopback_server import LoopbackServer


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


def read(pem: Path) -> x509.Extensions:
    return x509.load_pem_x509_certificate(pem.read_bytes()).extensions


def test_only_the_authority_is_a_ca_by_a_critical_constraint(authority: CertificateAuthority) -> None:
    for pem, is_ca in ((authority.certificate, True), (authority.issue("broker", ["localhost"]), False)):
        constraints = read(pem).get_extension_for_class(x509.BasicConstraints)
        assert (constraints.value.ca, constraints.critical) == (is_ca, True)


def test_host_names_are_no_critical_extension_beside_a_subject(authority: CertificateAuthority) -> None:
    """RFC 5280, 4.2.1.6: they are critical only in a certificate with an empty subject."""
    names = read(authority.issue("broker", ["localhost", "127.0.0.1"])).get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert [str(name.value) for name in names.value] == ["localhost", "127.0.0.1"]
    assert not names.critical


def test_strict_clients_accept_the_certificates(authority: CertificateAuthority) -> None:
    """Python's default context is strict since 3.13."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with LoopbackServer(BaseHTTPRequestHandler, authority.issue("broker", ["127.0.0.1"])) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), 10) as sock, context.wrap_socket(sock, server_hostname=host):
            pass
