"""Names of cipher suites, as Java has them (from RFCs), into OpenSSL's. Pure."""

from __future__ import annotations

import re

# Of TLS 1.3: the three of these that brokers know are what OpenSSL offers.
_TLS13 = re.compile(r"TLS_(AES_\d+_(GCM|CCM|CCM_8)|CHACHA20_POLY1305)_SHA\d+")
_JAVA = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+)_WITH_(?P<cipher>\w+)_(?P<digest>SHA\d*|MD5)")


def is_of_tls13(name: str) -> bool:
    return bool(_TLS13.fullmatch(name))


def openssl_name(name: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` -> `ECDHE-RSA-AES256-GCM-SHA384`; what is not Java's stays as it is."""
    match = _JAVA.fullmatch(name)
    if match is None:
        return name
    # The plain exchange by RSA and the mode CBC go without saying, and so does the digest behind POLY1305.
    exchange = "" if match["exchange"] == "RSA" else match["exchange"].replace("_", "-") + "-"
    cipher = re.sub(r"^(AES|CAMELLIA)_", r"\1", match["cipher"].removesuffix("_CBC")).replace("_", "-")
    cipher = "DES-CBC3" if cipher == "3DES-EDE" else cipher
    digest = "" if cipher.endswith("POLY1305") else f"-{match['digest']}"
    return f"{exchange}{cipher}{digest}"
