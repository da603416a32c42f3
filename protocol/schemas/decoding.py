"""Decoders of values: their interface, and how invalid values are reported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import binaries
from protocol.records.varints import Bytes, Positions
from protocol.schemas.protobuf_settings import ProtobufSettings

# Passes of `read_valid` over all values, before it searches for invalid ones by halves.
_MAX_PASSES = 16


class InvalidRows(Exception):
    """Rows that are invalid for the schema.

    `rows` (array of int): their indices among the rows that were read.
    `path`: the field, such as `customer.address[].city`.
    """

    def __init__(self, rows: Positions, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.rows = rows
        self.reason = reason
        self.path = path

    def inside(self, name: str, rows: Positions | None = None) -> InvalidRows:
        """Return the error as seen from the enclosing type; `rows` maps row indices to those of that type."""
        path = f"{name}{'.' if name and self.path and self.path[0] != '[' else ''}{self.path}"
        return InvalidRows(self.rows if rows is None else rows[self.rows], self.reason, path)


@contextmanager
def inside(name: str, rows: Positions | None = None) -> Iterator[None]:
    """Raise `InvalidRows` of the block as seen from the enclosing type: see `InvalidRows.inside`."""
    try:
        yield
    except InvalidRows as error:
        raise error.inside(name, rows) from None


class UnknownName(ConfigurationError):
    """The reader asks for fields, a message or records of a union that the schema does not have.

    The context has `of`: "Fields", "MessageName" or "UnionNames".
    """


def check_fields(available: Sequence[str], fields: Collection[str]) -> None:
    """Raise `UnknownName` if some of `fields` are not among the `available` ones of a schema."""
    if missing := [field for field in fields if field not in available]:
        names = listed(available, CHOICES) or "none"
        raise UnknownName(f"the schema has no field {listed(missing)}; it has {names}", of="Fields")


def load_schema(text: str, subject: str) -> Any:
    """Return a schema in JSON as Python objects. Raises `ConfigurationError`: it is not JSON.

    Half of a character, as in a pattern of surrogates, becomes a question mark.
    """
    try:
        unicode = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")
        return json.loads(unicode)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{subject} is not JSON: {error}") from None


def refuse(wrong: npt.NDArray[np.bool_], reason: str) -> None:
    """Raise `InvalidRows` with these rows, if there are any."""
    if wrong.any():
        raise InvalidRows(np.flatnonzero(wrong), reason)


def refuse_message(message: bytes | None) -> None:
    """Raise `ConfigurationError` for bytes behind a schema's id in a header, in a language without messages."""
    if message:
        raise ConfigurationError("the header has more bytes than a schema's id or GUID")


def text_values(texts: Collection[str]) -> pa.Array:
    """Return a text column of these values."""
    return binaries([text.encode() for text in texts]).cast(pa.string())


def offsets_of(column: pa.Array) -> Positions:
    """Return the offsets of a column of bytes, texts, lists or maps. Without elements its buffer may be empty."""
    if not len(column):
        return np.zeros(1, np.int64)
    stored = np.frombuffer(column.buffers()[1], np.int64 if pa.types.is_large_list(column.type) else np.int32)
    return stored[column.offset : column.offset + len(column) + 1].astype(np.int64)


@dataclass(frozen=True)
class InvalidValue:
    """A value that was not decoded.

    `row`: its number in the column.
    `path`: the field; empty for the value itself.
    `schema_id`: the id or GUID of the writer's schema.
    `unknown_type`: True if the record is of none of the types to read, and may be valid.
    """

    row: int
    reason: str
    path: str = ""
    schema_id: int | str | None = None
    unknown_type: bool = False

    def __str__(self) -> str:
        schema = "" if self.schema_id is None else f"schema id {self.schema_id}"
        field = f"field {self.path}" if self.path else ""
        where = ", ".join(filter(None, (schema, field)))
        return f"{where}: {self.reason}" if where else self.reason


@dataclass(frozen=True)
class RecordNames:
    """The full name of a record or message, and its aliases; `name` is empty if the schema has none."""

    name: str
    aliases: tuple[str, ...] = ()

    @property
    def local_name(self) -> str:
        """The name without its namespace or package."""
        return self.name.rpartition(".")[2]


def fields_of_types(format: str, names: Mapping[str, RecordNames]) -> list[str]:
    """Return the field of each of several types of records: its local name, or its full name if two have the same one.

    `names`: by the subjects of the schemas.
    Raises `ConfigurationError`: a schema has no name, or two have the same.
    """
    for subject, of_type in names.items():
        if not of_type.name:
            what = "title" if format.endswith("json") else "record at its top"  # the end of a format is its language
            raise ConfigurationError(f"the schema of the subject {subject} has no {what}, and so no name")
    local_names = Counter(of_type.local_name for of_type in names.values())
    fields = [
        of_type.local_name if local_names[of_type.local_name] == 1 else of_type.name for of_type in names.values()
    ]
    for field, count in Counter(fields).items():
        if count > 1:
            raise ConfigurationError(f"several subjects have a schema of the type {field}")
    return fields


class WriterNames(Protocol):
    """Names the records that were written with one registered schema."""

    def of_rows(self, data: Bytes, at: Positions, ends: Positions) -> Sequence[tuple[str | None, Positions]]:
        """Return the full names of the records in `data[at[i]:ends[i]]`, each with the numbers of its rows.

        Empty: the schema has no name. None: the rows are invalid. Rows without a name are null.
        """


@dataclass(frozen=True)
class OneName:
    """All records have one name."""

    name: str

    def of_rows(self, data: Bytes, at: Positions, ends: Positions) -> Sequence[tuple[str | None, Positions]]:
        """Return the name, with all rows."""
        return [(self.name, np.arange(len(at)))]


class SchemaText(Protocol):
    """A schema as it is written, with what it uses; see `reader_schema.ReaderSchema`."""

    def __hash__(self) -> int:
        """Schemas are keys of caches."""

    @property
    def text(self) -> str:
        """The schema."""

    @property
    def references(self) -> tuple[tuple[str, str], ...]:
        """Schemas that it uses, by name."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a record to decode; empty: all."""

    @property
    def protobuf(self) -> ProtobufSettings:
        """How Protobuf is read."""

    @property
    def record(self) -> str:
        """The full name of the record to read, if the schema is a union of Avro; empty: the whole schema."""


class ValueDecoder(Protocol):
    """Decodes values that were written with one schema.

    `type`: the type of the columns.
    """

    type: pa.DataType

    def decode(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions, list[InvalidValue]]:
        """Decode the values `data[at[i]:ends[i]]`, which ascend.

        Returns the column of the valid values, their numbers, and the invalid values.
        """


def read_valid(
    read: Callable[[Bytes, Positions, Positions], pa.Array], data: Bytes, at: Positions, ends: Positions
) -> tuple[pa.Array, Positions, list[InvalidValue]]:
    """Read values until all are valid: each pass leaves out those that the pass before has found to be invalid.

    If several passes do not suffice, the invalid values are searched for by halves: a value is then read about as
    often as the number of values can be halved, whatever the values are.

    `read`: returns the column of the values `data[at[i]:ends[i]]`, or raises `InvalidRows`, with as many rows as it can
    tell at once, since the next pass reads all others again.
    `data`, `at`, `ends`: the arguments of `ValueDecoder.decode`, whose result this returns.
    """
    rows = np.arange(len(at))
    invalid: list[InvalidValue] = []
    # A byte for values without bytes.
    data = data if len(data) else np.zeros(1, np.uint8)

    def without(rows: Positions, error: InvalidRows) -> Positions:
        wrong = np.unique(error.rows)
        invalid.extend(InvalidValue(row, error.reason, error.path) for row in rows[wrong].tolist())
        return np.delete(rows, wrong)

    def without_invalid(rows: Positions) -> Positions:
        try:
            read(data, at[rows], ends[rows])
        except InvalidRows as error:
            halves = np.array_split(without(rows, error), 2)
            return np.concatenate([without_invalid(half) if len(half) else half for half in halves])
        return rows

    passes = 0
    while True:
        try:
            return read(data, at[rows], ends[rows]), rows, invalid
        except InvalidRows as error:
            rows = without(rows, error)
        passes += 1
        if passes % _MAX_PASSES == 0:
            # Their columns are dropped: limits of all values together hold for one `read`.
            rows = without_invalid(rows)
