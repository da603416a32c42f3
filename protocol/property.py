"""Rows of the table of Kafka's client properties: a property, its role, and its effect in this client.

The rows are in `protocol.properties` and `protocol.security`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial

from protocol.property_kinds import TEXT, Kind


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
