"""Versions of a schema in `FakeSchemaRegistry`: whether they are valid, and can be read by this project's readers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from protocol.errors import ConfigurationError
from protocol.schemas.avro_resolution import AvroDecoder
from protocol.schemas.avro_schema import parse_avro
from protocol.schemas.protobuf_language import why_incompatible
from protocol.schemas.protobuf_source import parse_protobuf

# A schema, and those that it refers to by name.
Texts = tuple[str, Mapping[str, str]]
KINDS = ("AVRO", "PROTOBUF", "JSON")


def check_valid(kind: str, schema: Texts) -> None:
    """Raise `ConfigurationError` if a schema is not one of its kind."""
    if kind == "AVRO":
        parse_avro(*schema)
    elif kind == "PROTOBUF":
        parse_protobuf(*schema)
    else:
        try:
            document = json.loads(schema[0])
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"it is not JSON: {error}") from None
        if not isinstance(document, dict | bool):
            raise ConfigurationError("it is neither an object nor a boolean")


def differences(kind: str, written: Texts, read: Texts) -> list[str]:
    """Return why values of the schema `written` cannot be read with `read`; nothing for JSON Schema."""
    try:
        if kind == "AVRO":
            AvroDecoder(parse_avro(*written), parse_avro(*read))
        if kind != "PROTOBUF":
            return []
        readers = {message.name: message for message in parse_protobuf(*read).own_messages()}
        reasons = [
            why_incompatible(message, readers[message.name])
            if message.name in readers
            else f"{message.name} is removed"
            for message in parse_protobuf(*written).own_messages()
        ]
        return list(filter(None, reasons))
    except ConfigurationError as error:
        return [str(error)]
    except RecursionError:
        return ["they are nested too deeply to be compared"]
