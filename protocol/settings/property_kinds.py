"""Rows of the table of Kafka's client properties, and the kinds of their values: parsing and allowed values.

The rows are in `protocol.properties`, `protocol.sasl.config` and `protocol.security.tls_config`; Spark's options use
the same kinds.
"""

from __future__ import annotations

import enum
import re
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from protocol.base.spelling import closest_match
from protocol.errors import ConfigurationError
from protocol.settings.secret import Secret

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
_MAX_SHOWN = 200
_MAX_STRING_BYTES = 2**15 - 1
_ISO_DURATION = re.compile(
    r"P(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)(?:[.,]([0-9]*))?S)?)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Kind:
    """A kind of value.

    `allowed`: description of the allowed values, for errors and documentation.
    `parse`: converts text to the value; raises `ValueError` if the text is not allowed.
    `secret`: hide the value in errors. The `ValueError` must not contain it either.
    `exact`: keep blanks at both ends of the text.
    """

    allowed: str
    parse: Callable[[str], Any]
    secret: bool = False
    exact: bool = False

    def read(self, name: str, text: str, *settings: str) -> Any:
        """Parse a value. Raises `ConfigurationError` with the name, the value, the allowed values and `settings`."""
        try:
            return self.parse(text if self.exact else text.strip())
        except (ValueError, OverflowError) as error:
            detail = f" ({error})" if str(error) else ""
            problem = "has a wrong value, which is not shown" if self.secret else f"is {shown(text)}"
            raise ConfigurationError(
                f"{name} {problem}{detail}; allowed: {self.allowed}.", name=name, settings=settings
            ) from error

    def hidden(self) -> Kind:
        """Return this kind with errors that contain no part of the value."""

        def parse(text: str) -> Any:
            with suppress(ValueError, OverflowError):
                return self.parse(text)
            raise ValueError

        return replace(self, parse=parse, secret=True)


def shown(text: str) -> str:
    """Format a value for an error: quoted, at most 200 characters, without credentials (user:password@host)."""
    # The pattern starts at word boundaries: trying each letter takes minutes for a long text from a peer.
    quoted = repr(re.sub(r"(?<![^,\s/])[^,\s/]*@", "***@", text))
    return quoted if len(quoted) <= _MAX_SHOWN else f"{quoted[:_MAX_SHOWN]}... ({len(text)} characters)"


def iso_duration_us(text: str) -> int:
    """Parse the syntax of Java's `Duration.parse` without signs, such as `P7DT1H0.5S`, into microseconds.

    Raises `ValueError`.
    """
    match = _ISO_DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError("not a duration")
    days, hours, minutes, seconds, fraction = match.groups("0")
    whole_s = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole_s * 1_000_000 + int(fraction[:6].ljust(6, "0"))


def integer(minimum: int = 0, maximum: int = MAX_INT32, *, also: Mapping[int, Any] | None = None) -> Kind:
    """Make the kind of whole numbers in a range; `also` maps further numbers to their meanings."""
    alternatives = dict(also or {})

    def parse(text: str) -> Any:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError("not a whole number")
        value = int(text)
        if value in alternatives:
            return alternatives[value]
        if not minimum <= value <= maximum:
            raise ValueError("out of range")
        return value

    return Kind(f"{minimum} to {maximum}" + "".join(f" or {alternative}" for alternative in alternatives), parse)


def one_of(*words: str, meanings: Mapping[str, Any] | None = None, otherwise: str = "") -> Kind:
    """Make the kind of a fixed set of words, ignoring case.

    `*words`: words that are their own values.
    `meanings`: further words and their values.
    `otherwise`: explanation in the error for any other word.
    """
    meanings_by_word: dict[str, Any] = {**{word: word for word in words}, **(meanings or {})}
    by_lower = {word.lower(): meaning for word, meaning in meanings_by_word.items()}

    def parse(text: str) -> Any:
        if text.lower() not in by_lower:
            suggestion = closest_match(text, meanings_by_word)
            raise ValueError(f"did you mean {suggestion}?" if suggestion else otherwise)
        return by_lower[text.lower()]

    return Kind(", ".join(meanings_by_word), parse)


def _nonempty(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _kafka_string(text: str) -> str:
    if _SURROGATE.search(text):
        raise ValueError("not valid UTF-8 text")
    if len(text.encode()) > _MAX_STRING_BYTES:
        raise ValueError(f"more than {_MAX_STRING_BYTES} bytes")
    return _nonempty(text)


def _secret(text: str) -> Secret:
    if _SURROGATE.search(text):
        # A later encoding error would contain the whole secret.
        raise ValueError("not valid UTF-8 text")
    return Secret(_nonempty(text))


_SURROGATE = re.compile("[\ud800-\udfff]")
_ADDRESS = re.compile(r"(?:[\w.%-]+://)?(?:\[(?P<ipv6>[0-9A-Fa-f:.%]+)\]|(?P<host>[\w.%-]+)):(?P<port>\d+)")


def _addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `host:port,[ipv6]:port` into pairs in the given order, without duplicates."""
    addresses: dict[tuple[str, int], None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _ADDRESS.fullmatch(item)
        if not match:
            raise ValueError("an entry is not host:port")
        # As in Java's clients, a prefix such as a listener name or `http://` is ignored.
        if int(match["port"]) not in range(1, 65536):
            raise ValueError("a port is 1 to 65535")
        if match["host"]:
            _require_encodable(match["host"])
        addresses[match["ipv6"] or match["host"], int(match["port"])] = None
    if not addresses:
        raise ValueError("no address")
    return tuple(addresses)


def _require_encodable(host: str) -> None:
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host} cannot be a host name: {error}") from error


URL_PORTS = {"http": 80, "https": 443}


def parse_url(text: str) -> urllib.parse.SplitResult | None:
    """Parse a URL; None if it is not http or https."""
    with suppress(ValueError):
        url = urllib.parse.urlsplit(text)
        # Reading the port validates it.
        if url.scheme in URL_PORTS and url.hostname and url.port != 0 and text.isascii():
            return url
    return None


def shown_url(url: urllib.parse.SplitResult) -> str:
    """Format a URL without user, password, path and query."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


BOOLEAN = one_of(meanings={"true": True, "false": False})
MILLISECONDS = integer(0)
POSITIVE_MILLISECONDS = integer(1)
SOCKET_BUFFER = integer(1, also={-1: -1})
TEXT = Kind("any text", str)
NONEMPTY = Kind("any text but the empty one", _nonempty)
KAFKA_STRING = Kind(NONEMPTY.allowed, _kafka_string)
"""Text that requests contain: a STRING of Kafka's protocol."""
SECRET = Kind(NONEMPTY.allowed, _secret, secret=True, exact=True)
ADDRESSES = Kind("host:port[,host:port...]", _addresses)
ACKS = one_of(meanings={"all": -1, "-1": -1, "1": 1, "0": 0})
SECURITY_PROTOCOL = one_of(
    *("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), otherwise="there is no fallback to another protocol"
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


class Role(enum.Flag):
    """The kind of client that has the property."""

    CLIENT = enum.auto()
    CONSUMER = enum.auto()
    PRODUCER = enum.auto()


class Effect(enum.Enum):
    """Effect of setting the property in this client."""

    APPLIES = "applies"
    NO_EFFECT = "accepted, without effect"
    FORBIDDEN = "forbidden"
    NOT_YET = "not supported yet"


@dataclass(frozen=True)
class Property:
    """One row of the table. `doc` describes the property, or why it has no effect and the replacement."""

    name: str
    role: Role
    effect: Effect
    doc: str
    field: str = ""
    kind: Kind = TEXT


def applies(role: Role, name: str, kind: Kind, doc: str, *, field: str = "") -> Property:
    """Make the row of a supported property; `field` is its name in the configuration classes."""
    return Property(name, role, Effect.APPLIES, doc, field or name.replace(".", "_"), kind)


def _rows(effect: Effect, role: Role, names: str, doc: str) -> tuple[Property, ...]:
    return tuple(Property(name, role, effect, doc) for name in names.split())


no_effect, forbidden, not_yet = (
    partial(_rows, effect) for effect in (Effect.NO_EFFECT, Effect.FORBIDDEN, Effect.NOT_YET)
)
