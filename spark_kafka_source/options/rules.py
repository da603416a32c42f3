"""Rules between several options of a source: required, contradictory and ineffective combinations.

Values derived from several options are properties of `table.SourceOptions`. Used by `parsing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from protocol.base.once import warn_once
from protocol.errors import ConfigurationError
from protocol.schemas.formats import FORMATS, REGISTRY_SETTINGS, Format, TypeOptionNames, language_of
from protocol.settings.property_kinds import shown
from spark_kafka_source import error_messages
from spark_kafka_source.options import selection, start_positions
from spark_kafka_source.options.stray_options import PREFIX
from spark_kafka_source.options.table import SinkOptions, SourceOptions, declared_types

if TYPE_CHECKING:
    from protocol.schemas.registry_config import RegistryConfig

_TYPE_OPTIONS = TypeOptionNames(
    "valueTypes", "valueSubject", "valueSubjectNameStrategy", "valueSchema", "valueUnionNames"
)
_GLUE_SCHEMAS = "schema.registry.glue.schemas"
_FOR_PROTOBUF = (
    "recursive.fields.max.depth",
    "emit.default.values",
    "enums.as.ints",
    "upcast.unsigned.ints",
    "unwrap.primitive.wrapper.types",
    "retain.empty.message.types",
)


def check_source(options: SourceOptions, texts: Mapping[str, str]) -> None:
    """Check the rules: contradictions raise `ConfigurationError`, options without effect are warnings.

    `texts` holds the options as the user wrote them, for messages.
    """
    texts = {name.lower(): text for name, text in texts.items()}
    _check_topics(options)
    _check_group(options)
    _check_membership(options)
    start_option = _effective_option(options, "starting")
    _check_start_and_end(options, start_option, _effective_option(options, "ending"), texts)
    _check_bounds(options)
    _check_formats(options)
    _warn_ineffective(options, texts)


def _check_formats(options: SourceOptions) -> None:
    """Check that the formats of keys and values have what they need."""
    for part, (format, schema, subject) in _parts(options).items():
        if FORMATS[format].registered:
            has_types = part == "value" and bool(options.value_types)
            _check_registry(options, part, format, has_subject=bool(subject or schema or has_types))
        elif FORMATS[format].language is not None and schema is None:
            raise ConfigurationError(
                f"{part}Format is {format}, but there is no {part}Schema; set it, or use confluent-{format} if the "
                f"{part}s begin with the id of a schema in a registry.",
                name=f"{part}Schema",
            )
    _check_glue_languages(options)
    _check_types(options, _why_no_topic(options))
    if selection.VALUE_TYPE in options.row_columns and not options.has_value_types:
        raise ConfigurationError(
            "columns names valueType, but values have one type; name several in valueTypes or valueSubject, or set "
            "valueUnionNames=types for an Avro union.",
            name="columns",
        )
    names = [name for name in (selection.RAW, selection.ERROR) if name in options.row_columns]
    if names and options.on_decode_error != "null":
        raise ConfigurationError(
            f"columns names {names[0]}, but onDecodeError is {options.on_decode_error}; set onDecodeError to null.",
            name="onDecodeError",
        )
    _check_dead_letter_topic(options)


def _why_no_topic(options: SourceOptions) -> str:
    """Return why no subject follows from the topic; "" if the query reads one topic."""
    topics = options.subscribe or tuple(options.assign or ())
    return "" if len(topics) == 1 else f"the query reads {len(topics) or 'any number of'} topics"


def _check_types(options: SourceOptions | SinkOptions, why_no_topic: str) -> None:
    for name, problem in declared_types(options).contradictions(_TYPE_OPTIONS, options.value_schema, why_no_topic):
        raise ConfigurationError(f"{problem}.", name=name)


def _parts(options: SourceOptions) -> dict[str, tuple[Format, str | None, str | None]]:
    """Return the format, the schema and the subject of keys and of values."""
    return {
        "key": (options.key_format, options.key_schema, options.key_subject),
        "value": (options.value_format, options.value_schema, options.value_subject),
    }


def _check_dead_letter_topic(options: SourceOptions) -> None:
    """Require a dead letter topic that the query does not read, else each dead letter would become another one."""
    topic, pattern = options.dead_letter_topic, options.subscribe_pattern
    if not options.writes_dead_letters:
        return
    if topic is None:
        name = "onDecodeError" if options.on_decode_error == "dead-letter" else "onUnknownType"
        raise ConfigurationError(
            f"{name} is dead-letter, but there is no deadLetterTopic; set it.", name="deadLetterTopic"
        )
    if topic in (options.subscribe or options.assign or ()) or (pattern is not None and pattern.search(topic)):
        raise ConfigurationError(
            f"deadLetterTopic is {topic}, which this query reads: each dead letter would become another one. Name "
            "another topic, or exclude it from subscribePattern.",
            name="deadLetterTopic",
        )


def check_sink_formats(values: Mapping[str, Any]) -> None:
    """Check the formats of keys and values of a write. `values` holds the values of options by field."""
    value_format = values.get("value_format", "binary")
    if values.get("value_types") and not FORMATS[value_format].registered:
        raise ConfigurationError(
            f"valueTypes is set, and valueFormat is {value_format}; set valueFormat to confluent-avro, or another one "
            "with a registry.",
            name="valueFormat",
        )
    if "value_subject_name_strategy" in values and not values.get("value_types"):
        warn_once("valueSubjectNameStrategy has no effect without valueTypes")
    for part in ("key", "value"):
        format, schema = values.get(f"{part}_format", "binary"), values.get(f"{part}_schema")
        spec = FORMATS[format]
        needed = spec.language is not None and not spec.registered and not spec.written_without_schema
        if needed and schema is None:
            raise ConfigurationError(
                f"{part}Format is {format}, but there is no {part}Schema; set it.", name=f"{part}Schema"
            )
        if spec.registered:
            _require_registry(values.get("registry"), part, format, writes=True)
            if spec.registry == "glue" and values.get("auto_register_schemas"):
                raise ConfigurationError(
                    f"{part}Format is {format}, and schema.registry.auto.register.schemas is true, but schemas are not "
                    "registered in AWS Glue: leave the option out, and register them with aws glue create-schema.",
                    name="schema.registry.auto.register.schemas",
                )
            has_types = part == "value" and bool(values.get("value_types"))
            if values.get(f"{part}_subject") is None and values.get("topic") is None and not has_types:
                raise ConfigurationError(
                    f"{part}Format is {format}, and rows have their own topics: set {part}Subject.",
                    name=f"{part}Subject",
                )
        elif values.get(f"{part}_subject") is not None:
            warn_once(f"{part}Subject has no effect: {part}Format is {format}")
        if values.get(f"{part}_message_name") is not None and spec.language != "PROTOBUF":
            warn_once(f"{part}MessageName has no effect: {part}Format is {format}")
        if format == "binary" and schema is not None:
            warn_once(f"{part}Schema has no effect: {part}Format is binary")


def check_sink_types(options: SinkOptions) -> None:
    """Check the options of several types of values of a write."""
    _check_types(options, "" if options.topic is not None else "rows have their own topics")
    if options.value_subjects and not options.value_types and options.auto_register_schemas:
        raise ConfigurationError(
            "schema.registry.auto.register.schemas is true, but valueSubject does not name the types that would be "
            "registered: name them in valueTypes, or register their schemas and leave the option out.",
            name="schema.registry.auto.register.schemas",
        )
    if options.value_subjects and options.value_message_name is not None:
        warn_once("valueMessageName has no effect: values have several types")


def _require_registry(registry: RegistryConfig | None, part: str, format: str, *, writes: bool = False) -> None:
    """Raise `ConfigurationError` if there is no registry of the format's kind; a sink needs more than schemas by id."""
    kind = FORMATS[format].registry
    assert kind is not None
    setting = REGISTRY_SETTINGS[kind]
    if registry is None:
        raise ConfigurationError(f"{part}Format is {format}, but there is no {setting}; set it.", name=setting)
    if registry.kind != kind:
        own_setting = _GLUE_SCHEMAS if registry.glue_schemas else REGISTRY_SETTINGS[registry.kind]
        function = "encode the column with to_registry" if writes else "decode the column with from_registry"
        raise ConfigurationError(
            f"{part}Format is {format}, but {own_setting} is set, and one query uses one registry. Set {setting} "
            f"instead; or, if another column needs {own_setting}, set {part}Format to binary, and {function}.",
            name=f"{part}Format",
        )
    if writes and registry.glue_schemas:
        raise ConfigurationError(
            f"{part}Format is {format}, but {_GLUE_SCHEMAS} has schemas for reading only; set {setting} instead.",
            name=setting,
        )


def _check_registry(options: SourceOptions, part: str, format: str, *, has_subject: bool) -> None:
    _require_registry(options.registry, part, format)
    if options.registry is not None and options.registry.glue_schemas:
        _check_glue_schemas(options, part, format)
    if (why_no_topic := _why_no_topic(options)) and not has_subject:
        raise ConfigurationError(
            f"{part}Format is {format}, and {why_no_topic}: set {part}Subject, the subject with the schema that all "
            f"{part}s are resolved to.",
            name=f"{part}Subject",
        )


def _check_glue_schemas(options: SourceOptions, part: str, format: str) -> None:
    """Check that schemas by version id suffice: the schema to read with must be given, and that of one type."""
    if part == "value" and options.value_subjects:
        raise ConfigurationError(
            f"valueTypes or valueSubject names several types, whose schemas {_GLUE_SCHEMAS} does not have by name. Set "
            "schema.registry.glue.region instead. Only the records of an Avro union can be read without it: set "
            "valueSchema to the union, and valueUnionNames to types.",
            name=_GLUE_SCHEMAS,
        )
    if (options.value_schema if part == "value" else options.key_schema) is None:
        raise ConfigurationError(
            f"{part}Format is {format}, and {_GLUE_SCHEMAS} has schemas by version id only; set {part}Schema to the "
            "schema to read with.",
            name=f"{part}Schema",
        )


def _check_glue_languages(options: SourceOptions) -> None:
    """Refuse a schema by version id that no value can have been written with: it is none of the formats' languages."""
    formats = {format for format, _, _ in _parts(options).values() if FORMATS[format].registry == "glue"}
    languages = {FORMATS[format].language for format in formats}
    # Values of JSON are read whatever the schema that they were written with.
    if options.registry is None or "JSON" in languages:
        return
    for version_id, text in options.registry.glue_schemas:
        problems = list(filter(None, (_problem_of(format, text) for format in sorted(formats))))
        if len(problems) == len(formats):
            raise ConfigurationError(
                f"{_GLUE_SCHEMAS}: the schema {version_id} cannot be that of a value. {'; '.join(problems)}.",
                name=_GLUE_SCHEMAS,
            )


def _problem_of(format: str, text: str) -> str:
    try:
        language_of(format).writer_names(text, {}, None)
    except ConfigurationError as error:
        return f"{format}: {error}"
    return ""


def _warn_ineffective(options: SourceOptions, texts: Mapping[str, str]) -> None:
    """Warn of options that only have an effect together with others."""
    for name, applies, reason in _option_effects(options):
        if name.lower() in texts and not applies:
            warn_once(f"{name} has no effect{reason}")


def _option_effects(options: SourceOptions) -> Iterator[tuple[str, object, str]]:
    """Yield names of options, whether each has an effect, and why not."""
    parts = _parts(options)
    languages = {FORMATS[format].language for format, _, _ in parts.values()} - {None}
    schemas = [schema for format, schema, _ in parts.values() if FORMATS[format].registered]
    has_headers = any(FORMATS[format].registry == "confluent" for format, _, _ in parts.values())
    for part, (format, schema, _) in parts.items():
        spec, reason = FORMATS[format], f": {part}Format is {format}"
        yield f"{part}Subject", spec.registered, reason
        yield f"{part}Subject", schema is None or not spec.registered, f": {part}Schema is set"
        yield f"{part}Schema", spec.language, reason
        yield f"{part}Fields", spec.language, reason
        yield f"{part}MessageName", spec.language == "PROTOBUF", reason
    neither = ": neither keyFormat nor valueFormat"
    if schemas:  # else `parsing` warns of all options of the registry
        yield "schema.registry.reader.version", None in schemas, ": no schema is taken from the registry"
    dead_letters = "dead-letter" in (options.on_decode_error, options.on_unknown_type)
    yield "deadLetterTopic", dead_letters, ": neither onDecodeError nor onUnknownType is dead-letter"
    registered = FORMATS[options.value_format].registered
    yield "valueTypes", registered, f": valueFormat is {options.value_format}"
    yield "valueSubjectNameStrategy", options.value_types, " without valueTypes"
    is_avro = FORMATS[options.value_format].language == "AVRO"
    yield "valueUnionNames", is_avro, f": valueFormat is {options.value_format}"
    several = "several types in valueTypes or valueSubject, or valueUnionNames=types"
    yield "onUnknownType", options.has_value_types, f" without {several}"
    has_unknown_types = options.may_have_unknown_types or not options.has_value_types
    yield "onUnknownType", has_unknown_types, ": neither columns nor filter names value"
    yield "onDecodeError", languages, f"{neither} has a schema"
    decodes = options.may_fail_to_decode or not languages
    yield "onDecodeError", decodes, ": neither columns nor filter names a column that is decoded"
    yield "schemaIdLocation", has_headers, f"{neither} uses a registry of Confluent's kind"
    for name in _FOR_PROTOBUF:
        yield name, "PROTOBUF" in languages, f"{neither} is Protobuf"
    by_time = isinstance(options.start, start_positions.AtTime)
    yield "startingOffsetsByTimestampStrategy", by_time, " without startingTimestamp or startingOffsetsByTimestamp"
    delays = options.min_offsets_per_trigger is not None or not options.streaming
    yield "maxTriggerDelay", delays, " without minOffsetsPerTrigger"
    yield f"{PREFIX}max.processing.time.ms", False, ": tasks read all that they fetch"
    query, in_group = "stream" if options.streaming else "batch", options.start == "group" or options.commits
    yield f"{PREFIX}group.id", in_group, f": this {query} does not start from the group, and commits nothing"


def _check_topics(options: SourceOptions) -> None:
    topics = {"subscribe": options.subscribe, "subscribePattern": options.subscribe_pattern, "assign": options.assign}
    names = [name for name, value in topics.items() if value is not None]
    if not names:
        raise ConfigurationError(
            "There is no subscribe, subscribePattern or assign; give exactly one of them to say what to read. "
            "The option topic is for writes."
        )
    if len(names) > 1:
        raise ConfigurationError(f"{' and '.join(names)} exclude each other; give exactly one of them.")


def _check_group(options: SourceOptions) -> None:
    if options.consumer.group_id is None and (options.start == "group" or options.commit_offsets):
        setting = "startingOffsets is group" if options.start == "group" else "commitOffsets is true"
        raise ConfigurationError(f"{setting}, but there is no group; set kafka.group.id.")
    if options.auto_offset_reset is not None and options.start != "group":
        raise ConfigurationError(
            "kafka.auto.offset.reset says where to start when the group has no offset, but this query does not start "
            "from a group. Set startingOffsets instead, or kafka.group.id with startingOffsets=group."
        )
    if options.auto_offset_reset == "latest" and not options.streaming:
        raise ConfigurationError(
            "kafka.auto.offset.reset is latest: a batch cannot start at the latest offset; use earliest or none."
        )
    if options.commit_offsets and not options.streaming:
        raise ConfigurationError(
            "commitOffsets is true, but a batch read cannot commit: Spark does not report whether its query completed. "
            "Use a stream with trigger(availableNow=True), or leave commitOffsets out."
        )


def _check_membership(options: SourceOptions) -> None:
    setting = f"{PREFIX}group.protocol is {options.consumer.group_protocol}"
    if options.consumer.group_protocol != "none" and not options.streaming:
        warn_once(f"{setting}, which has no effect: a batch reads all selected partitions, and joins no group")
    if not options.is_member:
        return
    if options.consumer.group_id is None:
        raise ConfigurationError(f"{setting}, but there is no group; set kafka.group.id.")
    if options.assign is not None:
        raise ConfigurationError(
            f"{setting}, so the group assigns partitions, but assign names some; use subscribe, or leave out the "
            "protocol."
        )
    if options.commit_offsets is False:
        raise ConfigurationError(
            f"{setting}, but commitOffsets is false: the next owner of a partition would read again all that this "
            "query has read. Leave out one of the two."
        )


def _effective_option(options: SourceOptions, side: str) -> str:
    """Return the name of the option that decides the start or the end (`side`: "starting" or "ending").

    It is the first one that is set; options with times precede offsets, as in Spark's connector.
    """
    values = {
        f"{side}Timestamp": getattr(options, f"{side}_timestamp"),
        f"{side}OffsetsByTimestamp": getattr(options, f"{side}_offsets_by_timestamp"),
        f"{side}Offsets": getattr(options, f"{side}_offsets"),
    }
    names = [name for name, value in values.items() if value is not None]
    for name in names[1:]:
        warn_once(f"{name} has no effect: {names[0]} is given, which comes before it")
    return names[0] if names else f"{side}Offsets"


def _check_start_and_end(options: SourceOptions, start_option: str, end_option: str, texts: Mapping[str, str]) -> None:
    start, end = options.start, options.end
    topics = (options.subscribe, options.subscribe_pattern, options.assign)

    def check_rule(name: str, error_class: str | None, rule: Callable[..., None], *arguments: Any) -> None:
        try:
            rule(*arguments)
        except ValueError as error:
            message = f"{name} is {shown(texts.get(name.lower(), ''))}, which does not fit: {error}."
            message = error_messages.with_error_class(error_class, message) if error_class else message
            raise ConfigurationError(message, name=name) from error

    check_rule(start_option, _mismatch_class(start), start_positions.check_fits, start, *topics)
    if options.streaming:
        return
    check_rule(start_option, None, start_positions.check_batch_start, start)
    check_rule(end_option, _mismatch_class(end), start_positions.check_fits, end, *topics)
    mismatch = error_messages.START_AND_END_DO_NOT_MATCH
    check_rule(end_option, mismatch, start_positions.check_same_partitions, start, end, start_option)
    check_rule(end_option, error_messages.UNRESOLVED_START_AFTER_END, start_positions.check_order, start, end)


def _mismatch_class(spec: start_positions.OffsetSpec) -> str:
    by_time = isinstance(spec, start_positions.AtTime)
    return error_messages.TIMESTAMPS_DO_NOT_MATCH_ASSIGNED if by_time else error_messages.OFFSETS_DO_NOT_MATCH_ASSIGNED


def _check_bounds(options: SourceOptions) -> None:
    offsets, tasks = ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"), ("minPartitions", "maxInputPartitions")
    for (low, high), minimum, maximum in (
        (offsets, options.min_offsets_per_trigger, options.max_offsets_per_trigger),
        (tasks, options.min_partitions, options.max_input_partitions),
    ):
        if minimum is not None and maximum is not None and minimum > maximum:
            raise ConfigurationError(f"{low} is {minimum}, more than {high} ({maximum}); lower it or raise the other.")
