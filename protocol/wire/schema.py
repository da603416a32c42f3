"""How a message is described: `Field`, `Array`, `Struct`, `Api`, and where a request goes (`Route`).

The files of `wire.messages` are written in these words, as data, once for all versions; `wire.codec` turns them
into encoders and decoders of one version. Nothing here touches bytes, and building a description does no work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Union

from protocol.errors import UsageError

Primitive = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uuid",
    "string",
    "bytes",
    "records",
]
Type = Union[Primitive, "Array", "Struct"]

NO_UUID = b"\0" * 16

_ZERO: dict[str, Any] = {"bool": False, "uuid": NO_UUID, "string": "", "bytes": b"", "records": None}


class Route(Enum):
    """Which broker answers a request."""

    ANY = "any broker"
    LEADER = "the leader of the partition"
    GROUP = "the coordinator of the group"
    TRANSACTION = "the coordinator of the transactional id"
    CONTROLLER = "the controller"
    BROKER = "one broker: each answers for itself"


Body = dict[str, Any] | Callable[[int], dict[str, Any]]
"""Of a request; it may depend on the version that is chosen for it (fields that moved or were replaced)."""

_SAYS_WHICH = {Route.GROUP: "group_id", Route.TRANSACTION: "transactional_id"}


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence; a list in Python, None where null is allowed."""

    of: Type


class Struct:
    """Named fields in the order of the wire; a dict in Python."""

    __slots__ = ("fields",)

    def __init__(self, *fields: Field) -> None:
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct.

    `since` and `until` are the first and last message version that has it (`until=None`: all later ones).
    `nullable_since`: from this version on None may be sent. `default`: its value when absent; `...` stands for
    the zero of its type (0, "", an empty list, a struct of defaults; None for records).
    `tag`, `tag_since`: from version `tag_since` on it is a tagged field with this number, sent only if not default.
    `ignorable`: a value for a version without this field is dropped; without this mark it is a `UsageError`.
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
        """Whether this version has the field, tagged or not."""
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable(self, version: int) -> bool:
        return self.nullable_since is not None and version >= self.nullable_since

    def tagged(self, version: int) -> bool:
        return self.tag_since is not None and version >= self.tag_since

    def default_value(self) -> Any:
        """The value of a field that was not sent; lists and dicts are fresh ones."""
        if self.default is not ...:
            return self.default
        if isinstance(self.type, Array):
            return []
        if isinstance(self.type, Struct):
            return {field.name: field.default_value() for field in self.type.fields}
        return _ZERO.get(self.type, 0)

    def is_default(self, value: Any) -> bool:
        """Whether `value` equals the default; a struct's missing keys count as their defaults."""
        if isinstance(self.type, Struct) and self.default is ... and isinstance(value, Mapping):
            return all(f.name not in value or f.is_default(value[f.name]) for f in self.type.fields)
        return bool(value == self.default_value())


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One of Kafka's request and response pairs, in all versions we speak (`first` to `last`).

    `flexible_since`: first version with compact lengths and tagged fields, None if there is none.
    `says_which`: the request's field with the group or transactional id that `route` is about, if not the usual one.
    """

    key: int
    name: str
    request: Struct
    response: Struct
    first: int
    last: int
    flexible_since: int | None
    route: Route
    says_which: str = ""

    def coordinated(self, body: Mapping[str, Any]) -> str | None:
        """The group or transactional id that a request is about; None where it needs no coordinator."""
        if self.route not in _SAYS_WHICH:
            return None
        field = self.says_which or _SAYS_WHICH[self.route]
        value = body.get(field, [])
        if isinstance(value, list):
            if len(value) != 1:
                raise UsageError(f"{self.name}: {field} must be one, since each may have another coordinator")
            value = value[0]
        return value if value is None else str(value)

    def flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name} v{self.first} to v{self.last}>"
