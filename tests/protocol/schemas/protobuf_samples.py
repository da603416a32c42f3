"""Random Protobuf schemas and messages, and the columns that Spark's `from_protobuf` makes of them."""

from __future__ import annotations

import base64
import itertools
import random
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = [number for number in range(1, 19) if number not in (Field.TYPE_GROUP, Field.TYPE_MESSAGE)]
_KEYS = (Field.TYPE_STRING, Field.TYPE_INT32, Field.TYPE_SINT64, Field.TYPE_BOOL, Field.TYPE_FIXED32)
_ENUM = ((0, "ZERO"), (1, "ONE"), (300, "MANY"), (-1, "MINUS"))
_UNKNOWN_ENUM = 77
_DEFAULTS = {Field.TYPE_BOOL: "true", Field.TYPE_STRING: "größer", Field.TYPE_BYTES: r"\001x\377",
             **dict.fromkeys((Field.TYPE_UINT32, Field.TYPE_FIXED64), "3000000000")}  # fmt: skip


class Samples:
    """Draws schemas, in proto2 with `groups`, and messages, in proto3 with `unknown_symbols` of enums."""

    def __init__(self, seed: int, groups: bool = True, unknown_symbols: bool = True) -> None:
        self.random = random.Random(seed)
        self.proto3 = self.random.random() < 0.6
        self._groups = groups
        self._symbols = [0, 1, 300, -1, *([_UNKNOWN_ENUM] if self.proto3 and unknown_symbols else [])]

    # -- schemas ------------------------------------------------------------------------------

    def file(self, fields: int = 6) -> Any:
        """Return the descriptor of a file with the message `t.Top`."""
        file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t")
        file.syntax = "proto3" if self.proto3 else "proto2"
        file.dependency.append("google/protobuf/timestamp.proto")
        enum = file.enum_type.add(name="E")
        for number, name in _ENUM:
            enum.value.add(name=name, number=number)
        self._message(file.message_type.add(), "Top", 2, ".t", fields)
        return file

    def _message(self, target: Any, name: str, depth: int, scope: str, most: int) -> None:
        r = self.random
        target.name = name
        full = f"{scope}.{name}"
        if r.random() < 0.3:
            target.oneof_decl.add(name="choice")
        for position in range(r.randrange(1, most + 1)):
            field = target.field.add(name=f"f{position}", number=r.randrange(1, 40) * 30 + position)
            field.label = r.choice((Field.LABEL_OPTIONAL, Field.LABEL_REPEATED))
            field.type = r.choice(SCALARS)
            if depth and r.random() < 0.35:
                self._nested(target, field, depth, full)
            if field.type == Field.TYPE_ENUM:
                field.type_name = ".t.E"
            if len(target.oneof_decl) and field.label == Field.LABEL_OPTIONAL:
                field.oneof_index = 0
            elif not self.proto3 and field.label == Field.LABEL_OPTIONAL and r.random() < 0.3:
                self._default(field)
        if len(target.oneof_decl) and not any(field.HasField("oneof_index") for field in target.field):
            del target.oneof_decl[:]

    def _nested(self, target: Any, field: Any, depth: int, full: str) -> None:
        r = self.random
        field.type = Field.TYPE_MESSAGE
        if r.random() < 0.2:
            field.type_name = ".google.protobuf.Timestamp"
            return
        nested = target.nested_type.add()
        if r.random() < 0.3:
            field.label = Field.LABEL_REPEATED
            nested.name = f"{field.name.upper()}Entry"
            nested.options.map_entry = True
            nested.field.add(name="key", number=1, label=1, type=r.choice(_KEYS))
            value = nested.field.add(name="value", number=2, label=1, type=r.choice(SCALARS))
            if value.type == Field.TYPE_ENUM:
                value.type_name = ".t.E"
            if r.random() < 0.3:
                value.type, value.type_name = Field.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        else:
            self._message(nested, f"M{field.name.upper()}", depth - 1, full, 6)
            if not self.proto3 and self._groups and r.random() < 0.3:
                field.type = Field.TYPE_GROUP
                field.name = nested.name.lower()
        field.type_name = f"{full}.{nested.name}"

    def _default(self, field: Any) -> None:
        if field.type in (Field.TYPE_MESSAGE, Field.TYPE_GROUP):
            return
        symbol = self.random.choice(["MANY", "MINUS"]) if field.type == Field.TYPE_ENUM else None
        field.default_value = symbol or _DEFAULTS.get(field.type, "7")

    # -- messages -----------------------------------------------------------------------------

    def scalar(self, field: Any) -> Any:
        """Return a value of a scalar field."""
        r, kind = self.random, field.type
        if kind in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
            return r.choice([0.0, -0.0, 1.5, -2.25, 1e30])
        if kind == Field.TYPE_BOOL:
            return r.random() < 0.5
        if kind == Field.TYPE_STRING:
            return r.choice(["", "a", "größer", "x" * 200])
        if kind == Field.TYPE_BYTES:
            return r.choice([b"", b"\x00\xff", b"y" * 130])
        if kind == Field.TYPE_ENUM:
            return r.choice(self._symbols)
        bits = 32 if kind in (5, 13, 7, 15, 17) else 64
        value = r.choice([0, 1, 127, 128, 2**31 - 1, 2 ** (bits - 1) - 1])
        if kind in (Field.TYPE_UINT32, Field.TYPE_UINT64, Field.TYPE_FIXED32, Field.TYPE_FIXED64):
            return r.choice([value, 2**bits - 1])
        return r.choice([value, -value, -(2 ** (bits - 1))])

    def fill(self, message: Any) -> None:
        """Set some fields of a message."""
        r = self.random
        for field in message.DESCRIPTOR.fields:
            if r.random() < 0.3:
                continue
            if is_map(field):
                key, value = field.message_type.fields
                target = getattr(message, field.name)
                for _ in range(r.randrange(4)):
                    if value.message_type is not None:
                        self.fill_time(target[self.scalar(key)])
                    else:
                        target[self.scalar(key)] = self.scalar(value)
            elif field.is_repeated:
                target = getattr(message, field.name)
                for _ in range(r.choice([0, 1, 3, 20])):
                    if field.message_type is not None:
                        self._fill_message(target.add())
                    else:
                        target.append(self.scalar(field))
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self._fill_message(getattr(message, field.name))
            else:
                setattr(message, field.name, self.scalar(field))

    def _fill_message(self, message: Any) -> None:
        if is_time(message.DESCRIPTOR):
            self.fill_time(message)
        else:
            self.fill(message)

    def fill_time(self, message: Any) -> None:
        """Set a `Timestamp`."""
        message.SetInParent()
        message.seconds = self.random.choice([0, 1_760_000_000, -5])
        message.nanos = self.random.choice([0, 1, 999_999_999, 123_456_000])

    def messages(self, kind: Any, count: int) -> list[bytes]:
        """Return encoded messages."""
        made = []
        for _ in range(count):
            message = kind()
            self.fill(message)
            made.append(message.SerializeToString())
        return made


def is_map(field: Any) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_time(message: Any) -> bool:
    """Return whether a message is a `Timestamp`."""
    return message.full_name == "google.protobuf.Timestamp"


def message_class(file: Any, name: str = "t.Top") -> Any:
    """Return the protobuf package's class of a message."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(time_file())
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def time_file() -> Any:
    """Return the descriptor of timestamp.proto."""
    file = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def text_of(*files: Any) -> str:
    """Return a schema as descriptors in base64."""
    if len(files) == 1:
        return base64.b64encode(files[0].SerializeToString()).decode()
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()


# -- the columns of Spark ---------------------------------------------------------------------


def as_column(message: Any) -> dict[str, Any]:
    """Return a message as a row of the column, maps as sorted pairs."""
    made: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if is_map(field):
            key, item = field.message_type.fields
            made[field.name] = sorted((_value(key, k), _value(item, v)) for k, v in value.items())
        elif field.is_repeated:
            made[field.name] = [_value(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            made[field.name] = _value(field, value) if field.has_default_value else None
        else:
            present = field.has_presence or value or str(value) == "-0.0"
            made[field.name] = _value(field, value) if present else None
    return made


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if is_time(field.message_type):
            # Towards zero, as Java.
            return value.seconds * 1_000_000 + int(value.nanos / 1000)
        return as_column(value)
    if field.type == Field.TYPE_ENUM:
        remembered = field.enum_type.values_by_number.get(value)
        return f"UNKNOWN_ENUM_VALUE_E_{value}" if remembered is None else remembered.name
    if field.type in (Field.TYPE_UINT32, Field.TYPE_FIXED32):
        return value - 2**32 if value >= 2**31 else value
    if field.type in (Field.TYPE_UINT64, Field.TYPE_FIXED64):
        return value - 2**64 if value >= 2**63 else value
    return value


def plain(column: Any) -> list[Any]:
    """Return a decoded column as `as_column` does."""
    import pyarrow as pa

    def rows(array: Any) -> list[Any]:
        kind = array.type
        if pa.types.is_struct(kind):
            fields = [rows(array.field(number)) for number in range(kind.num_fields)]
            present = array.is_valid().to_pylist()
            names = [field.name for field in kind]
            made = [dict(zip(names, cells, strict=True)) for cells in zip(*fields, strict=True)] or [{}] * len(array)
            return [row if remembered else None for row, remembered in zip(made, present, strict=True)]
        if pa.types.is_map(kind):
            pairs = list(zip(rows(array.keys), rows(array.items), strict=True))
            ends = array.offsets.to_pylist()
            return [sorted(dict(pairs[a:b]).items()) for a, b in itertools.pairwise(ends)]
        if pa.types.is_list(kind):
            values = rows(array.values)
            ends = array.offsets.to_pylist()
            return [values[a:b] for a, b in itertools.pairwise(ends)]
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            return list(array.cast(pa.int64()).to_pylist())
        return list(array.to_pylist())

    return rows(column)
