"""Decode the keys and values of `protocol.read`, whose rows may be of several types.

Imported only for a read that decodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import UsageError
from protocol.filters.condition import VALUE_TYPE as _FILTER_VALUE_TYPE
from protocol.records.arrow_numpy import to_arrow
from protocol.schemas.decoding import InvalidValue
from protocol.schemas.formats import (
    FORMATS,
    Format,
    SubjectNameStrategy,
    TypeOptionNames,
    ValueTypes,
    default_subject,
)
from protocol.schemas.glue import open_registry
from protocol.schemas.protobuf_settings import DEFAULT_SETTINGS, ProtobufSettings
from protocol.schemas.reader_schema import Part
from protocol.schemas.registry_config import parse_registry
from protocol.schemas.values import ColumnDecoder, choose_schema, choose_types, decode_failed

if TYPE_CHECKING:
    from protocol.cluster.client import Client
    from protocol.fetch.log_offsets import Range
    from protocol.filters.record_filter import RecordFilter

VALUE_TYPE = "value_type"
_ARGUMENTS = TypeOptionNames("value_types", "value_subject", "value_subject_name_strategy", "value_schema")
_ON_UNKNOWN_TYPE = (
    '. To read on without records of other types, give on_unknown_type="skip"; with null for such a value, "null"'
)

T = TypeVar("T")


def _check_arguments(
    formats: Mapping[Part, Format],
    topics: list[str],
    text: str | None,
    types: ValueTypes,
    on_unknown_type: str,
    fields: tuple[str, ...],
    protobuf: ProtobufSettings | None,
) -> None:
    """Raise `UsageError` if arguments are wrong, contradict each other, or have no effect."""
    for part, format in formats.items():
        if format not in FORMATS:
            raise UsageError(f"{part}_format is {format!r}; use one of {', '.join(FORMATS)}")
    if types.strategy not in get_args(SubjectNameStrategy):
        strategies = " or ".join(get_args(SubjectNameStrategy))
        raise UsageError(f"value_subject_name_strategy is {types.strategy!r}; use {strategies}")
    if on_unknown_type not in ("fail", "null", "skip"):
        raise UsageError(f"on_unknown_type is {on_unknown_type!r}; use fail, null or skip")
    why_no_topic = "" if len(topics) == 1 else f"{len(topics)} topics are read"
    for _, problem in types.contradictions(_ARGUMENTS, text, why_no_topic):
        raise UsageError(problem)
    spec, several = FORMATS[formats["value"]], bool(types.subjects(""))
    if several and not spec.registered:
        raise UsageError(
            f"value_types or value_subject names several types, but value_format is {formats['value']}; use one with a "
            "registry, such as confluent-avro"
        )
    of_format = f"value_format is {formats['value']}; leave it out, or set another format"
    of_types = "values have one type; leave it out, or name several in value_types or value_subject"
    for name, applies, reason in (
        ("value_schema", text is None or spec.language, of_format),
        ("value_fields", not fields or spec.language, of_format),
        ("value_subject", types.subject is None or spec.registered, of_format),
        ("protobuf", protobuf is None or spec.language == "PROTOBUF", of_format),
        ("on_unknown_type", on_unknown_type == "fail" or several, of_types),
    ):
        if not applies:
            raise UsageError(f"{name} has no effect: {reason}")


def column_decoders(
    properties: Mapping[str, object],
    topics: list[str],
    key_format: Format,
    value_format: Format,
    text: str | None,
    types: ValueTypes,
    on_unknown_type: str,
    fields: tuple[str, ...],
    protobuf: ProtobufSettings | None,
) -> dict[str, ColumnDecoder]:
    """Return the decoder of each column that has another format than binary."""
    formats: dict[Part, Format] = {"key": key_format, "value": value_format}
    _check_arguments(formats, topics, text, types, on_unknown_type, fields, protobuf)
    protobuf = DEFAULT_SETTINGS if protobuf is None else protobuf
    config = parse_registry(properties)
    registry = None if config is None else open_registry(config)
    topic = topics[0] if len(topics) == 1 else ""  # else no subject is named after it
    decoders: dict[str, ColumnDecoder] = {}
    for part, format in formats.items():
        if format == "binary":
            continue
        own = part == "value"
        if own and (versions := dict.fromkeys(types.subjects(topic))):
            schema = choose_types(format, registry, versions, messages=types.names, fields=fields, protobuf=protobuf)
            decoders[part] = ColumnDecoder(schema, registry)
            continue
        subject = types.one_subject if own else None
        if FORMATS[format].registered and len(topics) != 1 and not (own and (subject or text)):
            remedy = "read one, or give value_subject" if own else f'read one, or leave out key_format="{format}"'
            raise UsageError(f"{len(topics)} topics are read: {remedy}")
        schema = choose_schema(
            format,
            registry,
            subject or default_subject(FORMATS[format].registry, topic, part),
            text=text if own else None,
            fields=fields if own else (),
            protobuf=protobuf if own else DEFAULT_SETTINGS,
        )
        decoders[part] = ColumnDecoder(schema, registry, part)
    return decoders


def column_types(decoders: Mapping[str, ColumnDecoder]) -> dict[str, pa.DataType]:
    """Return the types of the decoded columns, and of `value_type` if values are of several types."""
    has_types = "value" in decoders and decoders["value"].schema.types
    types = {part: decoder.type for part, decoder in decoders.items()}
    return types | ({VALUE_TYPE: pa.string()} if has_types else {})


def _has_fields(decoder: ColumnDecoder, other: ColumnDecoder) -> bool:
    """Return True if a column of a decoder has the fields of the other's."""
    fields, needed = decoder.schema.fields, other.schema.fields
    return not fields or (bool(needed) and set(needed) <= set(fields))


class RowDecoder:
    """Decodes the keys and values of a read, and leaves out rows by its filter and by the types of values.

    `columns`: the columns of the reader; others are decoded for the filter only.
    `stored_columns`: the columns of `protocol.records.decode` that `rows` needs.
    """

    def __init__(
        self,
        client: Client,
        decoders: Mapping[str, ColumnDecoder],
        columns: Collection[str],
        on_unknown_type: str,
        record_filter: RecordFilter | None,
    ) -> None:
        self._client = client
        self._decoders = {part: decoder for part, decoder in decoders.items() if part in columns}
        self._on_unknown_type = on_unknown_type
        self._filter = record_filter if record_filter is not None and record_filter.decoded_columns else None
        self._filter_decoders: dict[str, ColumnDecoder] = {}
        if self._filter is not None:
            condition = self._filter.condition
            self._filter_decoders = {
                part: decoder.of_fields(fields) if (fields := condition.fields(part)) else decoder
                for part, decoder in decoders.items()
                if part in condition.decoded
            }
        # The columns of the rows have the fields that the filter needs.
        self._shares_columns = all(
            part in self._decoders and _has_fields(self._decoders[part], decoder)
            for part, decoder in self._filter_decoders.items()
        )
        self._keeps_most = False
        has_types = VALUE_TYPE in columns or (self._filter is not None and self._filter.reads_types)
        self._types = decoders["value"] if has_types else None
        stored = frozenset() if self._filter is None else self._filter.decoded_columns
        self.stored_columns = {"offset", *self._decoders, *stored, *(("value",) if has_types else ())}

    def rows(self, arrays: dict[str, pa.Array], source_range: Range) -> dict[str, pa.Array]:
        """Return the columns of the rows to return. Raises `DecodeFailed`, `FilterFailed` and `RegistryFailed`."""
        if self._filter is not None:
            if self._filter.reads_types:
                arrays = self._with_types(arrays, source_range)
                arrays = _selected(arrays, self._filter.rows_of_types(with_filter_names(arrays), source_range))
            once = self._decoded_once(arrays)
            arrays, decoded = (arrays, once) if once else self._decoded(self._filter_decoders, arrays, source_range)
            rows = self._filter.decoded_rows(with_filter_names(arrays | decoded), source_range)
            self._keeps_most = bool(rows.sum() * 2 > len(rows))
            arrays, once = _selected(arrays, rows), _selected(once, rows)
            if once:
                return self._with_types(arrays, source_range) | once
        arrays, decoded = self._decoded(self._decoders, self._with_types(arrays, source_range), source_range)
        return arrays | decoded

    def _with_types(self, arrays: dict[str, pa.Array], source_range: Range) -> dict[str, pa.Array]:
        """Return the columns with the types of values, if these are needed; once."""
        if self._types is None or VALUE_TYPE in arrays:
            return arrays
        names, invalid = self._types.type_names(arrays["value"])
        if invalid:
            raise decode_failed(source_range.topic, source_range.partition, "value", arrays["offset"], invalid)
        return {**arrays, VALUE_TYPE: names}

    def _decoded_once(self, arrays: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Decode for the filter and the rows if most rows are kept; nothing if a value is invalid.

        The filter may drop the row of an invalid value.
        """
        columns: dict[str, pa.Array] = {}
        if self._keeps_most and self._shares_columns:
            for part, decoder in self._decoders.items():
                columns[part], invalid = decoder.decode(arrays[part])
                if invalid:
                    return {}
        return columns

    def _decoded(
        self, decoders: Mapping[str, ColumnDecoder], arrays: dict[str, pa.Array], source_range: Range
    ) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
        """Return the stored and the decoded columns, without the rows of unknown types if these are skipped."""
        decoded: dict[str, pa.Array] = {}
        unknown_types: set[int] = set()
        for part, decoder in decoders.items():
            decoded[part], invalid = decoder.decode(arrays[part])
            if invalid:
                unknown_types |= self._unknown_types(part, arrays["offset"], invalid, source_range)
        if unknown_types and self._on_unknown_type == "skip":
            self._client.sensors.filtered[source_range.topic].record((self._client.clock.now_s(), len(unknown_types)))
            rows = ~np.isin(np.arange(len(arrays["offset"])), list(unknown_types))
            return _selected(arrays, rows), _selected(decoded, rows)
        return arrays, decoded

    def _unknown_types(
        self, part: str, offsets: pa.Array, invalid: list[InvalidValue], source_range: Range
    ) -> set[int]:
        """Return the rows of other types. Raises `DecodeFailed` for them, if they fail, and for other failures."""
        failures = [failure for failure in invalid if not failure.unknown_type]
        if failures or self._on_unknown_type == "fail":
            error = decode_failed(source_range.topic, source_range.partition, part, offsets, failures or invalid)
            error.message += "" if failures else _ON_UNKNOWN_TYPE
            raise error
        return {failure.row for failure in invalid}


def with_filter_names(columns: Mapping[str, T]) -> dict[str, T]:
    """Rename `value_type` to `valueType`."""
    return {_FILTER_VALUE_TYPE if name == VALUE_TYPE else name: column for name, column in columns.items()}


def _selected(arrays: dict[str, pa.Array], rows: npt.NDArray[np.bool_]) -> dict[str, pa.Array]:
    if rows.all():
        return arrays
    numbers = to_arrow(np.flatnonzero(rows))
    return {name: array.take(numbers) for name, array in arrays.items()}
