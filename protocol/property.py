"""What the table of Kafka's client properties is made of: a row, whose it is, and what giving it does.

Rows are written in `protocol.properties` and `protocol.security`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial

from protocol.property_kinds import TEXT, Kind


class Role(enum.Flag):
    """Whose property it is."""

    CLIENT = enum.auto()
    CONSUMER = enum.auto()
    PRODUCER = enum.auto()


class Effect(enum.Enum):
    """What giving the property does here."""

    APPLIES = "applies"
    NO_EFFECT = "accepted, without effect"
    FORBIDDEN = "forbidden"
    NOT_YET = "not supported yet"


@dataclass(frozen=True)
class Property:
    """One row: `doc` says what the property does, or why it does not and what to use instead."""

    name: str
    role: Role
    effect: Effect
    doc: str
    field: str = ""
    kind: Kind = TEXT


def applies(role: Role, name: str, kind: Kind, doc: str, *, field: str = "") -> Property:
    return Property(name, role, Effect.APPLIES, doc, field or name.replace(".", "_"), kind)


def _rows(effect: Effect, role: Role, names: str, doc: str) -> tuple[Property, ...]:
    return tuple(Property(name, role, effect, doc) for name in names.split())


no_effect, forbidden, not_yet = (
    partial(_rows, effect) for effect in (Effect.NO_EFFECT, Effect.FORBIDDEN, Effect.NOT_YET)
)
