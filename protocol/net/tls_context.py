"""`ssl.SSLContext` of a `TLSConfig`, recreated when one of its files changes.

All connections of a `pool` share it; open connections keep their context.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.base.condition import Lock
from protocol.errors import ConfigurationError
from protocol.security.stores import KeyPair, read_key_pair, read_trust_store, store_fingerprint
from protocol.security.tls_config import TLS_NAMES, TLSConfig, is_tls13_suite, openssl_name
from protocol.settings.config_providers import resolve_references
from protocol.settings.secret import Secret, hide_variables

log = logging.getLogger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TLSContext:
    """Contexts of one configuration. Thread-safe; files are read on the first call of `current`."""

    def __init__(self, config: TLSConfig) -> None:
        self.config = config
        self._lock = Lock()
        self._context: ssl.SSLContext | None = None
        self._state: list[object] = []

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection. Raises `ConfigurationError` if a file cannot be read.

        Files that were readable before and are not now (certificate replaced, but not yet its key) log a warning.
        """
        with self._lock:
            try:
                now = store_fingerprint(self.config)
                if self._context is None or now != self._state:
                    self._context, self._state = new_context(self.config), now
            except ConfigurationError as error:
                if self._context is None:
                    raise
                log.warning("%s The previously read certificates are still used", error)
            return self._context


def new_context(config: TLSConfig) -> ssl.SSLContext:
    """Create a context from the files of `config`. Raises `ConfigurationError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.check_hostname
    context.minimum_version = _VERSIONS[config.versions[0]]
    context.maximum_version = _VERSIONS[config.versions[-1]]
    # Not needed, and with renegotiation a send could require a receive.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # As in Java, every certificate in a trust store is trusted, root or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _choose_ciphers(context, config)
    _trust(context, config)
    if (pair := read_key_pair(config)) is not None:
        _load(context, pair, "ssl.keystore.key" if config.keystore_key else "ssl.keystore.location")
    return context


def _choose_ciphers(context: ssl.SSLContext, config: TLSConfig) -> None:
    """Select cipher suites. Python cannot set those of TLS 1.3; they are used if that version is enabled."""
    if not config.cipher_suites:
        return
    older = [openssl_name(name) for name in config.cipher_suites if not is_tls13_suite(name)]
    if len(older) == len(config.cipher_suites):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise _wrong(
            "ssl.cipher.suites", f"has no suite of {' or '.join(config.versions)}, the value of ssl.enabled.protocols"
        )
    try:
        context.set_ciphers(":".join(older) or "DEFAULT")
    except ssl.SSLError as error:
        raise _wrong("ssl.cipher.suites", "has no suite that this OpenSSL supports") from error


def _trust(context: ssl.SSLContext, config: TLSConfig) -> None:
    trusted = read_trust_store(config)
    if trusted is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        name = "certificates" if config.truststore_certificates else "location"
        why = f"has a certificate that cannot be read ({error.reason or 'not a certificate'})"
        raise _wrong(f"ssl.truststore.{name}", why) from error


@hide_variables
def _load(context: ssl.SSLContext, pair: KeyPair, name: str) -> None:
    password = Secret("" if pair.password is None else resolve_references(pair.password.reveal()))
    try:
        with _nameless_file(pair.chain) as chain, _nameless_file(pair.key.reveal()) as key:
            # Without this callable, OpenSSL would prompt for a password on the terminal.
            context.load_cert_chain(chain, key, password.reveal)
    except (ssl.SSLError, ValueError) as error:
        # OpenSSL reports no specific error for a wrong password.
        reason = getattr(error, "reason", None) or "it cannot be decrypted"
        why = f"cannot be used ({reason}): is it the key of that certificate, and is ssl.key.password correct"
        raise ConfigurationError(f"{name} {why}?", name=name, settings=TLS_NAMES) from None


@contextmanager
def _nameless_file(text: str) -> Iterator[str]:
    """Yield a path to `text`, since OpenSSL reads keys only from paths. The file has no name and is deleted."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


def _wrong(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{name} {why}.", name=name, settings=TLS_NAMES)
