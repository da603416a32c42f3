"""PEM as people write it: with its lines, or on one line with spaces (or `\\n` in letters) in place of their ends.

Java's Kafka client takes all of that; OpenSSL wants lines of 64 characters. Pure.
"""

from __future__ import annotations

import re
import textwrap

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def blocks(text: str, kind: str) -> list[str]:
    """The blocks whose label ends with `kind` ("CERTIFICATE", "PRIVATE KEY"), in lines, in their order."""
    text = text.replace("\\n", "\n")
    return [_lines(*match.groups()) for match in _BLOCK.finditer(text) if match[1].endswith(kind)]


def _lines(label: str, body: str) -> str:
    # Old kinds of encrypted keys have lines "Proc-Type: ..." at their head, which must stay as they are.
    if ":" not in body:
        body = "\n".join(textwrap.wrap("".join(body.split()), 64))
    return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"
