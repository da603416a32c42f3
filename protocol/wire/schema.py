"""The types that describe a message: `Field`, `Array`, `Struct`, `Api`, and the broker of a request (`Route`).

The files of `wire.messages` describe each message once for all versions, as data. `wire.codec` compiles a description
into an encoder and a decoder of one version. `choose_version` chooses it for a request. This module does not handle
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Union

from protocol.errors import UnsupportedVersion, UsageError

Primitive = Literal[
    "bool", "int8", "int16", "uint16", "int32", "int64", "float64", "uuid", "string", "bytes", "records"
]
Type = Union[Primitive, "Array", "Struct"]

NO_UUID = b"\0" * 16

_ZERO: dict[str, Any] = {"bool": False, "uuid": NO_UUID, "string": "", "bytes": b"", "records": None}


class Route(Enum):
    """The broker that a request must be sent to."""

    ANY = "any broker"
    LEADER = "the leader of the partition"
    GROUP = "the coordinator of the group"
    TRANSACTION = "the coordinator of the transactional id"
    CONTROLLER = "the controller"
    BROKER = "one broker: each answers for itself"


Body = dict[str, Any] | Callable[[int], dict[str, Any]]
"""A request body, or a function that builds it for the chosen API version (for fields that moved or were replaced)."""

_COORDINATOR_KEY_FIELDS = {Route.GROUP: "group_id", Route.TRANSACTION: "transactional_id"}


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence; in Python a list, or None if nullable."""

    of: Type


class Struct:
    """Named fields in wire order; in Python a dict."""

    __slots__ = ("fields",)

    def __init__(self, *fields: Field) -> None:
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct.

    `name`, `type`: name (in snake case) and type.
    `since`, `until`: first and last message version with the field; `until=None` for all later ones.
    `nullable_since`: first version in which the value may be None; None for never.
    `default`: value when absent; `...` for the zero of its type (0, "", an empty list, a struct of defaults; None for
    records).
    `tag`, `tag_since`: from version `tag_since` on, the field is a tagged field with this number, sent only if not the
    default.
    `ignorable`: in a version without this field a value is dropped; if False, it raises `UsageError`.
    `doc`: the field's meaning.
    """

    name: str
    type: Type
    since: int = 0
    until: int | None = None
    nullable_since: int | None = None
    default: Any = ...
    tag: int | None = None
    tag_since: int | None = None
    ignorable: bool = False
    doc: str = ""

    def present(self, version: int) -> bool:
        """Return True if this version has the field, tagged or not."""
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable(self, version: int) -> bool:
        """Return True if the field may be None in this version."""
        return self.nullable_since is not None and version >= self.nullable_since

    def tagged(self, version: int) -> bool:
        """Return True if this version has the field as a tagged field."""
        return self.tag_since is not None and version >= self.tag_since

    def default_value(self) -> Any:
        """Return the value of a field that was not sent; lists and dicts are new objects."""
        if self.default is not ...:
            return self.default
        if isinstance(self.type, Array):
            return []
        if isinstance(self.type, Struct):
            return {field.name: field.default_value() for field in self.type.fields}
        return _ZERO.get(self.type, 0)

    def is_default(self, value: Any) -> bool:
        """Return True if `value` equals the default; missing keys of a struct count as their defaults."""
        if isinstance(self.type, Struct) and self.default is ... and isinstance(value, Mapping):
            return all(f.name not in value or f.is_default(value[f.name]) for f in self.type.fields)
        return bool(value == self.default_value())


THROTTLE_TIME = Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client")


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A request and its response in all versions that this client supports.

    `key`, `name`: Kafka's API key and name.
    `request`, `response`: schemas of both bodies.
    `first`, `last`: range of supported versions.
    `flexible_since`: first version with compact lengths and tagged fields; None if no version has them.
    `route`: the broker to send the request to.
    `coordinator_key_field`: request field with the key of the coordinator; "" for the usual field: `group_id` of
    `Route.GROUP`, `transactional_id` of `Route.TRANSACTION`.
    """

    key: int
    name: str
    request: Struct
    response: Struct
    first: int
    last: int
    flexible_since: int | None
    route: Route
    coordinator_key_field: str = ""

    def coordinator_key(self, body: Mapping[str, Any]) -> str | None:
        """Return the group or transactional id of a request; None if it is null, or the request needs no coordinator.

        Raises `UsageError`: the request has several ids (or none), which may have different coordinators.
        """
        if self.route not in _COORDINATOR_KEY_FIELDS:
            return None
        field = self.coordinator_key_field or _COORDINATOR_KEY_FIELDS[self.route]
        value = body.get(field, [])
        if isinstance(value, list):
            if not value:
                raise UsageError(
                    f"{self.name}: {field} is missing or empty, and the coordinator cannot be found without it"
                )
            if len(value) > 1:
                raise UsageError(f"{self.name}: {field} must have one element, since each may have another coordinator")
            value = value[0]
        return value if value is None else str(value)

    def flexible(self, version: int) -> bool:
        """Return True if this version has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name} v{self.first} to v{self.last}>"


def api(
    key: int,
    name: str,
    request: Struct,
    response: Struct,
    versions: str,
    flexible: str,
    route: Route,
    *,
    coordinator_key_field: str = "",
) -> Api:
    """Return an `Api`; the versions are in Kafka's notation, such as "0-13" and "9+", or "none"."""
    first, _, last = versions.partition("-")
    flexible_since = None if flexible == "none" else int(flexible.removesuffix("+"))
    return Api(
        key, name, request, response, int(first), int(last or first), flexible_since, route, coordinator_key_field
    )


# Releases of Apache Kafka by the newest version of Fetch: a broker does not tell its own version.
_FETCH = 1
_METADATA = 3
_RELEASES = {
    11: "2.3 to 2.6",
    12: "2.7 to 3.0",
    13: "3.1 to 3.4",
    14: "3.5",
    15: "3.5 to 3.6",
    16: "3.7 to 3.8",
    17: "3.9 to 4.0",
    18: "4.1 or later",
}


def _release(broker: Mapping[int, tuple[int, int]]) -> str:
    """Return a broker's release as ` (Kafka 2.7 to 3.0)`; nothing if unknown."""
    release = _RELEASES.get(broker[_FETCH][1]) if _FETCH in broker else None
    return f" (Kafka {release})" if release else ""


def choose_version(
    api: Api, broker: Mapping[int, tuple[int, int]], at_least: int = 0, at_most: int | None = None
) -> int:
    """Return the highest version that satisfies the client, the broker and the call.

    `api`: the API to call.
    `broker`: API key to the (lowest, highest) version that the broker supports.
    `at_least`, `at_most`: range that the call requires; ListOffsets, for example, needs v7 for the offset of the
    maximum timestamp.
    Raises `UnsupportedVersion`: no version satisfies all; the message names the ranges.
    """
    supported = broker.get(api.key)
    if supported is not None:
        floor = max(api.first, supported[0], at_least)
        ceiling = min(api.last, supported[1], api.last if at_most is None else at_most)
        if floor <= ceiling:
            return ceiling
    ours = f"this client supports v{api.first} to v{api.last}"
    support = f"the broker{_release(broker)}"
    if supported is None:
        message = f"{support} does not support {api.name} (API key {api.key}); {ours}"
        if broker and _METADATA not in broker:
            message += ". Likely the port of a KRaft controller: use the address of a broker's listener"
        raise UnsupportedVersion(message, api=api.name)
    needs = f"this call needs v{at_least} or later" if at_least > api.first else ""
    needs += f"{' and' if needs else 'this call needs'} v{at_most} or earlier" if at_most is not None else ""
    message = f"no common version of {api.name}: {ours}, {support} v{supported[0]} to v{supported[1]}"
    raise UnsupportedVersion(f"{message}; {needs}" if needs else message, api=api.name)
