"""How Protobuf is read: the options of Spark's `from_protobuf`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProtobufSettings:
    """Which message of a Protobuf schema is read, and the options of Spark's `from_protobuf`.

    `message`: the name of the message, with or without the package; None: the first one of the file.
    `recursive_fields_max_depth`: how often a message may contain itself: 1 drops the recursive field; -1 refuses the
    schema.
    `emit_default_values`: True if absent fields without presence are zero instead of null.
    `upcast_unsigned_ints`: True if uint32 becomes int64, and uint64 decimal(20, 0).
    `unwrap_wrappers`: True if `Int64Value` and its like become their values.
    `retain_empty_messages`: True if messages without fields are kept, with a field that is always null.
    """

    message: str | None = None
    recursive_fields_max_depth: int = -1
    emit_default_values: bool = False
    enums_as_ints: bool = False
    upcast_unsigned_ints: bool = False
    unwrap_wrappers: bool = False
    retain_empty_messages: bool = False


DEFAULT_SETTINGS = ProtobufSettings()
