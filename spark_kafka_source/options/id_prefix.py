"""What transactional ids, and names of groups, may begin with. Pure; raises `ValueError`."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def id_prefix(text: str) -> str:
    """Returns the prefix. Kafka takes any text; this keeps ACLs, metrics and commands free of what needs quoting."""
    if not _PREFIX.fullmatch(text):
        raise ValueError("not a prefix")
    return text
