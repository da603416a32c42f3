"""A schema of Spark as an Arrow type: a DDL string such as `id BIGINT, tags ARRAY<STRING>`, or `StructType.json()`.

All fields may be null, as in the result of `from_json`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.schemas.decoding import load_schema

_MAX_DEPTH = 64
_MAX_PRECISION = 38
_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "int": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "character": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "null": pa.null(),
}
_DECIMALS = ("decimal", "dec", "numeric")
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?", re.ASCII)
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))", re.DOTALL)


def parse_spark(text: str) -> pa.DataType:
    """Return the Arrow type of a schema.

    `text`: a DDL string (columns, or one type such as `array<int>`), or the JSON of a `DataType`.
    Raises `ConfigurationError`: the text is no schema of Spark, or has a type that values in JSON cannot have.
    """
    if text.lstrip()[:1] in ("{", '"'):
        return _from_json(load_schema(text, "the schema"), "", 0)
    return _Ddl(text).schema()


# -- JSON -------------------------------------------------------------------------------------


def _from_json(schema: Any, path: str, depth: int) -> pa.DataType:
    if depth > _MAX_DEPTH:
        raise _invalid(path, f"is nested deeper than {_MAX_DEPTH} types")
    if isinstance(schema, str):
        return _named(schema, path)
    try:
        kind = schema["type"]
        if kind == "struct":
            fields = []
            for field in schema["fields"]:
                name = str(field["name"])
                fields.append((name, _from_json(field["type"], f"{path}.{name}" if path else name, depth + 1)))
            return _struct(fields, path)
        if kind == "array":
            return _list(_from_json(schema["elementType"], f"{path}[]", depth + 1))
        if kind == "map":
            return pa.map_(
                _from_json(schema["keyType"], path, depth + 1),
                pa.field("value", _from_json(schema["valueType"], f"{path}[]", depth + 1)),
            )
    except (KeyError, TypeError):
        pass
    raise _invalid(path, f"is no data type: {json.dumps(schema)[:100]}")


def _named(name: str, path: str) -> pa.DataType:
    lower = name.strip().lower()
    match = _DECIMAL.fullmatch(lower)
    if match is not None:
        return _decimal(int(match[1] or 10), int(match[2] or 0), path)
    lower = re.sub(r"^(string|varchar|char)\s*(\(.*\)|collate .*)?$", "string", lower)
    if lower not in _TYPES:
        raise _invalid(path, f"has the type {name}, which JSON values cannot have")
    return _TYPES[lower]


def _decimal(precision: int, scale: int, path: str) -> pa.DataType:
    if not 0 < precision <= _MAX_PRECISION or scale > precision:
        raise _invalid(path, f"is a decimal with {precision} digits, {scale} of them behind the point; at most 38 fit")
    return pa.decimal128(precision, scale)


def _struct(fields: list[tuple[str, pa.DataType]], path: str) -> pa.DataType:
    names = [name for name, _ in fields]
    if len(set(names)) < len(names):
        raise _invalid(path, "has a field name twice")
    return pa.struct([pa.field(name, kind) for name, kind in fields])


def _list(items: pa.DataType) -> pa.DataType:
    # Spark's name for the items of arrays.
    return pa.list_(pa.field("element", items))


def _invalid(path: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"the schema{f', field {path},' if path else ''} {problem}")


# -- DDL --------------------------------------------------------------------------------------


class _Ddl:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ConfigurationError(f"the schema has an unexpected character: {text[at:].strip()[:40]!r}")
            self._tokens.append(match[0].strip())
            at = match.end()
        self._at = 0

    def schema(self) -> pa.DataType:
        """Parse columns, or one type."""
        nested = self._peek().lower() in ("struct", "array", "map") and self._peek(1) == "<"
        if nested or len(self._tokens) == 1 or self._peek(1) == "(":
            kind = self._type("", 0)
        else:
            kind = _struct(self._columns("", "", 0), "")
        if self._at < len(self._tokens):
            raise self._unexpected()
        return kind

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _take(self, expected: str | None = None) -> str:
        token = self._peek()
        if not token or (expected is not None and token.lower() != expected):
            raise self._unexpected(expected)
        self._at += 1
        return token

    def _unexpected(self, expected: str | None = None) -> ConfigurationError:
        behind = " ".join(self._tokens[max(0, self._at - 3) : self._at])
        token = self._peek() or "its end"
        missing = f": {expected} is missing" if expected else ""
        return ConfigurationError(f"the schema is no DDL at {token!r}, behind {behind!r}{missing}")

    def _columns(self, close: str, path: str, depth: int) -> list[tuple[str, pa.DataType]]:
        fields: list[tuple[str, pa.DataType]] = []
        if close and self._peek() == close:
            return fields
        while True:
            if self._peek()[:1] in tuple("<>(),:'\""):
                raise self._unexpected("a name")
            name = self._take()
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            if self._peek() == ":":
                self._take()
            fields.append((name, self._type(f"{path}.{name}" if path else name, depth)))
            if self._peek().lower() == "not":
                self._take()
                self._take("null")
            if self._peek().lower() == "comment":
                self._take()
                self._take()
            if self._peek() != ",":
                return fields
            self._take()

    def _type(self, path: str, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise _invalid(path, f"is nested deeper than {_MAX_DEPTH} types")
        name = self._take().lower()
        if name == "struct":
            self._take("<")
            fields = self._columns(">", path, depth + 1)
            self._take(">")
            return _struct(fields, path)
        if name == "array":
            self._take("<")
            items = self._type(f"{path}[]", depth + 1)
            self._take(">")
            return _list(items)
        if name == "map":
            self._take("<")
            keys = self._type(path, depth + 1)
            self._take(",")
            values = self._type(f"{path}[]", depth + 1)
            self._take(">")
            return pa.map_(keys, pa.field("value", values))
        numbers = self._numbers()
        if name in _DECIMALS:
            precision, scale = (*numbers, *(10, 0)[len(numbers) :])
            return _decimal(precision, scale, path)
        return _named(name, path)

    def _numbers(self) -> list[int]:
        """Parse the numbers of decimal(10, 2) or varchar(20), if there are any."""
        if self._peek() != "(":
            return []
        self._take()
        numbers: list[int] = []
        while True:
            token = self._take()
            if not token.isdecimal() or len(numbers) > 1:
                self._at -= 1
                raise self._unexpected("a number")
            numbers.append(int(token))
            if self._peek() != ",":
                break
            self._take()
        self._take(")")
        return numbers
