"""Differences between two versions of a schema that Confluent's registry refuses, for `FakeSchemaRegistry`.

Each function returns why values of the schema `old` cannot be read with `new`; nothing if they can. For FORWARD the
arguments are exchanged.

Source: Confluent's documentation, "Schema Evolution and Compatibility"; its rules for Protobuf and JSON Schema are
stricter than what readers need.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from protocol.errors import ConfigurationError
from protocol.schemas.avro_resolution import AvroDecoder
from protocol.schemas.avro_schema import parse_avro
from protocol.schemas.protobuf_schema import FieldType, MessageType, ProtobufSchema, wire_compatible
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
        _parse_json(*schema)


def differences(kind: str, old: Texts, new: Texts) -> list[str]:
    """Return the incompatible differences of two schemas."""
    try:
        if kind == "AVRO":
            AvroDecoder(parse_avro(*old), parse_avro(*new))
            return []
        if kind == "PROTOBUF":
            return list(_of_files(parse_protobuf(*old), parse_protobuf(*new)))
        return list(_of_json(_parse_json(*old), _parse_json(*new), "#", frozenset()))
    except ConfigurationError as error:
        return [str(error)]


# -- Protobuf ---------------------------------------------------------------------------------


def _of_files(old: ProtobufSchema, new: ProtobufSchema) -> Iterator[str]:
    if old.main.package != new.main.package:
        yield f"the package changes from {old.main.package!r} to {new.main.package!r}"
        return
    kept = {each.name: each for each in new.own_messages()}
    for message in old.own_messages():
        if message.name not in kept:
            yield f"the message {message.name} is removed"
        else:
            yield from _of_messages(message, kept[message.name], set())


def _of_messages(old: MessageType, new: MessageType, seen: set[str]) -> Iterator[str]:
    if old.name in seen:
        return
    seen.add(old.name)
    before, after = ({each.number: each for each in message.fields} for message in (old, new))
    for number, field in before.items():
        path = f"{old.name}.{field.name}"
        if number in after:
            yield from _of_fields(field, after[number], path, seen)
        elif field.required:
            yield f"the required field {path} is removed"
        elif field.oneof is not None and any(before[each].oneof == field.oneof for each in before if each in after):
            yield f"the field {path} is removed from its oneof"
    for number, field in after.items():
        if number not in before and field.required:
            yield f"the required field {new.name}.{field.name} is added"
    # Fields of a oneof exclude each other: those that did not before are not allowed in it.
    for oneof in {each.oneof for each in after.values()} - {None}:
        known = [before[number] for number, each in after.items() if each.oneof == oneof and number in before]
        if len({each.number if each.oneof is None else -1 - each.oneof for each in known}) > 1:
            yield f"the fields {', '.join(each.name for each in known)} of {old.name} are moved to one oneof"


def _label(field: FieldType) -> str | None:
    """Return the label of a field that is no message; None: it has none."""
    if field.oneof is not None:
        return None
    return "repeated" if field.repeated else "required" if field.required else "optional" if field.presence else None


def _of_fields(old: FieldType, new: FieldType, path: str, seen: set[str]) -> Iterator[str]:
    if old.message is None or new.message is None:
        if not wire_compatible(old.kind, new.kind):
            yield f"the field {path} changes from {old.kind} to {new.kind}"
        elif old.kind not in ("string", "bytes") and len({_label(old), _label(new)} - {None}) > 1:
            yield f"the field {path} changes from {_label(old)} to {_label(new)}"
    elif old.message.is_map_entry and new.message.is_map_entry:
        for one, other in zip(old.message.fields, new.message.fields, strict=True):
            yield from _of_fields(one, other, f"{path}.{one.name}", seen)
    elif old.message.is_map_entry != new.message.is_map_entry or old.message.name != new.message.name:
        yield f"the field {path} changes from {old.message.name} to {new.message.name}"
    else:
        yield from _of_messages(old.message, new.message, seen)


# -- JSON Schema ------------------------------------------------------------------------------

_SUMS = ("oneOf", "anyOf")
_MAX_REFERENCES = 100
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
# Words that only values of one type have.
_WORDS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems"),
}
_NOTHING: dict[str, Any] = {"not": {}}


class _Node:
    """A schema in a document.

    Attributes
    ----------
    given : dict
        Its words, behind `$ref`; none if it takes all values.
    kinds : list of str
        Its types; none: any.
    """

    def __init__(self, given: Any, document: Any, documents: Mapping[str, Any]) -> None:
        for _ in range(_MAX_REFERENCES):
            if not isinstance(given, dict) or not isinstance(given.get("$ref"), str):
                break
            name, _, pointer = given["$ref"].partition("#")
            given = document = documents.get(name, document) if name else document
            for word in pointer.split("/")[1:]:
                given = given.get(word.replace("~1", "/").replace("~0", "~"), True) if isinstance(given, dict) else True
        self._document, self._documents = document, documents
        self.given: dict[str, Any] = given if isinstance(given, dict) else _NOTHING if given is False else {}
        kinds = self.given.get("type")
        if kinds is None:
            kinds = [kind for kind, words in _WORDS.items() if any(word in self.given for word in words)]
        self.kinds = [kinds] if isinstance(kinds, str) else list(kinds)

    def below(self, given: Any) -> _Node:
        """Return a schema inside."""
        return _Node(given, self._document, self._documents)

    def named(self, word: str) -> dict[str, _Node]:
        """Return the schemas of `properties` or `patternProperties`."""
        found = self.given.get(word)
        return {name: self.below(each) for name, each in found.items()} if isinstance(found, dict) else {}

    def branches(self) -> list[_Node]:
        """Return the schemas of which one must be valid: of `oneOf` or `anyOf`, or one for each type."""
        for name in _SUMS:
            if isinstance(self.given.get(name), list):
                return [self.below(each) for each in self.given[name]]
        return [self] if len(self.kinds) < 2 else [self.below({**self.given, "type": kind}) for kind in self.kinds]

    def others(self, name: str) -> _Node | bool:
        """Return the schema of a property that `properties` does not have; or if any such property is valid."""
        for pattern, each in self.named("patternProperties").items():
            if re.search(pattern, name):
                return each
        found = self.additional("patternProperties" not in self.given)
        return self.below(found) if isinstance(found, dict) else bool(found)

    def additional(self, default: bool = True) -> Any:
        """Return the schema of properties that no other word names."""
        return self.given.get("additionalProperties", self.given.get("unevaluatedProperties", default))

    def values(self) -> list[Any] | None:
        """Return the only values that are valid; None: any."""
        return [self.given["const"]] if "const" in self.given else self.given.get("enum")


def _parse_json(text: str, references: Mapping[str, str]) -> _Node:
    try:
        document, *others = (json.loads(each) for each in (text, *references.values()))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict | bool):
        raise ConfigurationError("it is neither an object nor a boolean")
    return _Node(document, document, dict(zip(references, others, strict=True)))


def _of_json(old: _Node, new: _Node, path: str, seen: frozenset[tuple[int, int]]) -> Iterator[str]:
    key = id(old.given), id(new.given)
    if key in seen or old.given is _NOTHING or "allOf" in {**old.given, **new.given}:
        return
    seen |= {key}
    befores, afters = old.branches(), new.branches()
    if len(befores) > 1 or len(afters) > 1:
        fits = all(any(not list(_of_json(each, other, path, seen)) for other in afters) for each in befores)
        if not fits or (len(befores) > len(afters) and afters[0].given):
            yield f"{path}: a type of a union is removed or changed"
        return
    before, after = ("/".join(branches[0].kinds) for branches in (befores, afters))
    if after not in ("", before) and (before, after) != ("integer", "number"):
        yield f"{path}: the type changes from {before or 'any'} to {after}"
        return
    values = afters[0].values()
    if values is not None and any(each not in values for each in befores[0].values() or [object()]):
        yield f"{path}: values of an enum are removed"
    for word in (*_UPPER, *_LOWER, "pattern"):
        limits = [each.given.get(word) for each in (befores[0], afters[0])]
        if limits[1] is not None and limits[0] != limits[1] and not _is_wider(word, *limits):
            yield f"{path}/{word}: is stricter"
    if after == "object":
        yield from _of_objects(befores[0], afters[0], path, seen)
    elif after == "array":
        one, other = (each.below(each.given.get("items", True)) for each in (befores[0], afters[0]))
        yield from _of_json(one, other, f"{path}/items", seen)


def _is_wider(word: str, old: Any, new: Any) -> bool:
    if word == "pattern" or None in (old, new):
        return False
    return bool(new > old if word in _UPPER else new < old)


def _of_objects(old: _Node, new: _Node, path: str, seen: frozenset[tuple[int, int]]) -> Iterator[str]:
    before, after = old.named("properties"), new.named("properties")
    required = {name for name in new.given.get("required", ()) if name in after and "default" not in after[name].given}
    required -= set(old.given.get("required", ()))
    for name in {**before, **after}:
        below = f"{path}/properties/{name}"
        if name not in after:
            others = new.others(name)
            if isinstance(others, _Node):
                yield from _of_json(before[name], others, below, seen)
            elif not others and before[name].given is not _NOTHING:
                yield f"{below}: removed, and the new version allows no other properties"
        elif name not in before:
            others = old.others(name)
            if isinstance(others, _Node):
                yield from _of_json(others, after[name], below, seen)
            elif others and after[name].given:
                yield f"{below}: added, and the old version allows any other properties"
            if name in required and others is not True:
                yield f"{below}: added as required, without a default"
        else:
            yield from _of_json(before[name], after[name], below, seen)
            if name in required:
                yield f"{below}: becomes required, without a default"
    before_others, after_others = old.additional(), new.additional()
    if before_others is not False and after_others is False:
        yield f"{path}/additionalProperties: removed"
    elif before_others is not False and after_others is not True:
        yield from _of_json(old.below(before_others), new.below(after_others), f"{path}/additionalProperties", seen)
