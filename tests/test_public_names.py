"""The names that users write: one that vanishes without a deprecation is a fault (docs/releasing.md).

`python -m tests.test_public_names > tests/public_names.txt` writes the list again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from protocol.metrics.definitions import DEFINITIONS
from protocol.properties import BY_NAME
from protocol.schemas.registry_config import REGISTRY_PROPERTIES
from protocol.settings.property_kinds import Effect
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.options.table import OPTIONS
from tests.test_front_door import PUBLIC

_LIST = Path(__file__).with_name("public_names.txt")


def test_public_names_are_those_of_the_list() -> None:
    listed, present = set(_LIST.read_text().splitlines()), set(public_names())
    assert sorted(listed - present) == [], "removed names: keep them for a minor release, with a warning"
    assert sorted(present - listed) == [], f"new names: python -m {__name__} > tests/{_LIST.name}"


def public_names() -> Iterator[str]:
    for module in map(import_module, sorted(PUBLIC)):
        for name in sorted(getattr(module, "__all__", _own(module))):
            yield f"{module.__name__}.{name}"
            yield from _members(module.__name__, name, getattr(module, name))
    yield from sorted({f"option {option.name}" for option in OPTIONS})
    yield from sorted({f"option schema.registry.{row.name}" for row in REGISTRY_PROPERTIES})
    yield from sorted({f"property {row.name}" for row in BY_NAME.values() if row.effect is Effect.APPLIES})
    yield from sorted({f"metric {metric.group} {metric.name}" for metric in DEFINITIONS})
    yield from _commands(pykafka, "pykafka")


def _own(module: ModuleType) -> list[str]:
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return [name for name in own if not name.startswith("_")]


def _members(module: str, name: str, value: object) -> Iterator[str]:
    """Methods and attributes of a class, parameters of a function."""
    if inspect.isclass(value):
        members = {*vars(value), *getattr(value, "__annotations__", {}), *getattr(value, "__dataclass_fields__", {})}
        yield from (f"{module}.{name}.{member}" for member in sorted(members) if not member.startswith("_"))
    elif inspect.isfunction(value):
        yield from (f"{module}.{name}({parameter})" for parameter in inspect.signature(value).parameters)


def _commands(command: click.Command, name: str) -> Iterator[str]:
    yield from (f"{name} {option}" for parameter in command.params for option in sorted(parameter.opts))
    if isinstance(command, click.Group):
        for child in command.list_commands(click.Context(command)):
            subcommand = command.get_command(click.Context(command), child)
            assert subcommand is not None
            yield f"{name} {child}"
            yield from _commands(subcommand, f"{name} {child}")


if __name__ == "__main__":
    print("\n".join(public_names()))
