"""Observable effects of each property `ssl.*`, in handshakes: a part of the table of `test_properties_apply`."""

from __future__ import annotations

import functools
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from protocol.base.clock import Deadline
from protocol.config import parse_client
from protocol.errors import KafkaError
from protocol.net.tls_context import TLSContext
from protocol.net.tls_stream import connect_tls
from spark_kafka_source.local_kafka.certificates import CertificateAuthority

_PASSWORD = "right"


@functools.cache
def _files() -> dict[str, str]:
    """Return the placeholders and their paths."""
    folder = Path(tempfile.mkdtemp(prefix="tls-observers-"))
    authority, another = CertificateAuthority(folder, "a CA"), CertificateAuthority(folder / "another", "another CA")
    paths = {
        "<server>": authority.issue("server", ["localhost"]),
        "<ca>": authority.certificate,
        "<another>": another.certificate,
        "<me>": authority.issue("me"),
        "<you>": authority.issue("you"),
        "<store>": folder / "store.p12",
        "<encrypted>": folder / "encrypted.pem",
    }
    own = paths["<me>"].read_bytes()
    key, certificate = serialization.load_pem_private_key(own, None), x509.load_pem_x509_certificate(own)
    encryption = serialization.BestAvailableEncryption(_PASSWORD.encode())
    trusted = [x509.load_pem_x509_certificate(authority.certificate.read_bytes())]
    paths["<store>"].write_bytes(
        pkcs12.serialize_key_and_certificates(b"me", key, certificate, trusted, encryption)  # type: ignore[arg-type]
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted = key.private_bytes(pem, form, encryption) + certificate.public_bytes(pem)
    paths["<encrypted>"].write_bytes(encrypted)
    return {name: str(path) for name, path in paths.items()}


def _filled(text: str) -> str:
    """Return a placeholder's path, or after `text of ` the text of that file."""
    path = _files().get(text.removeprefix("text of "), text)
    return Path(path).read_text() if text.startswith("text of ") else path


def _handshake(options: Mapping[str, str]) -> dict[str, Any]:
    """Return `version`, `cipher`, and `who` (the client's certificate) of a handshake; or `error`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_files()["<server>"])
    context.load_verify_locations(_files()["<ca>"])
    context.verify_mode = ssl.CERT_OPTIONAL
    handshake: dict[str, Any] = {}

    def serve() -> None:
        try:
            with context.wrap_socket(server.accept()[0], server_side=True) as connected:
                subject = (connected.getpeercert() or {}).get("subject", ((("", None),),))
                handshake.update(version=connected.version(), cipher=connected.cipher()[0], who=subject[0][0][1])
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        # A refused client connects once more, to read the certificate's names.
        serving = threading.Thread(target=lambda: (serve(), serve()), daemon=True)
        serving.start()
        port = server.getsockname()[1]
        host = options.get("host", "localhost")
        properties = {"bootstrap.servers": "b:1", "security.protocol": "SSL"}
        properties |= {name: _filled(value) for name, value in options.items() if name != "host"}

        def open_socket() -> socket.socket:
            return socket.create_connection(("127.0.0.1", port))

        try:
            config = parse_client(properties).tls
            with closing(connect_tls(open_socket, host, port, TLSContext(config), Deadline.after_ms(10_000))):
                pass
        except KafkaError as error:
            return {"error": type(error).__name__}
        finally:
            # Connect once more, for a server that waits for another connection.
            with closing(open_socket()):
                pass
            serving.join(10)
    return handshake


def _observe(label: str, **further: str) -> Callable[[object, dict[str, str]], object]:
    """Observe `label` of a handshake that also has these properties, or the name of its error."""
    base = {name.replace("_", "."): value for name, value in further.items()}
    base.setdefault("ssl.truststore.location", "<ca>")
    base = {name: value for name, value in base.items() if value}

    def observe(_: object, options: dict[str, str]) -> object:
        handshake = _handshake({**base, **options})
        return handshake.get("error") or handshake[label]

    return observe


_MINE = {"ssl_keystore_certificate_chain": "text of <me>", "ssl_keystore_key": "text of <me>"}
_128, _256 = (f"ECDHE-ECDSA-AES{name}" for name in ("128-GCM-SHA256", "256-GCM-SHA384"))

TLS_OBSERVERS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "ssl.truststore.location": (_observe("version"), {"<ca>": "TLSv1.3", "<another>": "TLSFailed"}),
    "ssl.truststore.certificates": (
        _observe("version", ssl_truststore_location=""),
        {"text of <ca>": "TLSv1.3", "text of <another>": "TLSFailed"},
    ),
    "ssl.truststore.type": (_observe("version"), {"PEM": "TLSv1.3", "PKCS12": "ConfigurationError"}),
    "ssl.truststore.password": (
        _observe("version", ssl_truststore_location="<store>"),
        {_PASSWORD: "TLSv1.3", "wrong": "ConfigurationError"},
    ),
    "ssl.keystore.location": (_observe("who"), {"<me>": "me", "<you>": "you"}),
    "ssl.keystore.certificate.chain": (
        _observe("who", **_MINE),
        {"text of <me>": "me", "text of <you>": "ConfigurationError"},
    ),
    "ssl.keystore.key": (_observe("who", **_MINE), {"text of <me>": "me", "text of <you>": "ConfigurationError"}),
    "ssl.keystore.type": (_observe("who", ssl_keystore_location="<me>"), {"PEM": "me", "JKS": "ConfigurationError"}),
    "ssl.keystore.password": (
        _observe("who", ssl_keystore_location="<store>"),
        {_PASSWORD: "me", "wrong": "ConfigurationError"},
    ),
    "ssl.key.password": (
        _observe("who", ssl_keystore_location="<encrypted>"),
        {_PASSWORD: "me", "wrong": "ConfigurationError"},
    ),
    "ssl.endpoint.identification.algorithm": (
        _observe("version", host="another.example.com"),
        {"https": "TLSFailed", "": "TLSv1.3"},
    ),
    "ssl.enabled.protocols": (_observe("version"), {"TLSv1.2": "TLSv1.2", "TLSv1.1,TLSv1.3": "TLSv1.3"}),
    "ssl.protocol": (_observe("version"), {"TLSv1.2": "TLSv1.2", "TLS": "TLSv1.3"}),
    "ssl.cipher.suites": (
        _observe("cipher"),
        {
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": _128,
            "ECDHE-ECDSA-AES256-GCM-SHA384": _256,
            "TLS_AES_256_GCM_SHA384": "TLS_AES_256_GCM_SHA384",
            "none": "ConfigurationError",
        },
    ),
}
