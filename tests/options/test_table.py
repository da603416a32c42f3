"""An option has a single definition: its entry in the table is the field that holds its value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import ModuleType

import pytest

from protocol.errors import ConfigurationError
from protocol.settings.property_kinds import Effect, one_of
from spark_kafka_source.options import markdown, parsing
from spark_kafka_source.options.table import OPTIONS, READ, Option, SinkOptions, SourceOptions, _read, entries

LEAST = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"}
# Set by Kafka's properties and by the kind of query.
NOT_OPTIONS = {"client", "consumer", "producer", "streaming", "auto_offset_reset"}
# Set by `schema.registry.*`, and by the registry.
NOT_OPTIONS |= {"registry", "reader_version", "schemas", "type_schema", "auto_register_schemas", "normalize_schemas"}
# The parsed `filter`.
NOT_OPTIONS |= {"condition", "condition_schemas"}


@pytest.mark.parametrize("options", [SourceOptions, SinkOptions])
def test_option_fields_have_entries(options: type) -> None:
    fields = {field.name for field in dataclasses.fields(options)}
    assert fields - NOT_OPTIONS == {row.field for row in entries(options)}


def test_applied_entries_have_fields() -> None:
    applying = [row for row in OPTIONS if row.effect is Effect.APPLIES]
    assert applying == [*entries(SourceOptions), *entries(SinkOptions)]
    for use in (READ, ~READ):
        names = [row.name.lower() for row in OPTIONS if row.use & use]
        assert len(names) == len(set(names))


@dataclass(frozen=True, kw_only=True)
class More(SourceOptions):
    colour: str = _read("theColour", one_of("red", "blue"), "how it looks", default="red")


def test_new_option_needs_only_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: tuple[Option, ...] = entries(More, SinkOptions)
    everywhere: tuple[ModuleType, ...] = (parsing, markdown)
    for module in everywhere:
        monkeypatch.setattr(module, "OPTIONS", rows)
    monkeypatch.setattr(parsing, "SourceOptions", More)

    def colour(**arguments: str) -> str:
        parsed = parsing.parse_source_options({**LEAST, **arguments}, streaming=True)
        assert isinstance(parsed, More)
        return parsed.colour

    assert (colour(), colour(THECOLOUR="Blue")) == ("red", "blue")
    with pytest.raises(ConfigurationError, match="theColour is 'green'; allowed: red, blue"):
        colour(theColour="green")
    with pytest.raises(ConfigurationError, match="did you mean theColour"):
        colour(theColor="red")
    assert "| `theColour` | how it looks | red, blue | red | streaming, batch |" in markdown.markdown()
