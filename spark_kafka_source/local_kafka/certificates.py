"""A certificate authority that signs certificates for local brokers and tests, as PEM files.

Needs `cryptography` (the extra `tls`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_DAY = timedelta(days=1)
_KEY_CERT_SIGN = 5  # the bit of RFC 5280, 4.2.1.3


class CertificateAuthority:
    """A certificate authority with one folder for its files. `certificate` is its own, for trust stores."""

    def __init__(self, folder: Path, name: str = "local Kafka") -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise ConfigurationError(
                "a local Kafka with TLS needs the package cryptography: pip install 'spark-kafka-source[tls]'"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate.write_bytes(
            _pem(self._signed(name, (), self._key.public_key(), (-_DAY, 10 * _DAY), is_ca=True))
        )

    def issue(
        self, name: str, hosts: Sequence[str] = (), *, valid: tuple[timedelta, timedelta] = (-_DAY, 10 * _DAY)
    ) -> Path:
        """Write a new key and its certificate to a file.

        `name`: common name, also the file's name.
        `hosts`: host names and addresses in the certificate.
        `valid`: start and end of the validity, relative to now.
        Returns the PEM file.
        """
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file = self.folder / f"{name}.pem"
        file.touch(0o600)
        file.write_bytes(
            key.private_bytes(encoding, form, serialization.NoEncryption())
            + _pem(self._signed(name, hosts, key.public_key(), valid, is_ca=False))
        )
        return file

    def _signed(
        self,
        name: str,
        hosts: Sequence[str],
        key: EllipticCurvePublicKey,
        valid: tuple[timedelta, timedelta],
        *,
        is_ca: bool,
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        def named(common_name: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])

        now = datetime.now(timezone.utc)
        signed = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(self._name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + valid[0])
            .not_valid_after(now + valid[1])
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        # Python 3.13 and later refuse certificates without these extensions by default (RFC 5280, 4.2.1.1 to 4.2.1.3).
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = signed.add_extension(authority_key, critical=False)
        if is_ca:
            signed = signed.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            signs_certificates = (bit == _KEY_CERT_SIGN for bit in range(9))
            signed = signed.add_extension(x509.KeyUsage(*signs_certificates), critical=True)
        if hosts:
            signed = signed.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        return signed.sign(self._key, hashes.SHA256())


def _host(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)
