"""What a consumer that is in a group, or polls, has to know beside `ConsumerConfig`: where it begins, when it commits.

Its properties have other meanings for who commits by itself (a Spark query refuses them), so they are read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from protocol.config import ConsumerConfig, OffsetReset, parse_consumer
from protocol.property_kinds import BOOLEAN, POSITIVE_MILLISECONDS, Kind
from protocol.secret import hide_variables

# As Java's Duration.parse has it.
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:[.,]\d*)?)S)?)?",
    re.IGNORECASE,
)
_BY_DURATION = "by_duration:"


def _reset(text: str) -> OffsetReset | timedelta:
    words: dict[str, OffsetReset] = {"earliest": "earliest", "latest": "latest", "none": "none"}
    if text.lower() in words:
        return words[text.lower()]
    if not text.lower().startswith(_BY_DURATION):
        raise ValueError
    found = _DURATION.fullmatch(text[len(_BY_DURATION) :])
    parts = {name: part.replace(",", ".") for name, part in found.groupdict().items() if part} if found else {}
    named = parts.pop("time", None)
    if not parts or named in ("T", "t"):
        raise ValueError("not a duration")
    return timedelta(**{name: float(part) for name, part in parts.items()})


_RESET = Kind("earliest, latest, none, by_duration:PnDTnHnMn.nS", _reset)


@dataclass(frozen=True)
class GroupConsumerConfig:
    """`auto_offset_reset`: a duration is so long before now (KIP-1106)."""

    consumer: ConsumerConfig
    auto_offset_reset: OffsetReset | timedelta = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000


_OWN: Mapping[str, Kind] = {
    "auto.offset.reset": _RESET,
    "enable.auto.commit": BOOLEAN,
    "auto.commit.interval.ms": POSITIVE_MILLISECONDS,
}


@hide_variables
def parse_group_consumer(properties: Mapping[str, object]) -> GroupConsumerConfig:
    """As `parse_consumer`. As in Java's consumer, who names a group is a member of it by the classic protocol, and
    commits every five seconds, unless it says something else. Raises `ConfigurationError`.
    """
    rest = {name: value for name, value in properties.items() if name not in _OWN}
    own = {
        name.replace(".", "_"): kind.read(name, str(properties[name]))
        for name, kind in _OWN.items()
        if name in properties
    }
    membership = {"group.protocol": "classic"} if "group.id" in properties else {}
    return GroupConsumerConfig(parse_consumer({**membership, **rest}), **own)
