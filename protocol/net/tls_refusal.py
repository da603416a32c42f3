"""Convert TLS errors to messages with a remedy. Used by `tls_stream`."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from protocol.base.listing import listed
from protocol.errors import TLSFailed
from protocol.security.tls_config import TLS_NAMES, TLSConfig

# X509_V_ERR_... of OpenSSL, by message.
_EXPIRED, _NOT_YET_VALID = 10, 9
_WRONG_HOST = frozenset((62, 64))
_UNKNOWN_CA = frozenset((2, 7, 18, 19, 20, 21))

# Alerts of the broker (RFC 8446, 6.2), with OpenSSL's names, about a refused or missing client certificate.
_OF_OUR_CERTIFICATE = frozenset(
    (
        *("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"),
        *("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED"),
        *("TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_ACCESS_DENIED"),
    )
)
_OF_VERSIONS = frozenset(("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"))
_OF_CIPHERS = frozenset(("SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV1_ALERT_INSUFFICIENT_SECURITY"))
# OpenSSL's reasons for an answer without TLS.
NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"))

NO_TLS_THERE = (
    "the server did not respond with TLS. Use the port of a TLS listener in bootstrap.servers, or for a listener "
    "without TLS change security.protocol"
)


def refused(error: OSError, address: str, config: TLSConfig) -> TLSFailed:
    """Convert a handshake error of either side."""
    reason = getattr(error, "reason", None) or str(error)
    return tls_failed(address, _certificate(error, config) or _alert(reason, config))


def tls_failed(address: str, why: str) -> TLSFailed:
    """Make the error; `why` includes the remedy."""
    return TLSFailed(f"{address}: {why}", settings=TLS_NAMES)


def is_about_our_certificate(error: OSError) -> bool:
    """Return True if the broker refused or requires a client certificate."""
    return getattr(error, "reason", "") in _OF_OUR_CERTIFICATE


def is_about_the_host(error: BaseException | None) -> bool:
    """Return True if the broker's certificate is for another host name."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _WRONG_HOST


def wrong_host(address: str, host: str, names: Sequence[str]) -> TLSFailed:
    """Make the error for a certificate with these names instead of `host`."""
    why = (
        f"the broker's certificate is not for {host}, but for {listed(names) or 'no name'}. Connect with a name in the "
        "certificate (bootstrap.servers, and the brokers' advertised.listeners), or issue a certificate for this name"
    )
    return tls_failed(address, why)


def _certificate(error: OSError, config: TLSConfig) -> str | None:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    code, reason = error.verify_code, error.verify_message
    if code in _UNKNOWN_CA:
        return (
            f"the broker's certificate is of an untrusted CA ({reason}): it is not in {_trust(config)}. Set "
            "ssl.truststore.location or ssl.truststore.certificates to the CA's certificate"
        )
    if code == _EXPIRED:
        return f"the broker's certificate, or that of a CA, has expired ({reason}): renew it on the broker"
    if code == _NOT_YET_VALID:
        return f"the broker's certificate, or that of a CA, is not valid yet ({reason}): check this machine's clock"
    return f"the broker's certificate was refused: {reason}"


def _alert(reason: str, config: TLSConfig) -> str:
    reason_text = reason.lower().replace("_", " ")
    if reason in _OF_OUR_CERTIFICATE and config.has_key:
        return (
            f"the broker refused our certificate ({reason_text}): it must be valid, and of a CA that the broker trusts"
        )
    if reason in _OF_OUR_CERTIFICATE:
        return (
            f"the broker requires a client certificate ({reason_text}). Set ssl.keystore.location, or "
            "ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    if reason in _OF_VERSIONS:
        spoken = " and ".join(config.versions)
        return f"the broker does not support {spoken} ({reason_text}): check ssl.enabled.protocols of client and broker"
    if reason in _OF_CIPHERS:
        return f"client and broker have no cipher suite in common ({reason_text}): check ssl.cipher.suites of both"
    if reason in NO_TLS:
        return f"{NO_TLS_THERE} ({reason_text})"
    return f"the TLS handshake failed ({reason_text})"


def _trust(config: TLSConfig) -> str:
    if config.truststore_certificates is not None:
        return "ssl.truststore.certificates"
    if config.truststore_location is not None:
        return config.truststore_location
    paths = ssl.get_default_verify_paths()
    return f"the system's trust store ({paths.cafile or paths.capath or 'which OpenSSL does not find'})"
