"""Resolve the schemas of decoded columns, once per `load()`; they hold for all batches of the query.

`load()` and the query run in different processes, at different times. So the declared column has the subject's version
as metadata, and the query asks for that version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError, RegistryFailed
from protocol.schemas.decoding import UnknownName
from protocol.schemas.formats import FORMATS, default_subject
from protocol.schemas.reader_schema import Part, ReaderSchema
from protocol.schemas.registry import NO_SUBJECT, NO_VERSION
from protocol.schemas.values import choose_schema, choose_types, with_union_types
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.options.selection import VALUE_TYPE
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.task.row_schema import declared_versions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from protocol.schemas.formats import Format

_READER_VERSION = "schema.registry.reader.version"


@with_remedies()
def with_schemas(options: SourceOptions, declared: StructType | None = None) -> SourceOptions:
    """Return the options with the schema of each decoded column. Runs on the driver.

    `declared`: the schema that `load()` has declared, if it has.
    Raises `RegistryFailed`: the registry does not have the subject or its version, refuses, or does not respond.
    `ConfigurationError`: a schema is invalid, or has types that no column can have.
    """
    versions = declared_versions(declared) if declared is not None else {}
    schemas: list[tuple[Part, ReaderSchema]] = []
    for part in options.decoded:
        schema = reader_schema(options, part, versions)
        schemas.append((part, schema))
        # What follows asks for these versions: a subject may get another one meanwhile.
        versions |= {
            of_type.subject: of_type.version
            for of_type in (schema, *(member for _, member in schema.types))
            if of_type.subject is not None and of_type.version is not None
        }
    options = replace(options, schemas=tuple(schemas))
    if options.has_value_types:
        without_fields = replace(options, value_fields=())
        options = replace(options, type_schema=reader_schema(without_fields, "value", versions))
    return options if options.filter is None else _with_condition(options, versions)


def _with_condition(options: SourceOptions, versions: Mapping[str, int]) -> SourceOptions:
    """Return the options with the parsed filter, and the schemas of the fields that it names."""
    from protocol.filters.parse import parse_condition

    assert options.filter is not None
    formats: dict[Part, Format] = {"key": options.key_format, "value": options.value_format}
    without_fields = replace(options, key_fields=(), value_fields=())
    schemas = {
        part: reader_schema(without_fields, part, versions)
        for part, format in formats.items()
        if format != "binary" and options.filter_may_name(part)
    }
    types = {VALUE_TYPE: pa.string()} if options.has_value_types else {}
    condition = parse_condition(options.filter, {part: schema.type for part, schema in schemas.items()} | types)
    needed = tuple(
        (part, replace(schema, fields=condition.fields(part)))
        for part, schema in schemas.items()
        if part in condition.decoded
    )
    return replace(options, condition=condition, condition_schemas=needed)


def reader_schema(
    options: SourceOptions, part: Part, declared: Mapping[str, int] = MappingProxyType({})
) -> ReaderSchema:
    """Return the schema of keys or values. `declared`: the versions of subjects of `load()`.

    Raises `RegistryFailed` and `ConfigurationError`.
    """
    is_key = part == "key"
    format = options.key_format if is_key else options.value_format
    text = options.key_schema if is_key else options.value_schema
    fields = options.key_fields if is_key else options.value_fields
    registry = None if options.registry is None else PROCESS.registry(options.registry)
    protobuf = options.protobuf(part)
    _check_reader_version(options)
    with _options_named(part, has_text=text is not None):
        if not is_key and options.value_subjects:
            versions = {name: declared.get(name) or _fixed_version(options, name) for name in options.value_subjects}
            return choose_types(
                format, registry, versions, messages=options.value_types, fields=fields, protobuf=protobuf
            )
        subject = _subject(options, part)
        version = declared.get(subject) or _fixed_version(options, subject)
        if is_key or not options.has_union_types:
            return choose_schema(
                format, registry, subject, text=text, version=version, fields=fields, protobuf=protobuf
            )
        union = choose_schema(format, registry, subject, text=text, version=version)
        return with_union_types(union, fields)


def _subjects(options: SourceOptions, part: Part) -> tuple[str, ...]:
    """Return the subjects that have the schemas of keys or values; none if these do not come from a registry."""
    is_key = part == "key"
    format = options.key_format if is_key else options.value_format
    text = options.key_schema if is_key else options.value_schema
    if not FORMATS[format].registered or text is not None:
        return ()
    return (not is_key and options.value_subjects) or (_subject(options, part),)


def _check_reader_version(options: SourceOptions) -> None:
    """Raise `ConfigurationError` for a version of a subject that the query does not have, or one for several."""
    subjects: dict[Part, tuple[str, ...]] = {"key": _subjects(options, "key"), "value": _subjects(options, "value")}
    version = options.reader_version
    if isinstance(version, tuple):
        names = {name for of_part in subjects.values() for name in of_part}
        if names and (others := [name for name, _ in version if name not in names]):
            raise ConfigurationError(
                f"{_READER_VERSION} names {listed(others)}, but the query reads with the subjects "
                f"{listed(sorted(names), CHOICES)}. Correct the name, or leave it out.",
                name=_READER_VERSION,
            )
    elif isinstance(version, int):
        needed = {
            name
            for part, of_part in subjects.items()
            if part in options.decoded or options.filter_may_name(part) or (part == "value" and options.has_value_types)
            for name in of_part
        }
        if len(needed) > 1:
            raise ConfigurationError(
                f"{_READER_VERSION} is {version}, but the query reads with {len(needed)} subjects, which have their "
                f"own versions: {listed(sorted(needed), CHOICES)}. Set it to SUBJECT={version} for one of them, or to "
                "several such pairs, separated by commas.",
                name=_READER_VERSION,
            )


def _fixed_version(options: SourceOptions, subject: str) -> int | None:
    if isinstance(options.reader_version, tuple):
        return dict(options.reader_version).get(subject)
    return options.reader_version if isinstance(options.reader_version, int) else None


@contextmanager
def _options_named(part: Part, *, has_text: bool) -> Iterator[None]:
    """Name the option to change in errors. The context `of` of an `UnknownName` is its end: `Fields` of `keyFields`."""
    try:
        yield
    except RegistryFailed as error:
        if error.context.get("error_code") == NO_SUBJECT:
            error.message += f"; set {part}Subject if its name is another one"
        elif error.context.get("error_code") == NO_VERSION:
            error.message += f"; set {_READER_VERSION} to one that the subject has"
        raise
    except ConfigurationError as error:
        option_suffix = error.context["of"] if isinstance(error, UnknownName) else "Schema"
        is_of_option = has_text or isinstance(error, UnknownName)  # else of the registry's schema
        prefix = f"{part}{option_suffix}: " if is_of_option else ""
        raise ConfigurationError(f"{prefix}{error}", name=f"{part}{option_suffix}") from None


def _subject(options: SourceOptions, part: Part) -> str:
    """Return the subject of keys or values of one type; with a pattern of topics, it has no default."""
    subject, format = (
        (options.key_subject, options.key_format) if part == "key" else (options.value_subject, options.value_format)
    )
    topic = next(iter(options.subscribe or options.assign or ()), "")
    return subject or default_subject(FORMATS[format].registry, topic, part)


def require_same_versions(options: SourceOptions, checkpoint: Mapping[str, int]) -> None:
    """Raise `ConfigurationError` if a restarted query has taken other versions than its checkpoint, unless asked to.

    With `schema.registry.reader.version=pinned`, the default, a stateful query sees the same columns after a restart.
    So it does in the columns of subjects that the option does not name.
    """
    if isinstance(options.reader_version, int) or options.reader_version == "latest":
        return
    fixed = {} if options.reader_version == "pinned" else dict(options.reader_version)
    own = options.registered_schemas
    moved = {
        name: version
        for name, version in checkpoint.items()
        if name in own and own[name].version != version and own[name].subject not in fixed
    }
    if not moved:
        return
    name, version = next(iter(moved.items()))
    pairs = {**fixed, **{str(own[name].subject): version for name, version in moved.items()}}
    has_one_subject = len({schema.subject for schema in own.values()}) == 1
    setting = f"{version}" if has_one_subject else ",".join(f"{subject}={number}" for subject, number in pairs.items())
    raise ConfigurationError(
        f"The checkpoint's {name.partition('.')[0]}s were read with version {version} of their subject, and load() has "
        f"taken version {own[name].version} of the subject {own[name].subject}. Set {_READER_VERSION} to {setting} to "
        "keep the columns of the query, or to latest to read with the newest version after each restart. If the "
        "subject is another one than before, set latest.",
        name=_READER_VERSION,
    )
