"""Read descriptors of Protobuf files, as `protoc --descriptor_set_out` writes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from protocol.errors import ConfigurationError
from protocol.schemas.decoding import InvalidRows
from protocol.schemas.proto_known_types import DESCRIPTOR
from protocol.schemas.proto_text import EnumNode, FieldNode, FileNode, MessageNode, parse_proto, unescaped
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

    Raises
    ------
    ConfigurationError
        The bytes are not descriptors.
    """
    data = np.frombuffer(raw, np.uint8)
    at, ends = np.zeros(1, np.int64), np.array([len(raw)], np.int64)
    try:
        is_set = set(scan(data, at, ends)) == {_FILE_TAG}
        column = _reader("FileDescriptorSet" if is_set else "FileDescriptorProto").read_messages(data, at, ends)
    except InvalidRows as error:
        raise ConfigurationError(f"the Protobuf schema is not a descriptor: {error.reason}") from None
    (found,) = column.to_pylist()
    return [_file(each) for each in (found["file"] if is_set else [found])]


@lru_cache(maxsize=2)
def _reader(name: str) -> MessageReader:
    messages = resolve_files([parse_proto(DESCRIPTOR)])
    return message_reader(messages[f"google.protobuf.{name}"], ProtobufSettings(recursive_fields_max_depth=10))


def _file(found: dict[str, Any]) -> FileNode:
    return FileNode(
        found["syntax"] or "proto2",
        found["package"] or "",
        found["dependency"],
        [_message(each) for each in found["message_type"]],
        [_enum(each) for each in found["enum_type"]],
        _features(found),
    )


def _features(found: dict[str, Any]) -> dict[str, str]:
    features = (found[_OPTIONS] or {}).get("features") or {}
    return {name: value for name, value in features.items() if value is not None}


def _message(found: dict[str, Any]) -> MessageNode:
    return MessageNode(
        found["name"] or "",
        [_field(each) for each in found["field"]],
        # Below the depth of the reader there are none.
        [_message(each) for each in found.get("nested_type") or ()],
        [_enum(each) for each in found["enum_type"]],
        bool((found[_OPTIONS] or {}).get("map_entry")),
    )


def _field(found: dict[str, Any]) -> FieldNode:
    number, label = found["type"] or 0, found["label"] or 0
    if not (0 <= number < len(_TYPES) and 0 <= label < len(_LABELS)):
        raise ConfigurationError(f"the field {found['name']} has the unknown type {number}")
    kind = _TYPES[number]
    # In proto3 only fields with the word "optional" are so; the compiler creates a separate oneof for each of them.
    optional = _LABELS[label] if label != 1 or found["proto3_optional"] else ""
    default = found["default_value"]
    return FieldNode(
        found["name"] or "",
        found["number"] or 0,
        found["type_name"] if kind in ("message", "enum", "group", "") and found["type_name"] else kind,
        optional,
        None if found["proto3_optional"] else found["oneof_index"],
        unescaped(default) if default is not None and kind == "bytes" else default,
        (found[_OPTIONS] or {}).get("packed"),
        kind == "group",
        _features(found),
    )


def _enum(found: dict[str, Any]) -> EnumNode:
    values = [(each["name"] or "", each["number"] or 0) for each in found["value"]]
    return EnumNode(found["name"] or "", values, _features(found))
