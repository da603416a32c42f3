"""The assignors by name, and the parser of `partition.assignment.strategy`, which lists some of them."""

from __future__ import annotations

from protocol.errors import ConfigurationError
from protocol.group.assignors.assignor import Assignor
from protocol.group.assignors.cooperative_sticky import COOPERATIVE_STICKY
from protocol.group.assignors.range import RANGE
from protocol.group.assignors.roundrobin import ROUNDROBIN
from protocol.group.assignors.sticky import STICKY

ASSIGNORS = {each.name: each for each in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)}
"""Assignors by their name in JoinGroup."""

_NAMES = ASSIGNORS | {each.java_class: each for each in ASSIGNORS.values()}


def parse_strategy(text: str) -> tuple[Assignor, ...]:
    """Parse names of assignors or of their Java classes, separated by commas, preferred ones first.

    Raises
    ------
    ConfigurationError
        A name is unknown or listed twice, or the list is empty.
    """
    found: list[Assignor] = []
    for name in text.split(","):
        assignor = _NAMES.get(name.strip())
        if assignor is None or assignor in found:
            wrong = "is not known" if assignor is None else "is listed twice"
            raise ConfigurationError(
                f"partition.assignment.strategy is {text!r}: {name.strip()!r} {wrong}; allowed: some of "
                f"{', '.join(ASSIGNORS)}, or the names of Java's classes ({STICKY.java_class}), separated by commas.",
                settings=("partition.assignment.strategy",),
            )
        found.append(assignor)
    return tuple(found)
