"""What becomes of an option that is not one of ours: a warning, or an error where it was meant to be one.

Jobs carry options that do nothing (of a file format, of another client, of what the job once was), and Spark's own
connector takes no notice of them. A slip in one of ours must not pass, though, nor what takes the prefix `kafka.` and
lacks it: the query would run with something else than was asked for. Pure; used by `parsing`.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ConfigurationError
from protocol.properties import PROPERTIES, find
from protocol.property import Effect, Property, Role
from protocol.spelling import meant, same

PREFIX = "kafka."

# So often written without the prefix that other spellings of them are recognised, too.
_OFTEN_BARE = ("group.id", "bootstrap.servers")
# Databricks signs in to Kafka with these; to leave them out would be to connect in another way than was asked for.
_SIGNING_IN = "databricks.servicecredential"


def why_ignored(name: str, options: Iterable[str], role: Role, otherwise: dict[str, str]) -> str:
    """Why an option that is not ours does nothing in a query that takes `options`, and Kafka's properties of `role`.

    `otherwise`: better reasons for some of Kafka's properties. Raises `ConfigurationError`, with what was probably
    meant, for one that was meant to do something.
    """
    lower = name.lower()
    row = find(lower)
    if lower.startswith(_SIGNING_IN):
        raise ConfigurationError(
            f"{name} is not supported: Databricks gives such credentials to its own connector only. Give "
            f"{PREFIX}sasl.oauthbearer.token.provider=package.module:function, which gives a token.",
            name=name,
        )
    if row is not None and not _applies(row, role):
        return otherwise.get(lower, row.doc) if row.role & (role | Role.CLIENT) else "Kafka's property of another side"
    bare = lower if row is not None else next((each for each in _OFTEN_BARE if same(each, lower)), None)
    if bare is not None:
        raise _not_ours(name, f"Kafka's properties take a prefix: {PREFIX}{bare}{_instead(bare)}")
    properties = [PREFIX + each.name for each in PROPERTIES if _applies(each, role)]
    like = meant(lower, [*options, *properties])
    if like is not None:
        raise _not_ours(name, f"did you mean {like}?")
    return "it is not an option of this source and sink"


def _applies(row: Property, role: Role) -> bool:
    return row.effect is Effect.APPLIES and bool(row.role & (role | Role.CLIENT))


def _instead(name: str) -> str:
    return ". Without a group, startingOffsets says where to begin" if name == "auto.offset.reset" else ""


def _not_ours(name: str, hint: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is not an option of this source and sink; {hint}", name=name)
