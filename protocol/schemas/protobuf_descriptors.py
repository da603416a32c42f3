"""Read descriptors of Protobuf files, as `protoc --descriptor_set_out` writes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from protocol.errors import ConfigurationError
from protocol.schemas.decoding import InvalidRows
from protocol.schemas.proto_known_types import DESCRIPTOR
from protocol.schemas.proto_text import SYNTAXES, EnumNode, FieldNode, FileNode, MessageNode, parse_proto, unescaped
from protocol.schemas.protobuf_columns import MessageReader, message_reader
from protocol.schemas.protobuf_scan import scan
from protocol.schemas.protobuf_schema import resolve_files
from protocol.schemas.protobuf_settings import ProtobufSettings

_TYPES = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_LABELS = ("", "optional", "required", "repeated")
_OPTIONS = "options"
_FILE_TAG = 1 << 3 | 2


def parse_descriptors(raw: bytes) -> list[FileNode]:
    """Parse a `FileDescriptorSet`, or a single `FileDescriptorProto`; the last file is the one that imports others.

    Raises `ConfigurationError`: the bytes are not descriptors.
    """
    data = np.frombuffer(raw, np.uint8)
    at, ends = np.zeros(1, np.int64), np.array([len(raw)], np.int64)
    try:
        is_set = set(scan(data, at, ends)) == {_FILE_TAG}
        column = _reader("FileDescriptorSet" if is_set else "FileDescriptorProto").read_messages(data, at, ends)
    except InvalidRows as error:
        raise ConfigurationError(f"the Protobuf schema is not a descriptor: {error.reason}") from None
    (row,) = column.to_pylist()
    return [_file(file) for file in (row["file"] if is_set else [row])]


@lru_cache(maxsize=2)
def _reader(name: str) -> MessageReader:
    messages = resolve_files([parse_proto(DESCRIPTOR)])
    return message_reader(messages[f"google.protobuf.{name}"], ProtobufSettings(recursive_fields_max_depth=10))


def _file(file: dict[str, Any]) -> FileNode:
    syntax = file["syntax"] or "proto2"
    if syntax not in SYNTAXES:
        raise ConfigurationError(f"the Protobuf schema has the unknown syntax {syntax!r}")
    return FileNode(
        syntax,
        file["package"] or "",
        file["dependency"],
        [_message(message) for message in file["message_type"]],
        [_enum(enum) for enum in file["enum_type"]],
        _features(file),
    )


def _features(resolved: dict[str, Any]) -> dict[str, str]:
    features = (resolved[_OPTIONS] or {}).get("features") or {}
    return {name: value for name, value in features.items() if value is not None}


def _message(message: dict[str, Any]) -> MessageNode:
    return MessageNode(
        message["name"] or "",
        [_field(field) for field in message["field"]],
        # Below the depth of the reader there are none.
        [_message(nested) for nested in message.get("nested_type") or ()],
        [_enum(enum) for enum in message["enum_type"]],
        bool((message[_OPTIONS] or {}).get("map_entry")),
    )


def _field(field: dict[str, Any]) -> FieldNode:
    number, label = field["type"] or 0, field["label"] or 0
    if not (0 <= number < len(_TYPES) and 0 <= label < len(_LABELS)):
        raise ConfigurationError(f"the field {field['name']} has the unknown type {number}")
    kind = _TYPES[number]
    # In proto3 only fields with the word "optional" are so; the compiler creates a separate oneof for each of them.
    optional = _LABELS[label] if label != 1 or field["proto3_optional"] else ""
    default = field["default_value"]
    return FieldNode(
        field["name"] or "",
        field["number"] or 0,
        field["type_name"] if kind in ("message", "enum", "group", "") and field["type_name"] else kind,
        optional,
        None if field["proto3_optional"] else field["oneof_index"],
        unescaped(default) if default is not None and kind == "bytes" else default,
        (field[_OPTIONS] or {}).get("packed"),
        kind == "group",
        _features(field),
    )


def _enum(enum: dict[str, Any]) -> EnumNode:
    values = [(value["name"] or "", value["number"] or 0) for value in enum["value"]]
    return EnumNode(enum["name"] or "", values, _features(enum))
