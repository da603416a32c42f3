"""Normalise PEM: with line breaks, or on one line with spaces (or a literal backslash and n) instead of line breaks.

Java's Kafka client accepts all of these; OpenSSL requires lines of 64 characters. Pure functions.
"""

from __future__ import annotations

import re
import textwrap

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def blocks(text: str, kind: str) -> list[str]:
    """Return the blocks whose label ends with `kind` ("CERTIFICATE", "PRIVATE KEY"), normalised, in their order."""
    text = text.replace("\\n", "\n")
    return [_lines(*match.groups()) for match in _BLOCK.finditer(text) if match[1].endswith(kind)]


def _lines(label: str, body: str) -> str:
    # Old formats of encrypted keys begin with lines like "Proc-Type: ...", which must not change.
    if ":" not in body:
        body = "\n".join(textwrap.wrap("".join(body.split()), 64))
    return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"
