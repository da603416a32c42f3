"""Decode a column of keys or values into a column of its schema's type.

The reader's schema is fixed by the caller, on the driver. Records that were written with other schemas of the registry
are resolved to it; each of these schemas is fetched once per process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.condition import Lock
from protocol.base.listing import listed
from protocol.errors import ConfigurationError, DecodeFailed, RegistryFailed
from protocol.records.arrow_numpy import take_rows, text_column, to_arrow, to_numpy, valid
from protocol.records.varints import Bytes, Positions
from protocol.schemas.decoding import InvalidValue, ValueDecoder, WriterNames, fields_of_types, offsets_of, text_values
from protocol.schemas.formats import FORMATS, REGISTRY_SETTINGS, Format, language_of, registered_format
from protocol.schemas.glue import HEADER_BYTES, decompressed_values, header, parts, version_ids
from protocol.schemas.protobuf_settings import DEFAULT_SETTINGS, ProtobufSettings
from protocol.schemas.reader_schema import Part, ReaderSchema
from protocol.schemas.registry import RegisteredSchema, SchemaRegistry, is_unknown
from protocol.schemas.rules import refuse_rules

# Confluent's wire format: a zero byte and the schema's id, or a one and the schema's GUID, which only headers have.
_MAGIC_ID, _MAGIC_GUID = 0, 1
_ID_BYTES, _GUID_BYTES = 5, 17
_BYTES = {_MAGIC_ID: _ID_BYTES, _MAGIC_GUID: _GUID_BYTES}
# Decoders from which on none is kept for a header's message: the next batch makes it again.
_MAX_WITH_MESSAGE = 1_000
# Languages whose values do not show their types: with another schema than the writer's the bytes seem damaged.
_WITHOUT_TYPES = ("AVRO", "PROTOBUF")
_OTHER_SCHEMA = "the schema probably differs from the writer's"

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
# The writer's schema: an id or Glue's version id in a value, the value of a header, or None for the reader's own.
_Key = int | str | bytes | None


def as_reader_schema(format: Format, registry: SchemaRegistry, schema: RegisteredSchema) -> ReaderSchema:
    """Return a registered schema as reader's schema. Raises `RegistryFailed` and `ConfigurationError`."""
    spec = FORMATS[format]
    if schema.kind != spec.language:
        fitting = registered_format(schema.kind, spec.registry)
        raise ConfigurationError(
            f"the subject {schema.subject} has a schema of the type {schema.kind}, which {format} cannot read"
            f"{f'; use {fitting}' if fitting else ''}"
        )
    refuse_rules(schema.rules, ("READ", "UPGRADE"), f"version {schema.version} of the subject {schema.subject}")
    references = tuple((name, reference.text) for name, reference in registry.references(schema).items())
    return ReaderSchema(
        format, schema.text, references, subject=schema.subject, version=schema.version, schema_id=schema.schema_id
    )


def choose_schema(
    format: Format,
    registry: SchemaRegistry | None,
    subject: str,
    *,
    text: str | None = None,
    version: int | None = None,
    fields: tuple[str, ...] = (),
    protobuf: ProtobufSettings = DEFAULT_SETTINGS,
) -> ReaderSchema:
    """Return the reader's schema of a format: the given `text`, else a version of the subject (None: the latest).

    Raises `RegistryFailed`: the registry does not have the subject or its version, refuses, or does not respond.
    `ConfigurationError`: there is no schema, no registry, or the schema is invalid or has a type that no column can
    have.
    """
    spec = FORMATS[format]
    _require_registry(format, registry)
    if spec.language is not None and not spec.registered and text is None:
        raise ConfigurationError(f"the format {format} needs a schema")
    if text is not None or not spec.registered or registry is None:
        schema = ReaderSchema(format, text or "")
    else:
        schema = as_reader_schema(format, registry, registry.version(subject, version))
    schema = replace(schema, fields=fields, protobuf=protobuf)
    try:
        schema.type  # noqa: B018 - raises what no column can have
    except ConfigurationError as error:
        where = f"the subject {schema.subject}: " if schema.subject else ""
        raise type(error)(f"{where}{error}", **error.context) from None
    return schema


def choose_types(
    format: Format,
    registry: SchemaRegistry | None,
    versions: Mapping[str, int | None],
    *,
    messages: Sequence[str] = (),
    fields: tuple[str, ...] = (),
    protobuf: ProtobufSettings = DEFAULT_SETTINGS,
) -> ReaderSchema:
    """Return the reader's schema of several types of records, one of each subject (`with_types`).

    `versions`: the version of each subject; None: the latest.
    `messages`: the message of each Protobuf schema; empty: the first one.
    Raises as `choose_schema` and `with_types`.
    """
    schemas = [
        choose_schema(format, registry, subject, version=version, protobuf=replace(protobuf, message=message))
        for (subject, version), message in zip(versions.items(), messages or (None,) * len(versions), strict=True)
    ]
    return with_types(schemas, fields)


def with_types(schemas: Sequence[ReaderSchema], fields: tuple[str, ...] = ()) -> ReaderSchema:
    """Return the reader's schema of several types of records.

    Each has a field (`fields_of_types`).

    Raises `ConfigurationError`: a schema has no name, or two have the same.
    """
    format = schemas[0].format
    names = fields_of_types(format, {schema.record or schema.subject or "": schema.names for schema in schemas})
    schema = ReaderSchema(format, fields=fields, types=tuple(zip(names, schemas, strict=True)))
    schema.type  # noqa: B018 - raises if a field is not one of the types
    return schema


def with_union_types(union: ReaderSchema, fields: tuple[str, ...] = ()) -> ReaderSchema:
    """Return the reader's schema of the records of an Avro union, with a field for each as in `with_types`.

    Raises `UnknownName`: the schema is no union of records, or does not have one of the fields.
    """
    from protocol.schemas.avro_language import record_names

    types = with_types([replace(union, record=name) for name in record_names(union, union.subject)], fields).types
    return replace(union, types=types, fields=fields)


def _require_registry(format: Format, registry: SchemaRegistry | None) -> None:
    kind = FORMATS[format].registry
    if kind is not None and (registry is None or registry.config.kind != kind):
        raise ConfigurationError(f"the format {format} needs {REGISTRY_SETTINGS[kind]}")


def prefix_of(format: str, schema: RegisteredSchema) -> bytes:
    """Return the bytes with a schema's id before the values of a registered format."""
    if FORMATS[format].registry == "glue":
        assert schema.guid is not None
        return header(schema.guid)
    assert schema.schema_id is not None
    return bytes((_MAGIC_ID,)) + schema.schema_id.to_bytes(_ID_BYTES - 1, "big")


class ColumnDecoder:
    """Decodes columns of keys or values. Thread-safe.

    `registry`: for formats with the ids of schemas.
    `part` ({"key", "value"}): decides which header may have the schema's id or GUID.
    """

    def __init__(self, schema: ReaderSchema, registry: SchemaRegistry | None = None, part: Part = "value") -> None:
        _require_registry(schema.format, registry)
        self.schema = schema
        self.type = schema.type
        self._registry = registry
        self._part: Part = part
        self._header = f"__{part}_schema_id"
        self._decoders: dict[tuple[_Key, str], ValueDecoder | str] = {}
        self._writer_names: dict[_Key, WriterNames | str] = {}
        self._lock = Lock()

    def of_fields(self, fields: tuple[str, ...]) -> ColumnDecoder:
        """Return a decoder of these fields; without any, of all."""
        if fields == self.schema.fields:
            return self
        return ColumnDecoder(replace(self.schema, fields=fields), self._registry, self._part)

    def decode(self, column: pa.Array, headers: pa.Array | None = None) -> tuple[pa.Array, list[InvalidValue]]:
        """Decode a binary column.

        `headers` (pyarrow.ListArray, optional): the headers of the records, if they may have ids or GUIDs of schemas.
        Returns a column of `type`; null for null and for invalid values.
        Raises `RegistryFailed`: the registry did not return a schema. An id that it does not know makes a value invalid
        instead.
        """
        if self.schema.format == "binary":
            return column, []
        if self.schema.format == "string":
            return text_column(column), []
        pieces = _Pieces(self.type, len(column))
        for at, ends, data, rows in self._values(column, pieces):
            for key, start, of_key in self._by_schema(data, at, ends, rows, headers, pieces):
                if self.schema.types:
                    self._add_types(pieces, key, data, start, ends, of_key)
                elif key is None:
                    pieces.add(self._fixed, data, start, ends, of_key)
                else:
                    self._add(pieces, key, data, start, ends, of_key)
        invalid = pieces.invalid
        spec = FORMATS[self.schema.format]
        if not spec.registered and spec.language in _WITHOUT_TYPES:
            invalid = [replace(value, reason=f"{value.reason}; {_OTHER_SCHEMA}") for value in invalid]
        return pieces.column(), invalid

    def type_names(self, column: pa.Array, headers: pa.Array | None = None) -> tuple[pa.Array, list[InvalidValue]]:
        """Return the type of each record, without decoding it: the field that has it, or the name of another type.

        The parameters and errors are those of `decode`. Types are null for null, for records whose schema has no name,
        and for invalid values, whose type cannot be determined; `decode` returns them as invalid, too.
        """
        pieces = _Pieces(self.type, len(column))
        texts, codes = dict[str, int](), np.full(len(column), -1, np.int64)
        for at, ends, data, rows in self._values(column, pieces, only_heads=True):
            for key, start, of_key in self._by_schema(data, at, ends, rows, headers, pieces):
                for name, of_name in self._by_name(pieces, key, data, start, ends, of_key):
                    if name:
                        codes[of_name] = texts.setdefault(self._field_of(name) or name, len(texts))
        names = take_rows(text_values(texts), codes)
        return names, pieces.invalid

    @cached_property
    def _fixed(self) -> ValueDecoder:
        return language_of(self.schema.format).decoder(self.schema)

    def _values(
        self, column: pa.Array, pieces: _Pieces, *, only_heads: bool = False
    ) -> Iterator[tuple[Positions, Positions, Bytes, Positions]]:
        """Yield starts, ends and bytes of values, and the rows that have one; tell `pieces` of invalid headers.

        `only_heads`: compressed values have their first bytes only.
        """
        at, ends, data = _bounds(column)
        rows = np.flatnonzero(valid(column)) if column.null_count else np.arange(len(column))
        if FORMATS[self.schema.format].registry != "glue" or not len(rows):
            yield at, ends, data, rows
            return
        for part in parts(at, ends, rows):
            values, start, end, refused = decompressed_values(data, at, ends, part, only_heads=only_heads)
            for reason, of_reason in refused.items():
                pieces.refuse(of_reason, reason)
                part = np.setdiff1d(part, of_reason)
            yield start, end, values, part

    def _by_schema(
        self,
        data: Bytes,
        at: Positions,
        ends: Positions,
        rows: Positions,
        headers: pa.Array | None,
        pieces: _Pieces,
    ) -> Iterator[tuple[_Key, Positions, Positions]]:
        """Yield each schema's key, where its values begin, and its rows; tell `pieces` of values without a schema."""
        if not FORMATS[self.schema.format].registered:
            yield None, at, rows
            return
        if FORMATS[self.schema.format].registry == "glue":
            for version_id, has_id in version_ids(data, at[rows]) if len(rows) else ():
                yield version_id, at + HEADER_BYTES, rows[has_id]
            return
        if headers is not None:
            with_header, ids = header_ids(headers, self._header)
            has_value = np.isin(with_header, rows)
            numbers = to_numpy(ids.indices)[has_value]
            order = np.argsort(numbers, kind="stable")
            raw_ids = ids.dictionary.to_pylist()
            rows_by_id = np.split(with_header[has_value][order], np.flatnonzero(np.diff(numbers[order])) + 1)
            for number, same in zip(np.unique(numbers).tolist(), rows_by_id, strict=False):
                yield raw_ids[number], at, same
            rows = np.setdiff1d(rows, with_header)
        framed = ends[rows] - at[rows] >= _ID_BYTES
        framed[framed] = _is_id(data, at[rows[framed]])
        if not framed.all():
            pieces.refuse(rows[~framed], "it does not begin with a zero byte and a schema id")
            rows = rows[framed]
        if not len(rows):
            return
        ids = np.ndarray((len(data) - _ID_BYTES + 1,), ">u4", np.ascontiguousarray(data[1:]), 0, (1,))[at[rows]]
        start = at + _ID_BYTES
        if (ids == ids[0]).all():
            yield int(ids[0]), start, rows
        else:
            for schema_id in np.unique(ids).tolist():
                yield schema_id, start, rows[ids == schema_id]

    def _add(self, pieces: _Pieces, key: _Key, data: Bytes, at: Positions, ends: Positions, rows: Positions) -> None:
        decoder = self._decoder(key)
        if isinstance(decoder, str):
            pieces.refuse(rows, decoder, _schema_id_of(key))
        else:
            pieces.add(decoder, data, at, ends, rows, _schema_id_of(key))

    def _add_types(
        self, pieces: _Pieces, key: _Key, data: Bytes, at: Positions, ends: Positions, rows: Positions
    ) -> None:
        for name, of_name in self._by_name(pieces, key, data, at, ends, rows):
            field = self._field_of(name) if name else None
            if field is None:
                local_name = name.rpartition(".")[2]
                types = [schema.names.name if field == local_name else field for field, schema in self.schema.types]
                reason = f"its type {name or '(without a name)'} is none of {listed(types)}"
                pieces.refuse(of_name, reason, _schema_id_of(key), unknown_type=True)
            elif self.type.get_field_index(field) < 0:
                continue  # not to be decoded
            elif isinstance(decoder := self._decoder(key, field), str):
                pieces.refuse(of_name, decoder, _schema_id_of(key))
            else:
                pieces.add(_InField(decoder, self.type, field), data, at, ends, of_name, _schema_id_of(key))

    def _by_name(
        self, pieces: _Pieces, key: _Key, data: Bytes, at: Positions, ends: Positions, rows: Positions
    ) -> Iterator[tuple[str, Positions]]:
        """Yield the name of each type of a writer's schema, and its rows; tell `pieces` of values without a type."""
        names = self._names(key)
        if isinstance(names, str):
            pieces.refuse(rows, names, _schema_id_of(key))
            return
        for name, numbers in names.of_rows(data, at[rows], ends[rows]):
            if name is None:
                reason = "the number of its message or branch is truncated, or not in its schema"
                pieces.refuse(rows[numbers], reason, _schema_id_of(key))
            else:
                yield name, rows[numbers]

    def _field_of(self, name: str) -> str | None:
        """Return the field of the type with this full name, else of the one with this alias.

        The local name does not suffice: `billing.Order` is not `shop.Order`, and might be read without an error.
        """
        by_name = next((field for field, schema in self.schema.types if schema.names.name == name), None)
        return by_name or next((field for field, schema in self.schema.types if name in schema.names.aliases), None)

    def _names(self, key: _Key) -> WriterNames | str:
        """Return what names the records of a writer's schema, or why they cannot be decoded."""

        def make(schema: RegisteredSchema, references: Mapping[str, str], message: bytes | None) -> WriterNames:
            return language_of(self.schema.format).writer_names(schema.text, references, message)

        return self._cached(self._writer_names, key, key, make)

    def _decoder(self, key: _Key, field: str = "") -> ValueDecoder | str:
        """Return the decoder of a writer's schema, or why there is none. `field`: that of one of several types."""
        reader = dict(self.schema.types)[field] if field else self.schema

        def make(schema: RegisteredSchema, references: Mapping[str, str], message: bytes | None) -> ValueDecoder:
            owner = f"the schema with the id {_schema_id_of(key)}"
            refuse_rules(schema.rules, ("READ",) if schema.text == reader.text else ("READ", "DOWNGRADE"), owner)
            return language_of(reader.format).resolver(schema.text, references, reader, message)

        return self._cached(self._decoders, (key, field), key, make)

    def _cached(
        self,
        cache: dict[K, T | str],
        place: K,
        key: _Key,
        make: Callable[[RegisteredSchema, Mapping[str, str], bytes | None], T],
    ) -> T | str:
        """Return what `make` makes of a writer's schema, once."""
        with self._lock:
            cached = cache.get(place)
            if cached is not None:
                return cached
        try:
            schema, references = self._writer_schema(key)
        except RegistryFailed as error:
            if not is_unknown(error):
                raise
            return "the registry does not have it"  # not kept: it may come
        made: T | str
        try:
            language = FORMATS[self.schema.format].language
            if schema.kind and schema.kind != language:
                raise ConfigurationError(f"it is a schema of the type {schema.kind}, not {language}")
            made = make(schema, references, key[_BYTES[key[0]] :] if isinstance(key, bytes) else None)
        except ConfigurationError as error:
            made = str(error)
        has_message = isinstance(key, bytes) and len(key) > _BYTES[key[0]]
        with self._lock:
            # The bytes behind an id in a header may differ in each record.
            if not has_message or (not isinstance(made, str) and len(cache) < _MAX_WITH_MESSAGE):
                cache[place] = made
        return made

    def _writer_schema(self, key: _Key) -> tuple[RegisteredSchema, Mapping[str, str]]:
        """Return a writer's schema and the texts of its references. Raises `RegistryFailed`."""
        schema_id = _schema_id_of(key)
        if schema_id is None:
            language = FORMATS[self.schema.format].language
            return RegisteredSchema(self.schema.text, language or ""), dict(self.schema.references)
        assert self._registry is not None
        schema = self._registry.by_id(schema_id) if isinstance(schema_id, int) else self._registry.by_guid(schema_id)
        return schema, {name: reference.text for name, reference in self._registry.references(schema).items()}


class _InField:
    """Decodes the records of one of several types into its field; the others are null."""

    def __init__(self, decoder: ValueDecoder, type: pa.DataType, field: str) -> None:
        self.type = type
        self._decoder = decoder
        self._field = field

    def decode(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions, list[InvalidValue]]:
        column, rows, invalid = self._decoder.decode(data, at, ends)
        columns = [column if field.name == self._field else pa.nulls(len(column), field.type) for field in self.type]
        paths = (".".join(filter(None, (self._field, failure.path))) for failure in invalid)
        return (
            pa.StructArray.from_arrays(columns, fields=list(self.type)),
            rows,
            [replace(failure, path=path) for failure, path in zip(invalid, paths, strict=True)],
        )


def decode_failed(
    topic: str, partition: int, part: str, offsets: pa.Array, invalid: Sequence[InvalidValue]
) -> DecodeFailed:
    """Return the error for the first invalid key or value of a batch whose records have these offsets."""
    first = min(invalid, key=lambda failure: failure.row)
    offset = int(to_numpy(offsets)[first.row])
    return DecodeFailed(
        f"{topic}-{partition}, offset {offset}: the {part} does not decode: {first}",
        topic=topic,
        partition=partition,
        offset=offset,
    )


class _Pieces:
    """The decoded parts of a column, and its invalid values."""

    def __init__(self, type: pa.DataType, rows: int) -> None:
        self.invalid: list[InvalidValue] = []
        self._type = type
        self._rows = rows
        self._pieces: list[pa.Array] = []
        self._owners: list[Positions] = []

    def add(
        self,
        decoder: ValueDecoder,
        data: Bytes,
        at: Positions,
        ends: Positions,
        rows: Positions,
        schema_id: int | str | None = None,
    ) -> None:
        is_complete = len(rows) == self._rows
        column, decoded, invalid = decoder.decode(
            data, at if is_complete else at[rows], ends if is_complete else ends[rows]
        )
        self.invalid += [
            InvalidValue(int(rows[failure.row]), failure.reason, failure.path, schema_id) for failure in invalid
        ]
        self._pieces.append(column)
        self._owners.append(rows[decoded])

    def refuse(
        self, rows: Positions, reason: str, schema_id: int | str | None = None, *, unknown_type: bool = False
    ) -> None:
        self.invalid += [
            InvalidValue(row, reason, schema_id=schema_id, unknown_type=unknown_type) for row in rows.tolist()
        ]

    def column(self) -> pa.Array:
        if len(self._pieces) == 1 and len(self._pieces[0]) == self._rows:
            return self._pieces[0]
        if not self._pieces:
            return pa.nulls(self._rows, self._type)
        positions = np.full(self._rows, -1, np.int64)
        positions[np.concatenate(self._owners)] = np.arange(sum(map(len, self._pieces)))
        combined = self._pieces[0] if len(self._pieces) == 1 else pa.concat_arrays(self._pieces)
        return take_rows(combined, positions)


def header_ids(headers: pa.Array, name: str) -> tuple[Positions, pa.DictionaryArray]:
    """Return the rows whose headers have the id or GUID of a schema, and these headers.

    `headers` (pyarrow.ListArray): list<struct<key: string, value: binary>>.
    `name`: the header's key.
    Returns row numbers, and a dictionary array of binary: for each of these rows a byte 0 and the 4 bytes of the id, or
    a byte 1 and the 16 bytes of the GUID, and for Protobuf the number of the message.
    """
    first = offsets_of(headers)
    pairs = headers.values
    keys, values = pairs.field(0), pairs.field(1)
    key_at, key_ends, key_data = _bounds(keys)
    value_at, value_ends, value_data = _bounds(values)
    name_bytes = np.frombuffer(name.encode(), np.uint8)
    candidates = np.flatnonzero(
        (key_ends - key_at == len(name_bytes)) & (value_ends - value_at >= _ID_BYTES) & valid(values)
    )
    if len(candidates):
        candidates = candidates[(_gather(key_data, key_at[candidates], len(name_bytes)) == name_bytes).all(axis=1)]
        start, sizes = value_at[candidates], (value_ends - value_at)[candidates]
        is_guid = (value_data[start] == _MAGIC_GUID) & (sizes >= _GUID_BYTES)
        candidates = candidates[_is_id(value_data, start) | is_guid]
    rows = np.searchsorted(first, candidates, side="right") - 1
    inside = (rows >= 0) & (rows < len(headers))
    # The last one of a record counts, as for Confluent's deserialisers.
    rows, candidates = rows[inside][::-1], candidates[inside][::-1]
    rows, places = np.unique(rows, return_index=True)
    return rows.astype(np.int64), values.take(to_arrow(candidates[places])).dictionary_encode()


def _is_id(data: Bytes, at: Positions) -> npt.NDArray[np.bool_]:
    """Return a mask of the places with a zero byte and a schema's id, which is Java's int.

    Confluent's registry refuses a larger number like a wrong address, with the error code 404.
    """
    is_id: npt.NDArray[np.bool_] = (data[at] == _MAGIC_ID) & (data[at + 1] < 1 << 7)
    return is_id


def _bounds(column: pa.Array) -> tuple[Positions, Positions, Bytes]:
    offsets = offsets_of(column)
    return offsets[:-1], offsets[1:], np.frombuffer(column.buffers()[2] or b"", np.uint8)


def _gather(data: Bytes, at: Positions, size: int) -> npt.NDArray[np.uint8]:
    gathered: npt.NDArray[np.uint8] = data[at[:, None] + np.arange(size)]
    return gathered


def _schema_id_of(key: _Key) -> int | str | None:
    """Return the id or GUID of a writer's schema; None: it has none."""
    if not isinstance(key, bytes):
        return key
    if key[0] == _MAGIC_ID:
        return int.from_bytes(key[1:_ID_BYTES], "big")
    return str(uuid.UUID(bytes=key[1:_GUID_BYTES]))
