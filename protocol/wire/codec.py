"""Compile a `Struct` and a version into two functions: one encodes a dict, one decodes it.

The functions are closures, built on first use and cached. Adjacent fields of fixed size are packed and unpacked in one
step. Independent of APIs, headers and frame sizes. Called by `wire.frame`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import groupby
from typing import Any

from protocol.errors import Corrupt, Truncated, UsageError
from protocol.wire.primitives import Reader, Writer
from protocol.wire.schema import Array, Field, Struct, Type

Value = dict[str, Any]
Encode = Callable[[Writer, Any], None]
Decode = Callable[[Reader], Any]
_DecodeStep = Callable[[Reader, Value], None]
_EncodeStep = Callable[[Writer, Mapping[str, Any]], None]

_CODES: dict[Type, str] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
}
_SIZES = {name: struct.calcsize(">" + code) for name, code in _CODES.items()}


def require_end(reader: Reader) -> None:
    """Raise `Corrupt` if bytes remain."""
    if reader.left:
        raise Corrupt(f"{reader.left} bytes too many after byte {reader.position}")


@cache
def decoder(schema: Struct, version: int, flexible: bool) -> Decode:
    """Return a function that reads one struct from a `Reader` and returns a dict with every field of the schema.

    Fields absent in this version have their default.

    The returned function raises `Truncated` or `Corrupt` for invalid bytes.
    """
    return _struct_decoder(schema, version, flexible)


@cache
def encoder(schema: Struct, version: int, flexible: bool) -> Encode:
    """Return a function that writes a mapping to a `Writer`; missing keys mean the defaults.

    The returned function raises `UsageError`: a key is unknown; a value has the wrong type or range; a value
    is None and this version has no null; or a field is absent in this version, not ignorable and not its default.
    """
    return _struct_encoder(schema, version, flexible, "")


# Decoding


def _struct_decoder(schema: Struct, version: int, flexible: bool) -> Decode:
    present = [field for field in schema.fields if field.present(version)]
    plain = [field for field in present if not field.tagged(version)]
    tagged = {field.tag: _decode_step([field], version, True) for field in present if field.tagged(version)}
    template = {field.name: field.default_value() for field in schema.fields}
    mutable = [(f.name, _fresh_default(f)) for f in schema.fields if f not in plain and _is_mutable(template[f.name])]
    steps = [_decode_step(run, version, flexible) for run in _runs(plain)]

    def decode_struct(reader: Reader) -> Value:
        value = template.copy()
        for name, fresh in mutable:
            value[name] = fresh()
        for step in steps:
            step(reader, value)
        if flexible:
            for _ in range(reader.uvarint()):
                _decode_tagged(reader, value, tagged)
        return value

    return decode_struct


def _decode_tagged(reader: Reader, value: Value, fields_by_tag: Mapping[int | None, _DecodeStep]) -> None:
    tag, size_bytes = reader.uvarint(), reader.uvarint()
    content = Reader(reader.take(size_bytes))
    step = fields_by_tag.get(tag)
    if step is None:
        return
    try:
        step(content, value)
    except Truncated as error:  # the frame has more bytes, but this field's size is less than its content
        raise Corrupt(f"tagged field {tag} does not fit in the {size_bytes} bytes it announces: {error}") from error
    require_end(content)


def _is_mutable(value: Any) -> bool:
    return isinstance(value, (list, dict))


def _fresh_default(field: Field) -> Callable[[], Any]:
    """Return a function that makes a new list or dict with the field's default, for each struct without the field."""
    default = field.default_value()
    nested = any(map(_is_mutable, default.values() if isinstance(default, dict) else default))
    return field.default_value if nested else default.copy


def _runs(fields: list[Field]) -> Iterator[list[Field]]:
    """Group adjacent fields of fixed size; yield every other field alone."""
    for fixed, group in groupby(fields, key=lambda field: field.type in _CODES):
        if fixed:
            yield list(group)
        else:
            yield from ([field] for field in group)


def _decode_step(run: list[Field], version: int, flexible: bool) -> _DecodeStep:
    if run[0].type in _CODES:
        return _decode_fixed(run)
    return _decode_one(run[0].name, _type_decoder(run[0].type, version, flexible, run[0].nullable(version)))


def _decode_one(name: str, read: Decode) -> _DecodeStep:
    def step(reader: Reader, value: Value) -> None:
        value[name] = read(reader)

    return step


def _decode_fixed(run: list[Field]) -> _DecodeStep:
    layout = _layout(run)
    names, size_bytes, unpack_from = [field.name for field in run], layout.size, layout.unpack_from

    def step(reader: Reader, value: Value) -> None:
        value.update(zip(names, unpack_from(reader.buffer, reader.advance(size_bytes)), strict=True))

    return step


def _layout(run: list[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(_CODES[field.type] for field in run))


def _type_decoder(kind: Type, version: int, flexible: bool, nullable: bool) -> Decode:
    if isinstance(kind, Array):
        return _array_decoder(kind.of, version, flexible, nullable)
    if isinstance(kind, Struct):
        read = _struct_decoder(kind, version, flexible)
        return _nullable_struct_decoder(read) if nullable else read
    if kind == "string":
        return partial(Reader.compact_string if flexible else Reader.string, nullable=nullable)
    if kind in ("bytes", "records"):
        return partial(Reader.compact_data if flexible else Reader.data, nullable=nullable)
    if kind == "uuid":
        return Reader.uuid
    raise UsageError(f"{kind} is read with its neighbours or as an array")  # a bug in a schema or in this file


def _nullable_struct_decoder(read: Decode) -> Decode:
    def read_nullable(reader: Reader) -> Value | None:
        mark = reader.int8()
        if mark not in (-1, 1):
            raise Corrupt(f"a nullable struct starts with {mark} before byte {reader.position}, not with 1 or -1")
        return None if mark < 0 else read(reader)

    return read_nullable


def _array_decoder(of: Type, version: int, flexible: bool, nullable: bool) -> Decode:
    smallest_bytes = max(1, _smallest_bytes(of, version, flexible))
    count_of = Reader.compact_array_length if flexible else Reader.array_length
    if of in _CODES:
        code = _CODES[of]

        def read_numbers(reader: Reader) -> list[Any] | None:
            count = count_of(reader, nullable, smallest_bytes)
            if not count:
                return None if count is None else []
            return reader.numbers(code, smallest_bytes, count)

        return read_numbers

    read = _type_decoder(of, version, flexible, False)

    def read_array(reader: Reader) -> list[Any] | None:
        count = count_of(reader, nullable, smallest_bytes)
        if count is None:
            return None
        reader.count_elements(count)
        return [read(reader) for _ in range(count)]

    return read_array


def _smallest_bytes(kind: Type, version: int, flexible: bool) -> int:
    """Return the minimum size of a value in bytes, to reject an impossible count before reading elements."""
    if isinstance(kind, Struct):
        fields = [field for field in kind.fields if field.present(version) and not field.tagged(version)]
        return sum(
            1
            if field.nullable(version) and isinstance(field.type, Struct)
            else _smallest_bytes(field.type, version, flexible)
            for field in fields
        ) + int(flexible)
    if isinstance(kind, Array) or kind in ("bytes", "records"):
        return 1 if flexible else 4
    if kind == "string":
        return 1 if flexible else 2
    return 16 if kind == "uuid" else _SIZES[kind]


# Encoding


def _struct_encoder(schema: Struct, version: int, flexible: bool, path: str) -> Encode:
    names = frozenset(field.name for field in schema.fields)
    present = [field for field in schema.fields if field.present(version)]
    absent = {field.name: field for field in schema.fields if field not in present and not field.ignorable}
    plain = [field for field in present if not field.tagged(version)]
    tagged = sorted((field for field in present if field.tagged(version)), key=lambda field: field.tag or 0)
    steps = [_encode_step(run, version, flexible, path) for run in _runs(plain)]
    tagged_steps = [(field, _encode_step([field], version, True, path)) for field in tagged]

    def encode_struct(writer: Writer, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise UsageError(f"{path or 'the message'} must be a dict, not {type(value).__name__}")
        if not value.keys() <= names:
            unknown = sorted(map(str, value.keys() - names))
            raise UsageError(f"unknown fields {unknown} in {path or 'the message'}; it has {sorted(names)}")
        for name in absent.keys() & value.keys():
            if not absent[name].is_default(value[name]):
                raise UsageError(f"version {version} has no field {_join(path, name)}")
        for step in steps:
            step(writer, value)
        if flexible:
            _encode_tagged(writer, value, tagged_steps)

    return encode_struct


def _encode_tagged(writer: Writer, value: Mapping[str, Any], steps: list[tuple[Field, _EncodeStep]]) -> None:
    sent = [(f, step) for f, step in steps if f.name in value and not f.is_default(value[f.name])]
    writer.uvarint(len(sent))
    for field, step in sent:
        content = Writer()
        step(content, value)
        writer.uvarint(field.tag or 0)
        writer.uvarint(content.size_bytes)
        writer.append(content)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _encode_step(run: list[Field], version: int, flexible: bool, path: str) -> _EncodeStep:
    if run[0].type in _CODES:
        return _encode_fixed(run, path)
    return _encode_one(run[0], version, flexible, path)


def _encode_fixed(run: list[Field], path: str) -> _EncodeStep:
    pack = _layout(run).pack
    defaults = [(field.name, field.default_value()) for field in run]

    def step(writer: Writer, value: Mapping[str, Any]) -> None:
        numbers = [value.get(name, default) for name, default in defaults]
        try:
            writer.raw(pack(*numbers))
        except struct.error:
            for field, number in zip(run, numbers, strict=True):
                _check_number(field, number, _join(path, field.name))
            raise

    return step


def _check_number(field: Field, number: Any, path: str) -> None:
    try:
        struct.pack(">" + _CODES[field.type], number)
    except struct.error as error:
        raise UsageError(f"{path}={number!r} cannot be sent as {field.type}: {error}") from error


def _encode_one(field: Field, version: int, flexible: bool, path: str) -> _EncodeStep:
    name, default, place = field.name, field.default_value(), _join(path, field.name)
    write = _type_encoder(field.type, version, flexible, field.nullable(version), place)

    def step(writer: Writer, value: Mapping[str, Any]) -> None:
        write(writer, value.get(name, default))

    return step


def _type_encoder(kind: Type, version: int, flexible: bool, nullable: bool, path: str) -> Encode:
    write: Encode
    if isinstance(kind, Array):
        write = _array_encoder(kind.of, version, flexible, path)
    elif isinstance(kind, Struct):
        write = _struct_encoder(kind, version, flexible, path)
        if nullable:
            write = _nullable_struct_encoder(write)
    else:
        write = _scalar_encoder(kind, flexible, path)
    return write if nullable else _not_null(write, version, path)


def _not_null(write: Encode, version: int, path: str) -> Encode:
    def checked(writer: Writer, value: Any) -> None:
        if value is None:
            raise UsageError(f"{path} cannot be None in version {version}")
        write(writer, value)

    return checked


def _nullable_struct_encoder(write: Encode) -> Encode:
    def write_nullable(writer: Writer, value: Any) -> None:
        writer.int8(-1 if value is None else 1)
        if value is not None:
            write(writer, value)

    return write_nullable


def _scalar_encoder(kind: str, flexible: bool, path: str) -> Encode:
    put = _put(kind, flexible)

    def write(writer: Writer, value: Any) -> None:
        try:
            put(writer, value)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path} cannot be sent as {kind}: {error}") from error

    return write


def _put(kind: str, flexible: bool) -> Encode:
    if kind == "string":
        return Writer.compact_string if flexible else Writer.string
    if kind in ("bytes", "records"):
        return Writer.compact_data if flexible else Writer.data
    return Writer.uuid


def _array_encoder(of: Type, version: int, flexible: bool, path: str) -> Encode:
    put_count = Writer.compact_array_length if flexible else Writer.array_length
    write_elements = _elements_encoder(of, version, flexible, path)

    def write_array(writer: Writer, value: Any) -> None:
        if value is None:
            put_count(writer, None)
            return
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__"):
            raise UsageError(f"{path} must be a list, not {type(value).__name__}")
        put_count(writer, len(value))
        write_elements(writer, value)

    return write_array


def _elements_encoder(of: Type, version: int, flexible: bool, path: str) -> Encode:
    if of in _CODES:
        code = _CODES[of]

        def write_numbers(writer: Writer, value: Any) -> None:
            try:
                writer.raw(struct.pack(f">{len(value)}{code}", *value))
            except struct.error as error:
                raise UsageError(f"{path} cannot be sent as an array of {of}: {error}") from error

        return write_numbers

    write = _type_encoder(of, version, flexible, False, path)

    def write_each(writer: Writer, value: Any) -> None:
        for element in value:
            write(writer, element)

    return write_each
