"""Read the certificates and the key of a `TLSConfig` as PEM, from files of this machine.

The format of a file is detected from its content, since Java accepts PKCS12 files for the type JKS. Used by
`net.tls_context`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigurationError
from protocol.security import java_stores, pem
from protocol.security.tls_config import TLS_NAMES, TLSConfig
from protocol.settings.config_providers import resolve_references
from protocol.settings.secret import Secret, hide_variables

CERTIFICATE, PRIVATE_KEY = "CERTIFICATE", "PRIVATE KEY"


@dataclass(frozen=True)
class KeyPair:
    """The client's certificate, followed by those of its CAs, and its key, as PEM; `password` if it is encrypted."""

    chain: str
    key: Secret
    password: Secret | None


@hide_variables
def store_fingerprint(config: TLSConfig) -> list[object]:
    """Return a value that changes if a store may have changed: files, and external secrets (`${dir:...}`)."""
    paths = (config.truststore_location, config.keystore_location)
    inline = (config.truststore_certificates, config.keystore_certificate_chain, config.keystore_key)
    return [
        *(_file_state(resolve_references(path)) for path in paths if path),
        *(Secret(_reveal(value) or "") for value in inline),
    ]


def _file_state(path: str) -> tuple[int, int, int] | None:
    """Return a file's modification time, size and inode; None if there is no file."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@hide_variables
def read_trust_store(config: TLSConfig) -> str | None:
    """Return the certificates of the trusted CAs as PEM; None if none are configured.

    Raises `ConfigurationError`: the trust store cannot be read, or has no certificate.
    """
    if config.truststore_certificates is not None:
        return _certificates("ssl.truststore.certificates", resolve_references(config.truststore_certificates.reveal()))
    if config.truststore_location is None:
        return None
    path = resolve_references(config.truststore_location)
    data = _read("ssl.truststore", path, config.truststore_type)
    if _is_pem(data):
        return _certificates("ssl.truststore.location", data.decode("ascii", "replace"))
    trusted_certificates = java_stores.trusted_certificates(path, data, _reveal(config.truststore_password))
    return _certificates("ssl.truststore.location", trusted_certificates)


@hide_variables
def read_key_pair(config: TLSConfig) -> KeyPair | None:
    """Return the client's certificate and key; None if none are configured.

    Raises `ConfigurationError`: the key store cannot be read, or does not have exactly one key and its certificate.
    """
    name, key_name = "ssl.keystore.certificate.chain", "ssl.keystore.key"
    chain, key = _reveal(config.keystore_certificate_chain), _reveal(config.keystore_key)
    key_password = config.key_password or config.keystore_password
    if config.keystore_location is not None:
        name = key_name = "ssl.keystore.location"
        path = resolve_references(config.keystore_location)
        data = _read("ssl.keystore", path, config.keystore_type)
        if _is_pem(data):
            chain = key = data.decode("ascii", "replace")
        else:
            passwords = _reveal(config.keystore_password), _reveal(key_password)
            key, chain = java_stores.key_and_chain(path, data, *passwords)
    if key is None or chain is None:
        return None
    keys = pem.blocks(key, PRIVATE_KEY)
    if len(keys) != 1:
        raise _store_error(key_name, f"has {len(keys) or 'no'} blocks -----BEGIN PRIVATE KEY-----, but must have one")
    return KeyPair(_certificates(name, chain), Secret(keys[0]), key_password)


def _certificates(name: str, text: str) -> str:
    blocks = pem.blocks(text, CERTIFICATE)
    if not blocks:
        raise _store_error(name, "has no certificate (a block -----BEGIN CERTIFICATE-----)")
    return "".join(blocks)


def _read(name: str, path: str, kind: str | None) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _store_error(f"{name}.location", f"is {path}, which cannot be read ({error.strerror})") from error
    if kind is not None and (kind == "PEM") != _is_pem(data):
        raise _store_error(
            f"{name}.type", f"is {kind}, but {path} is {'' if _is_pem(data) else 'not '}PEM; omit the type"
        )
    return data


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _reveal(secret: Secret | None) -> str | None:
    return None if secret is None else resolve_references(secret.reveal())


def _store_error(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{name} {why}.", name=name, settings=TLS_NAMES)
