"""Prefixes of transactional ids and group names. Pure."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def id_prefix(text: str) -> str:
    """Return the prefix, or raise `ValueError`.

    Kafka accepts any text. The limits here avoid quoting in ACLs, metrics and commands.
    """
    if not _PREFIX.fullmatch(text):
        raise ValueError("not a prefix")
    return text
