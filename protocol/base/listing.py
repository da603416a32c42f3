"""Lists in messages: the first names, and the number of the others.

All messages about topics, partitions, brokers, fields and records use it. Names that the caller chooses from may be
more (`CHOICES`), and a question before a deletion shows all names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

CHOICES = 20
_NUMBER = re.compile(r"\d+")


def listed(names: Collection[str], most: int = 3, separator: str = ", ") -> str:
    """Join the first `most` names for a message, with the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(list(names)[:most]) + more


def listed_by_cause(causes: Iterable[tuple[str, str]]) -> str:
    """Join pairs of a name and its cause for a message. Causes that differ in numbers only count as the same."""
    groups: dict[str, tuple[str, list[str]]] = {}
    for name, cause in causes:
        groups.setdefault(_NUMBER.sub("", cause), (cause, []))[1].append(name)
    return listed([f"{listed(names)}: {cause}" for cause, names in groups.values()], 5, "; ")
