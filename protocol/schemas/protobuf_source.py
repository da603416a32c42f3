"""Parse Protobuf schemas: the text of a `.proto` file, or descriptors in base64.

Descriptors are a `FileDescriptorSet`, or a `FileDescriptorProto` as Confluent's Python serialiser registers it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from protocol.schemas.proto_known_types import KNOWN_FILES
from protocol.schemas.proto_text import FileNode, parse_proto
from protocol.schemas.protobuf_descriptors import parse_descriptors
from protocol.schemas.protobuf_schema import ProtobufSchema, resolve_files


def parse_protobuf(text: str, references: Mapping[str, str] | None = None) -> ProtobufSchema:
    """Parse a schema.

    `references`: the files that it imports, by name.
    Raises `ConfigurationError`: it is invalid, or a type that it uses is missing.
    """
    texts = dict(references or {})
    files = _files(text)
    *nodes, main = files
    # A file of the schema hides one of the same name among the well-known ones.
    names = [name for file in files for name in file.imports]
    parsed = set()
    while names:
        name = names.pop()
        if name in parsed:
            continue
        parsed.add(name)
        source = texts.get(name, KNOWN_FILES.get(name))
        if source is not None:
            imported = _files(source)[-1]
            files.append(imported)
            names += imported.imports
    return ProtobufSchema(main, resolve_files(files), nodes)


def _files(text: str) -> list[FileNode]:
    stripped = text.strip()
    if stripped and not set(stripped) & set(";{ "):
        try:
            raw = base64.b64decode("".join(stripped.split()), validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        if raw:
            return parse_descriptors(raw)
    return [parse_proto(text)]
