"""Parse the options from Spark into the dataclasses of `table`.

Used by `source` and `foreach_batch` on the driver. Every message names the option in the user's spelling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from protocol.base.once import deferred_warnings, warn_once
from protocol.config import parse_client, parse_consumer, parse_producer
from protocol.errors import ConfigurationError
from protocol.properties import BY_NAME
from protocol.schemas.formats import FORMATS
from protocol.settings.config_providers import is_reference
from protocol.settings.property_kinds import BOOLEAN, Effect, Kind, Role, integer
from protocol.settings.secret import hide_variables
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.options import selection
from spark_kafka_source.options.rules import check_sink_formats, check_sink_types, check_source
from spark_kafka_source.options.stray_options import PREFIX, property_names, refuse_other_name, why_ignored
from spark_kafka_source.options.table import (
    OPTIONS,
    READ,
    USE_WORDS,
    Option,
    ReaderVersion,
    SinkOptions,
    SourceOptions,
    Use,
)

# Options that Spark adds for streams and SQL tables. For tables it also repeats every option with a prefix.
_SPARK_OPTIONS = frozenset(
    ("checkpointlocation", "queryname", "owner", "provider", "comment", "location", "external", "is_managed_location")
)
_SPARK_TABLE_PREFIX = "option."
# Spark's option for its own Kafka sink. With an internal option, Spark allows it for any sink.
_ASYNC_PROGRESS = "asyncprogresstrackingenabled"
# Secrets that Spark's default redaction does not hide.
_NOT_REDACTED_BY_SPARK = frozenset((PREFIX + "ssl.keystore.key",))
# The argument of load() or save(), which Spark passes as an option.
_PATHS = frozenset(("path", "paths"))

# Reasons that replace those of `protocol`, which does not know Spark's columns and options.
FORBIDDEN = {
    "enable.auto.commit": "offsets are committed when a micro-batch has completed; use commitOffsets",
    "key.deserializer": "the column key is binary; convert it in the query, e.g. key.cast('string')",
    "value.deserializer": "the column value is binary; use functions such as from_json or from_avro in the query",
    "key.serializer": "the column key is written as it is, string or binary; prepare it in the query",
    "value.serializer": "the column value is written as it is, string or binary; prepare it in the query",
    "transactional.id": "every task has a separate one; use deliveryGuarantee=exactly-once and transactionalIdPrefix",
    "interceptor.classes": "JVM classes that may change records cannot run here; change columns in the query",
}

# Meanings of properties that differ between the sink and the client.
SINK_MEANINGS = {
    "linger.ms": "wait for a record batch to fill; by default a task waits until its last row",
    "buffer.memory": "approximate limit of the bytes that a task buffers or has in flight; a full buffer blocks "
    "further rows",
}

_FORMATS = ("keyformat", "valueformat")
_REGISTERED = tuple(name for name, spec in FORMATS.items() if spec.registered)
REGISTRY_PREFIX = "schema.registry."
_READER_VERSION = f"{REGISTRY_PREFIX}reader.version"


def _reader_version(text: str) -> ReaderVersion:
    if text.lower() in ("latest", "pinned"):
        return "latest" if text.lower() == "latest" else "pinned"
    if "=" not in text:
        return int(integer(1).parse(text))
    pairs = [pair.strip().rpartition("=") for pair in text.split(",")]
    versions = tuple((subject.strip(), int(integer(1).parse(number))) for subject, _, number in pairs)
    if len(dict(versions)) < len(versions):
        raise ValueError("a subject is there twice")
    return versions


_VERSION = Kind("latest, pinned, the number of a version, or SUBJECT=NUMBER for several", _reader_version)
_AUTO_REGISTER = f"{REGISTRY_PREFIX}auto.register.schemas"
_NORMALIZE = f"{REGISTRY_PREFIX}normalize.schemas"
# This project's options among the registry's properties: field and kind.
_REGISTRY_OPTIONS = {
    _READER_VERSION: ("reader_version", _VERSION),
    _AUTO_REGISTER: ("auto_register_schemas", BOOLEAN),
    _NORMALIZE: ("normalize_schemas", BOOLEAN),
}
_TRANSACTION_TIMEOUT = "transaction.timeout.ms"
# The brokers' default maximum (transaction.max.timeout.ms). A transaction is open from a task's first row until all
# other tasks are complete, so its timeout must exceed the longest batch.
TRANSACTION_TIMEOUT_MS = 900_000


@hide_variables
def row_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the column names of the rows. Spark asks for the schema before it tells if the query is a stream."""
    texts = {key.lower(): str(text) for key, text in options.items() if key.lower() in ("columns", "includeheaders")}
    entries = [entry for entry in OPTIONS if entry.name.lower() in texts and entry.use & READ]
    values = {entry.field: entry.kind.read(entry.name, texts[entry.name.lower()]) for entry in entries}
    return selection.row_columns(values.get("columns"), values.get("include_headers", False))


def uses_registry(options: Mapping[str, str]) -> bool:
    """Return True if keys or values have the ids of schemas in a registry."""
    return any(name.lower() in _FORMATS and str(text).strip().lower() in _REGISTERED for name, text in options.items())


def has_formats(options: Mapping[str, str]) -> bool:
    """Return True if keys or values are decoded, so that the columns depend on more than `columns`."""
    return any(name.lower() in _FORMATS for name in options)


@hide_variables
def parse_read_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Spark does not tell `DataSource.schema` whether it is a stream or a batch.

    An option for batches or for streams alone decides which rules apply. Without one, the options are refused only if
    the rules of both do so.

    Raises `ConfigurationError`: the same error that `parse_source_options` raises later.
    """
    names = {name.lower() for name in options}
    uses = [entry.use & READ for entry in OPTIONS if entry.name.lower() in names]
    with deferred_warnings():
        as_stream, as_batch = (_parsed_or_error(options, streaming=streaming) for streaming in (True, False))
    is_stream = Use.STREAM_READ in uses or isinstance(as_batch, ConfigurationError)
    options_read = as_stream if is_stream and Use.BATCH_READ not in uses else as_batch
    if isinstance(options_read, ConfigurationError):
        # Spark shows the whole traceback; the causes add nothing to the message.
        raise options_read.with_traceback(None) from None
    return options_read


def _parsed_or_error(options: Mapping[str, str], *, streaming: bool) -> SourceOptions | ConfigurationError:
    try:
        return parse_source_options(options, streaming=streaming)
    except ConfigurationError as error:
        return error


@hide_variables
@with_remedies()
def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a source. Raises `ConfigurationError` with the option and the remedy."""
    values, kafka = _read(options, Use.STREAM_READ if streaming else Use.BATCH_READ)
    if uses_registry(options):
        values.update(_registry_options(options, _READER_VERSION))
    client, consumer = parse_client(kafka), parse_consumer(kafka)
    reset = consumer.auto_offset_reset if "auto.offset.reset" in kafka else None
    if reset is None and not streaming:
        # With Kafka's default (latest), a batch would read nothing.
        consumer = dataclasses.replace(consumer, auto_offset_reset="earliest")
    parsed = SourceOptions(client=client, consumer=consumer, streaming=streaming, auto_offset_reset=reset, **values)
    check_source(parsed, options)
    return parsed


@hide_variables
@with_remedies()
def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a sink. Raises `ConfigurationError` with the option and the remedy."""
    values, kafka = _read(options, Use.WRITE)
    if uses_registry(options):
        values.update(_registry_options(options, _AUTO_REGISTER, _NORMALIZE))
    client = parse_client(kafka)
    guarantee = values.pop("delivery_guarantee", None)
    if guarantee == "none" and "acks" not in kafka:
        kafka = {"enable.idempotence": "false", **kafka, "acks": "0"}
    _check_transactions(guarantee, values, kafka)
    check_sink_formats(values)
    if guarantee == "exactly-once":
        _refuse_async_progress(options)
        kafka = {_TRANSACTION_TIMEOUT: str(TRANSACTION_TIMEOUT_MS), **kafka}
    producer = parse_producer(kafka)
    if "linger.ms" not in kafka:
        # A task flushes at its end; until then it waits for full record batches.
        producer = dataclasses.replace(producer, linger_ms=None)
    if guarantee is not None and producer.acks != (0 if guarantee == "none" else -1):
        raise ConfigurationError(
            f"deliveryGuarantee is {guarantee}, but {PREFIX}acks is {producer.acks}. Leave {PREFIX}acks out."
        )
    if guarantee == "exactly-once" and not producer.enable_idempotence:
        raise ConfigurationError(
            f"deliveryGuarantee is {guarantee}, but idempotence is off: {PREFIX}enable.idempotence, {PREFIX}retries or "
            f"{PREFIX}max.in.flight.requests.per.connection rules it out. Leave these out."
        )
    if guarantee is None and producer.acks == 1:
        warn_once(f"{PREFIX}acks is 1: records that only the leader has are lost if it fails")
    implied: Literal["none", "at-least-once"] = "none" if producer.acks == 0 else "at-least-once"
    parsed = SinkOptions(client=client, producer=producer, delivery_guarantee=guarantee or implied, **values)
    check_sink_types(parsed)
    return parsed


def _registry_options(options: Mapping[str, str], *own: str) -> dict[str, Any]:
    """Return the registry's configuration, and the values of this project's `own` options among its properties."""
    registry = {key.lower(): str(text) for key, text in options.items() if key.lower().startswith(REGISTRY_PREFIX)}
    if not registry:
        return {}
    # Only queries with a registry import its client.
    from protocol.schemas.registry_config import is_registry_secret, parse_registry

    read: dict[str, Any] = {}
    for name, (field, kind) in _REGISTRY_OPTIONS.items():
        if (text := registry.pop(name, None)) is None:
            continue
        if name in own:
            read[field] = kind.read(name, text, name)
        else:
            use = Use.WRITE if _READER_VERSION in own else READ
            warn_once(f"{name} has no effect: it is an option of {_description(use)}")
    read["registry"] = parse_registry(registry)
    for name in (name for name, text in registry.items() if is_registry_secret(name, text)):
        warn_once(
            f"{name} is shown by Spark in plans and its UI if its redaction does not know the name "
            "(docs/security.md#secrets). A reference such as ${env:NAME} instead of the value avoids that"
        )
    return read


def _check_transactions(guarantee: str | None, values: Mapping[str, Any], kafka: Mapping[str, str]) -> None:
    if guarantee == "exactly-once" and values.get("transactional_id_prefix") is None:
        raise ConfigurationError(
            "deliveryGuarantee is exactly-once, but there is no transactionalIdPrefix; set one that no other "
            "application uses.",
            name="transactionalIdPrefix",
        )
    if guarantee != "exactly-once":
        for name, is_set in (
            ("transactionalIdPrefix", "transactional_id_prefix" in values),
            (PREFIX + _TRANSACTION_TIMEOUT, _TRANSACTION_TIMEOUT in kafka),
        ):
            if is_set:
                warn_once(f"{name} has no effect without deliveryGuarantee exactly-once")


def _refuse_async_progress(options: Mapping[str, str]) -> None:
    """Refuse Spark's asynchronous progress tracking for exactly-once writes.

    After a restart, Spark would plan batches with other rows that the ledger already records as decided.
    """
    for name, text in options.items():
        if name.lower() == _ASYNC_PROGRESS and text.strip().lower() == "true":
            raise ConfigurationError(
                "deliveryGuarantee is exactly-once, but asyncProgressTrackingEnabled is true: after a restart Spark "
                "would plan batches with other rows than were written. Set asyncProgressTrackingEnabled to false, or "
                "use at-least-once.",
                name="asyncProgressTrackingEnabled",
            )


def _read(options: Mapping[str, str], use: Use) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the option values for `use`, by field name, and the Kafka properties without their prefix."""
    _warn_of_unredacted(options)
    values: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    registry = uses_registry(options)
    for key, text in options.items():
        lower = key.lower()
        if lower in _SPARK_OPTIONS or lower.startswith(_SPARK_TABLE_PREFIX):
            continue
        if registry and lower.startswith(REGISTRY_PREFIX):
            continue
        if lower in _PATHS:
            warn_once(f"{lower} has no effect; use {'topic' if use & Use.WRITE else 'subscribe'}")
        elif lower.startswith(PREFIX):
            name = lower.removeprefix(PREFIX)
            if name in FORBIDDEN and BY_NAME[name].role & _role(use):
                raise ConfigurationError(f"{lower} is forbidden: {FORBIDDEN[name]}.", name=lower)
            if name not in BY_NAME:
                refuse_other_name(key, [*_applicable_names(use), *property_names(_role(use))])
            kafka[name] = text
        elif entry := _find_entry(key, use):
            value = entry.kind.read(entry.name, str(text))
            if _applies_or_warn(entry, use):
                values[entry.field] = value
    return values, kafka


def _warn_of_unredacted(options: Mapping[str, str]) -> None:
    """Warn of a secret that Spark's UI shows: its redaction pattern matches neither a PEM key nor its property."""
    for key, text in options.items():
        if key.lower() in _NOT_REDACTED_BY_SPARK and not is_reference(str(text)):
            warn_once(
                f"{key.lower()} is shown by Spark in plans and its UI, unless spark.sql.redaction.options.regex has "
                "its name (docs/security.md#secrets). A reference ${dir:PATH:FILE} instead of the value avoids that"
            )


def _find_entry(key: str, use: Use) -> Option | None:
    """Return the entry of an option of reads, or of writes, or refused there; None, with a warning, for any other."""
    entries = [entry for entry in OPTIONS if entry.name.lower() == key.lower()]
    if not entries:
        warn_once(f"{key} has no effect: {why_ignored(key, _applicable_names(use), _role(use), FORBIDDEN)}")
        return None
    side = Use.WRITE if use & Use.WRITE else READ
    entry = next((entry for entry in entries if (entry.use | entry.refused_in) & side), None)
    if entry is None:
        _warn_of_other_use(entries[0], use)
    return entry


def _applicable_names(use: Use) -> list[str]:
    """Return the names of the options that apply to reads, or to writes."""
    side = Use.WRITE if use & Use.WRITE else READ
    return [option.name for option in OPTIONS if option.use & side and option.effect is Effect.APPLIES]


def _applies_or_warn(entry: Option, use: Use) -> bool:
    """Return whether an option applies; warn if it has no effect, raise `ConfigurationError` if it is refused here."""
    if entry.use & use and entry.effect is Effect.APPLIES:
        return True
    if entry.use & use:
        warn_once(f"{entry.name} has no effect: {entry.doc}")
    elif entry.refused_in & use:
        own_use, elsewhere = _description(use), _description(entry.use)
        raise ConfigurationError(
            f"{entry.name} is an option of {elsewhere}, not of {own_use}; leave it out.", name=entry.name
        )
    else:
        _warn_of_other_use(entry, use)
    return False


def _warn_of_other_use(entry: Option, use: Use) -> None:
    instead = {"topic": ". A source takes subscribe", "subscribe": ". A sink takes topic"}.get(entry.name, "")
    elsewhere, own_use = _description(entry.use), _description(use)
    warn_once(f"{entry.name} has no effect: it is an option of {elsewhere}, this is one of {own_use}{instead}")


def _description(use: Use) -> str:
    return " and ".join(word for member, word in USE_WORDS.items() if member & use)


def _role(use: Use) -> Role:
    return Role.PRODUCER if use & Use.WRITE else Role.CONSUMER
