"""Kinds of values that a property may have: how one is read from text, and what is allowed, in words.

Used by `protocol.properties`, and by who has options of its own. May not know what the values are used for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import ConfigurationError
from protocol.secret import HIDDEN, Secret

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
_MOST_SHOWN = 200


@dataclass(frozen=True)
class Kind:
    """A kind of value: how it is read from text (`ValueError`: not one of it) and, in words, what is allowed.

    What is `secret` is shown by no message; the `ValueError` must not, either. What is `exact` keeps its blanks.
    """

    allowed: str
    parse: Callable[[str], Any]
    secret: bool = False
    exact: bool = False

    def read(self, name: str, text: str, remedy: str = "") -> Any:
        """Raises `ConfigurationError` that names the property, the value, what is allowed and the remedy."""
        try:
            return self.parse(text if self.exact else text.strip())
        except ValueError as error:
            detail = f" ({error})" if str(error) else ""
            given = HIDDEN if self.secret else shown(text)
            raise ConfigurationError(
                f"{name} is {given}{detail}; allowed: {self.allowed}.{' ' + remedy if remedy else ''}", name=name
            ) from error


def shown(text: str) -> str:
    """A value as messages show it: quoted, cut short, and without what stands before an @ (user:password@host)."""
    # Sought where a word begins: from each of its letters on, a long text of a peer's would take minutes.
    quoted = repr(re.sub(r"(?<![^,\s/])[^,\s/]*@", "***@", text))
    return quoted if len(quoted) <= _MOST_SHOWN else f"{quoted[:_MOST_SHOWN]}... ({len(text)} characters)"


def integer(minimum: int = 0, maximum: int = MAX_INT32, *, also: Mapping[int, Any] | None = None) -> Kind:
    """Whole numbers of a range; `also` maps values outside of it to what they mean."""
    others = dict(also or {})

    def parse(text: str) -> Any:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError("not a whole number")
        value = int(text)
        if value in others:
            return others[value]
        if not minimum <= value <= maximum:
            raise ValueError("out of range")
        return value

    return Kind(f"{minimum} to {maximum}" + "".join(f" or {other}" for other in others), parse)


def one_of(*words: str, meanings: Mapping[str, Any] | None = None, otherwise: str = "") -> Kind:
    """Words, in upper or lower case, that stand for themselves or for a meaning. `otherwise`: why not another."""
    known: dict[str, Any] = {**{word: word for word in words}, **(meanings or {})}
    by_lower = {word.lower(): meaning for word, meaning in known.items()}

    def parse(text: str) -> Any:
        if text.lower() not in by_lower:
            raise ValueError(otherwise)
        return by_lower[text.lower()]

    return Kind(", ".join(known), parse)


def _nonempty(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _secret(text: str) -> Secret:
    if _HALF_A_CHARACTER.search(text):
        # What encodes it later would have all of it in its error.
        raise ValueError("no text in UTF-8")
    return Secret(_nonempty(text))


_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")
_ADDRESS = re.compile(r"(?:[\w.%-]+://)?(?:\[(?P<ipv6>[0-9A-Fa-f:.%]+)\]|(?P<host>[\w.%-]+)):(?P<port>\d+)")


def _addresses(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port,[ipv6]:port` -> pairs in the order given, each once."""
    found: dict[tuple[str, int], None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _ADDRESS.fullmatch(item)
        if not match:
            raise ValueError("an entry is not host:port")
        # As Java's clients, no notice is taken of what else stands there: a listener's name, or http from a habit.
        if int(match["port"]) not in range(1, 65536):
            raise ValueError("a port is 1 to 65535")
        if match["host"]:
            _require_encodable(match["host"])
        found[match["ipv6"] or match["host"], int(match["port"])] = None
    if not found:
        raise ValueError("no address")
    return tuple(found)


def _require_encodable(host: str) -> None:
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host} cannot be a host name: {error}") from error


BOOLEAN = one_of(meanings={"true": True, "false": False})
MILLISECONDS = integer(0)
POSITIVE_MILLISECONDS = integer(1)
SOCKET_BUFFER = integer(1, also={-1: -1})
TEXT = Kind("any text", str)
NONEMPTY = Kind("any text but the empty one", _nonempty)
SECRET = Kind(NONEMPTY.allowed, _secret, secret=True, exact=True)
ADDRESSES = Kind("host:port[,host:port...]", _addresses)
ACKS = one_of(meanings={"all": -1, "-1": -1, "1": 1, "0": 0})
SECURITY_PROTOCOL = one_of(
    *("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    otherwise="nothing falls back to another one in silence",
)
PARTITIONER = one_of(
    *("murmur2", "fnv1a", "fnv1a_reference", "crc32", "random", "round_robin", "manual"),
    meanings={
        "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2",
        "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
    },
    otherwise="other classes cannot run here; give rows a partition instead",
)
LIBRDKAFKA_PARTITIONER = one_of(
    "random",
    "consistent",
    "consistent_random",
    meanings={
        "murmur2": "murmur2_consistent",
        "murmur2_random": "murmur2",
        "fnv1a": "fnv1a_consistent",
        "fnv1a_random": "fnv1a",
    },
)
