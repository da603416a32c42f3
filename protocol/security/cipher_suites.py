"""Map Java's names of cipher suites (from the RFCs) to OpenSSL's. Pure functions."""

from __future__ import annotations

import re

# TLS 1.3: OpenSSL offers the three suites that brokers support.
_TLS13 = re.compile(r"TLS_(AES_\d+_(GCM|CCM|CCM_8)|CHACHA20_POLY1305)_SHA\d+")
_JAVA = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+)_WITH_(?P<cipher>\w+)_(?P<digest>SHA\d*|MD5)")


def is_of_tls13(name: str) -> bool:
    """Return True if the name is a cipher suite of TLS 1.3."""
    return bool(_TLS13.fullmatch(name))


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite; names that are not Java's are unchanged.

    `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` becomes `ECDHE-RSA-AES256-GCM-SHA384`.
    """
    match = _JAVA.fullmatch(name)
    if match is None:
        return name
    # OpenSSL omits the key exchange RSA, the mode CBC and the digest after POLY1305.
    exchange = "" if match["exchange"] == "RSA" else match["exchange"].replace("_", "-") + "-"
    cipher = re.sub(r"^(AES|CAMELLIA)_", r"\1", match["cipher"].removesuffix("_CBC")).replace("_", "-")
    cipher = "DES-CBC3" if cipher == "3DES-EDE" else cipher
    digest = "" if cipher.endswith("POLY1305") else f"-{match['digest']}"
    return f"{exchange}{cipher}{digest}"
