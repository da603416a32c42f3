"""What an error of TLS means, in words that say what to change. Used by `tls_connect`."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from protocol.errors import TLSFailed
from protocol.security.tls_config import TLSConfig
from protocol.security.tls_properties import TLS_NAMES

_MOST_NAMES = 10

# OpenSSL's X509_V_ERR_..., and what is said of them here.
_EXPIRED, _NOT_YET_VALID = 10, 9
_WRONG_HOST = frozenset((62, 64))
_UNKNOWN_CA = frozenset((2, 7, 18, 19, 20, 21))

# Alerts of the broker (RFC 8446, 6.2), in OpenSSL's names, about our certificate or that there is none.
_OF_OUR_CERTIFICATE = frozenset(
    (
        *("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"),
        *("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED"),
        *("TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_ACCESS_DENIED"),
    )
)
_OF_VERSIONS = frozenset(("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"))
_OF_CIPHERS = frozenset(("SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV1_ALERT_INSUFFICIENT_SECURITY"))
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"))

NO_TLS_THERE = (
    "what answers there does not speak TLS. Give the port of a TLS listener (bootstrap.servers), or for one without "
    "TLS another security.protocol"
)


def refused(error: OSError, address: str, config: TLSConfig) -> TLSFailed:
    """What the broker, or we, did not accept."""
    reason = getattr(error, "reason", None) or str(error)
    return tls_failed(address, _certificate(error, config) or _alert(reason, config))


def tls_failed(address: str, why: str) -> TLSFailed:
    return TLSFailed(f"{address}: {why}", settings=TLS_NAMES)


def is_about_our_certificate(error: OSError) -> bool:
    return getattr(error, "reason", "") in _OF_OUR_CERTIFICATE


def is_about_the_host(error: BaseException | None) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _WRONG_HOST


def wrong_host(address: str, host: str, names: Sequence[str]) -> TLSFailed:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    given = ", ".join(names[:_MOST_NAMES]) + more
    why = (
        f"the broker's certificate is not for {host}, but for {given or 'no name'}. Connect by a "
        "name that it has (bootstrap.servers, and the brokers' advertised.listeners), or have one made for this name"
    )
    return tls_failed(address, why)


def _certificate(error: OSError, config: TLSConfig) -> str | None:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    code, said = error.verify_code, error.verify_message
    if code in _UNKNOWN_CA:
        return (
            f"the broker's certificate is of a CA that is not trusted ({said}): it is not in {_trust(config)}. Give "
            "the CA's certificate by ssl.truststore.location or ssl.truststore.certificates"
        )
    if code == _EXPIRED:
        return f"the broker's certificate, or one of its CAs', has expired ({said}): it has to be renewed at the broker"
    if code == _NOT_YET_VALID:
        return (
            f"the broker's certificate, or one of its CAs', is not valid yet ({said}): is this machine's clock right?"
        )
    return f"the broker's certificate is refused: {said}"


def _alert(reason: str, config: TLSConfig) -> str:
    words = reason.lower().replace("_", " ")
    if reason in _OF_OUR_CERTIFICATE and config.has_key:
        return f"the broker refuses our certificate ({words}): it must be valid, and of a CA that the broker trusts"
    if reason in _OF_OUR_CERTIFICATE:
        return (
            f"the broker wants a certificate from us ({words}). Give one with its key by ssl.keystore.location, or by "
            "ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    if reason in _OF_VERSIONS:
        spoken = " and ".join(config.versions)
        return f"the broker does not speak {spoken} ({words}): see ssl.enabled.protocols, here and there"
    if reason in _OF_CIPHERS:
        return f"there is no cipher suite that both ends accept ({words}): see ssl.cipher.suites, here and there"
    if reason in _NO_TLS:
        return f"{NO_TLS_THERE} ({words})"
    return f"the TLS handshake failed ({words})"


def _trust(config: TLSConfig) -> str:
    if config.truststore_certificates is not None:
        return "ssl.truststore.certificates"
    if config.truststore_location is not None:
        return config.truststore_location
    paths = ssl.get_default_verify_paths()
    return f"the system's trust store ({paths.cafile or paths.capath or 'which OpenSSL does not find'})"
