"""The table of options: each entry is also the dataclass field for the option's value.

An entry has the option's name, the queries that it is for, its allowed values, its meaning and its default. `parsing`
uses the entries, `markdown` prints them (`python -m spark_kafka_source.options` makes docs/options.md), and readers and
writers receive the dataclasses below. Values derived from several options are properties here; checks across options
are in `rules`. Spark pickles the dataclasses for its executors.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from protocol.config import ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig
from protocol.schemas.formats import FORMATS, WRITTEN, SubjectNameStrategy, ValueTypes, parse_subject
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.settings.property_kinds import BOOLEAN, MAX_INT64, NONEMPTY, Effect, Kind, integer, one_of
from spark_kafka_source.options import selection, start_positions
from spark_kafka_source.options.partitions import ByPartition, checked_topic
from spark_kafka_source.options.scalars import duration_ms, id_prefix, size_bytes, timestamp_ms
from spark_kafka_source.options.start_positions import OffsetSpec, at_time

if TYPE_CHECKING:
    from protocol.filters.condition import Condition
    from protocol.schemas.formats import Format
    from protocol.schemas.reader_schema import Part, ReaderSchema
    from protocol.schemas.registry_config import RegistryConfig

# Of several subjects: pairs of subject and version.
ReaderVersion = Literal["latest", "pinned"] | int | tuple[tuple[str, int], ...]


class Use(enum.Flag):
    """The kinds of query that an option is for."""

    STREAM_READ = enum.auto()
    BATCH_READ = enum.auto()
    WRITE = enum.auto()


NOWHERE = Use(0)
READ = Use.STREAM_READ | Use.BATCH_READ
USE_WORDS = {Use.STREAM_READ: "streaming reads", Use.BATCH_READ: "batch reads", Use.WRITE: "writes"}


@dataclass(frozen=True)
class Option:
    """One entry of the table.

    `name`: the option in the spelling of the documentation.
    `use`: the queries that the option is for. In other queries it is a warning.
    `kind`: the allowed values and their parser.
    `doc`: the meaning, for docs/options.md.
    `default`: the default; None if there is none, or if `default_text` describes it.
    `default_text`: a description of the default, for docs/options.md.
    `refused_in`: the queries in which the option is an error.
    `effect`: the consequence of setting the option.
    `field`: the dataclass field that holds the value.
    """

    name: str
    use: Use
    kind: Kind
    doc: str
    default: Any = None
    default_text: str = ""
    refused_in: Use = NOWHERE
    effect: Effect = Effect.APPLIES
    field: str = ""


def _option(use: Use, name: str, kind: Kind, doc: str, default: Any = None, **more: Any) -> Any:
    """Return a dataclass field with its entry; the parameters are those of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(name, use, kind, doc, default, **more)})


_read, _stream = partial(_option, READ), partial(_option, Use.STREAM_READ)
_batch, _write = partial(_option, Use.BATCH_READ), partial(_option, Use.WRITE)

_OFFSETS_JSON = '{"orders": {"0": 23, "1": -1}}'
_POSITIVE = integer(1, MAX_INT64)
_TIMESTAMP = Kind("milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z", timestamp_ms)
_TIMESTAMPS = Kind(
    'JSON like {"orders": {"0": 1767225600000, "1": "2026-01-31T12:00:00Z"}}', start_positions.offsets_by_timestamp
)
_DURATION = Kind("a number with the unit us, ms, s, m, min, h or d; without a unit, milliseconds", duration_ms)
_BYTES = Kind("a number with b, k, m, g or t (powers of 1024); without a unit, bytes; at least 1", size_bytes)
_SCHEMA = Kind("a schema, or file:PATH of one", selection.schema_text)
_FORMAT = one_of(*FORMATS)
_WRITE_FORMAT = one_of(*WRITTEN)
_FIELDS = Kind("field names, separated by commas", selection.fields)
_TYPE_NAMES = Kind("full names of records, separated by commas", selection.fields)
_STRATEGY = one_of("TopicRecordNameStrategy", "RecordNameStrategy")
_DELIVERY = one_of("at-least-once", "exactly-once", "none")
_PREFIX = Kind("at most 200 letters, digits, `.`, `_` and `-`", id_prefix)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The parsed options of a read.

    `auto_offset_reset` is `kafka.auto.offset.reset`, or None if it is not set. `registry` and `reader_version` are
    `schema.registry.*`. `driver.reader_schemas` sets the others when the query is planned: `schemas` are the schemas of
    decoded columns, `type_schema` is that of several types of values, `condition` is the parsed `filter`, and
    `condition_schemas` are the schemas of what it names. Offsets
    are topic -> partition -> offset, where -1 is latest and -2 earliest. `subscribe_pattern` is for `search` in topic
    names.
    """

    client: ClientConfig
    consumer: ConsumerConfig
    streaming: bool
    auto_offset_reset: OffsetReset | None = None
    registry: RegistryConfig | None = None
    reader_version: ReaderVersion = "pinned"
    schemas: tuple[tuple[Part, ReaderSchema], ...] = ()
    type_schema: ReaderSchema | None = None
    condition: Condition | None = None
    condition_schemas: tuple[tuple[Part, ReaderSchema], ...] = ()

    subscribe: tuple[str, ...] | None = _read(
        "subscribe",
        Kind("topic names, separated by commas", selection.subscribe),
        "the topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed",
    )
    subscribe_pattern: re.Pattern[str] | None = _read(
        "subscribePattern",
        Kind("a regular expression with the same meaning in Java and Python", selection.subscribe_pattern),
        "the topics to read: a match anywhere in the name counts (`^` and `$` anchor it). Topics created later are "
        "included, Kafka's internal topics never",
    )
    assign: selection.Assignment | None = _read(
        "assign", Kind('JSON like {"orders": [0, 1]}', selection.assign), "the partitions to read"
    )
    starting_offsets: OffsetSpec | None = _read(
        "startingOffsets",
        Kind(f"earliest, latest, group, or JSON like {_OFFSETS_JSON}", start_positions.starting_offsets),
        "the start of a new query; a query with a checkpoint resumes there. JSON must name every partition; -2 is "
        "earliest, -1 latest, and keys with `@` are ignored, so offsets from a checkpoint are accepted. `group`: "
        "the offsets of `kafka.group.id`; a partition without one starts at `kafka.auto.offset.reset`. A group offset "
        "that is not in the log is replaced by `kafka.auto.offset.reset` if set. If it is not set, the query fails, or "
        "with `failOnDataLoss` false starts at the nearest offset in the log. Partitions found later are read from "
        "their earliest offset. A batch cannot start at latest",
        default_text="streams: group with `kafka.group.id`, else latest; batches: earliest, with a group too",
    )
    starting_offsets_by_timestamp: ByPartition | None = _read(
        "startingOffsetsByTimestamp",
        _TIMESTAMPS,
        "a new query starts in each partition at the first record with this timestamp or a later one. "
        "`startingOffsets` then has no effect",
    )
    starting_timestamp: int | None = _read(
        "startingTimestamp",
        _TIMESTAMP,
        "the same with one time for all partitions. `startingOffsetsByTimestamp` and `startingOffsets` then have no "
        "effect",
    )
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"] = _read(
        "startingOffsetsByTimestampStrategy",
        one_of("error", "latest"),
        "for a partition without a record that new: fail, or start at its end",
        default="error",
    )
    ending_offsets: OffsetSpec | None = _batch(
        "endingOffsets",
        Kind(f"latest, or JSON like {_OFFSETS_JSON}", start_positions.ending_offsets),
        "the end of a batch (exclusive). In JSON -1 is latest; -2 is not allowed; keys with `@` are ignored",
        default_text="latest",
        refused_in=Use.STREAM_READ,
    )
    ending_offsets_by_timestamp: ByPartition | None = _batch(
        "endingOffsetsByTimestamp",
        _TIMESTAMPS,
        "a batch ends in each partition before the first record with this timestamp or a later one, or at the log end. "
        "`endingOffsets` then has no effect",
        refused_in=Use.STREAM_READ,
    )
    ending_timestamp: int | None = _batch(
        "endingTimestamp",
        _TIMESTAMP,
        "the same with one time for all partitions. `endingOffsetsByTimestamp` and `endingOffsets` then have no effect",
        refused_in=Use.STREAM_READ,
    )
    commit_offsets: bool | None = _read(
        "commitOffsets",
        BOOLEAN,
        "whether offsets are committed to `kafka.group.id` after their micro-batch completes. A batch read never "
        "commits: Spark does not report whether its query completed",
        default_text="true for a stream with `kafka.group.id`",
    )
    max_offsets_per_trigger: int | None = _stream(
        "maxOffsetsPerTrigger",
        _POSITIVE,
        "the approximate number of offsets of a micro-batch, divided among the partitions in proportion to their lag",
    )
    max_bytes_per_trigger: int | None = _stream(
        "maxBytesPerTrigger",
        _BYTES,
        "the approximate number of bytes of a micro-batch in Kafka's log: compressed, if producers compress. In every "
        "trigger the driver estimates it from the sizes of some record batches at the position of each partition. "
        "With `maxOffsetsPerTrigger` the lower limit applies",
    )
    min_offsets_per_trigger: int | None = _stream(
        "minOffsetsPerTrigger",
        _POSITIVE,
        "a trigger with fewer new offsets waits for more. The first trigger of a run never waits, nor does a run with "
        "the trigger availableNow or once, or a trigger that finds records lost other than by retention",
    )
    max_trigger_delay_ms: int = _stream(
        "maxTriggerDelay",
        _DURATION,
        "the maximum time without a batch because of `minOffsetsPerTrigger`",
        default=15 * 60_000,
        default_text="15m",
    )
    max_records_per_partition: int | None = _read(
        "maxRecordsPerPartition",
        _POSITIVE,
        "the maximum number of offsets of one range. Larger ranges are split, before `minPartitions` applies",
    )
    min_partitions: int | None = _read(
        "minPartitions",
        integer(1),
        "the approximate number of tasks, if there are fewer partitions with new records: large ranges are split",
    )
    max_input_partitions: int | None = _read(
        "maxInputPartitions",
        integer(1),
        "the maximum number of tasks: ranges are combined, first those with the same leader, so that all tasks have "
        "about as many offsets. It also limits `minPartitions` and `maxRecordsPerPartition`",
    )
    columns: tuple[str, ...] | None = _read(
        "columns",
        Kind("column names, separated by commas", selection.columns),
        "the columns of the rows, in this order; other columns are neither decoded nor passed to Spark",
        default_text="all; `headers` only with `includeHeaders`",
    )
    filter: str | None = _read(
        "filter",
        Kind("a condition in Spark's SQL", str.strip),
        "the rows to read, such as `headers['type'] = 'order' AND partition < 8`; others are left out in the tasks, "
        "before they are passed to Spark. Columns that only the filter names are not passed on. See "
        "[filters.md](filters.md)",
    )
    fail_on_data_loss: bool = _read(
        "failOnDataLoss",
        BOOLEAN,
        "whether the query fails if records that it should read are gone. If false, it skips and logs them",
        default=True,
    )
    on_topic_recreated: Literal["fail", "earliest"] | None = _stream(
        "onTopicRecreated",
        one_of("fail", "earliest"),
        "for a running query whose topic was deleted and recreated under its name: fail, or read the new topic from "
        "its earliest offset (with `kafka.group.protocol=consumer` from the group's offset, if it has one). The unread "
        "records of the old topic are lost in both cases. A topic that does not exist for half a second, or longer, "
        "counts as deleted, which is for `failOnDataLoss`",
        default_text="fail; with `failOnDataLoss` false: earliest",
    )
    include_headers: bool = _read("includeHeaders", BOOLEAN, "whether the rows have a column `headers`", default=False)
    fetch_offset_num_retries: int = _read(
        "fetchOffset.numRetries",
        integer(0),
        "the driver retries requests for offsets and metadata for `kafka.default.api.timeout.ms`, and that time again "
        "for each of these retries; then the query fails. Until a broker has answered the process, the query fails "
        "after 30 s, or `kafka.request.timeout.ms` if longer",
        default=3,
    )
    fetch_offset_retry_interval_ms: int = _read(
        "fetchOffset.retryIntervalMs",
        integer(0),
        "milliseconds that each of these retries adds; the delays between requests follow `kafka.retry.backoff.ms`",
        default=1_000,
    )
    poll_timeout_ms: int = _read(
        "kafkaConsumer.pollTimeoutMs",
        integer(1),
        "the time in milliseconds after which a task fails if records of its range do not arrive",
        default=120_000,
    )

    key_format: Format = _read("keyFormat", _FORMAT, "as `valueFormat`, for keys", default="binary")
    value_format: Format = _read(
        "valueFormat",
        _FORMAT,
        "the format of values, which decides the type of the column `value`: binary, string, json, avro or protobuf "
        "(all values have `valueSchema`), or these with a registry: each value begins with the id of its schema, with "
        "confluent-avro in the registry of `schema.registry.url`, with glue-avro in AWS Glue's registry. See "
        "[schemas.md](schemas.md)",
        default="binary",
    )
    key_schema: str | None = _read("keySchema", _SCHEMA, "as `valueSchema`, for keys")
    value_schema: str | None = _read(
        "valueSchema",
        _SCHEMA,
        "the schema of all values with `valueFormat` json (a schema of Spark: `id BIGINT, tags ARRAY<STRING>`, or the "
        "JSON of a `StructType`; or a JSON Schema), avro (JSON) or protobuf (the text of a `.proto` file, or a file of "
        "`protoc --descriptor_set_out`); with a registry the schema that they are resolved to, instead of a version of "
        "the subject",
    )
    key_message_name: str | None = _read("keyMessageName", NONEMPTY, "as `valueMessageName`, for keys")
    value_message_name: str | None = _read(
        "valueMessageName",
        NONEMPTY,
        "the message of the Protobuf schema that values are, with or without its package",
        default_text="the first message of the schema",
    )
    recursive_fields_max_depth: int = _read(
        "recursive.fields.max.depth",
        integer(1, 10),
        "how often a Protobuf message may contain itself in the column; fields below this depth are left out",
        default=-1,
        default_text="messages that contain themselves are refused",
    )
    emit_default_values: bool = _read(
        "emit.default.values",
        BOOLEAN,
        "whether a Protobuf field of proto3 that has no `optional` is zero or empty instead of null when it is absent",
        default=False,
    )
    enums_as_ints: bool = _read(
        "enums.as.ints", BOOLEAN, "whether Protobuf enums are numbers instead of texts", default=False
    )
    upcast_unsigned_ints: bool = _read(
        "upcast.unsigned.ints",
        BOOLEAN,
        "whether `uint32` of Protobuf becomes bigint and `uint64` decimal(20, 0), instead of int and bigint, in which "
        "the largest numbers are negative",
        default=False,
    )
    unwrap_wrappers: bool = _read(
        "unwrap.primitive.wrapper.types",
        BOOLEAN,
        "whether wrappers such as `google.protobuf.Int64Value` become their values instead of structs",
        default=False,
    )
    retain_empty_messages: bool = _read(
        "retain.empty.message.types",
        BOOLEAN,
        "whether Protobuf messages without fields become structs with a field that is always null, instead of being "
        "left out",
        default=False,
    )
    key_subject: str | None = _read("keySubject", NONEMPTY, "as `valueSubject`, for keys")
    value_subject: str | None = _read(
        "valueSubject",
        NONEMPTY,
        "the subject whose latest version is the schema of the column `value`. Several subjects, separated by commas: "
        "`value` becomes a struct with a field for each type of records",
        default_text="the topic's name and `-value`, with glue-avro the topic's name, if one topic is read",
    )
    value_types: tuple[str, ...] = _read(
        "valueTypes",
        _TYPE_NAMES,
        "the types of records to read from topics with several, such as `com.shop.Order,com.shop.Refund`: their "
        "subjects follow from `valueSubjectNameStrategy`",
        default=(),
        default_text="one type, or those of `valueSubject`",
    )
    value_subject_name_strategy: SubjectNameStrategy = _read(
        "valueSubjectNameStrategy",
        _STRATEGY,
        "how Confluent's serialisers have named the subjects of `valueTypes`: by topic and record, or by record",
        default="TopicRecordNameStrategy",
    )
    value_union_names: Literal["members", "types"] = _read(
        "valueUnionNames",
        one_of("members", "types"),
        "for values whose Avro schema is a union: members: the fields `member0`, `member1`, as of `from_avro`; types: "
        "all members are records, and `value` has a field for each with its name, as with `valueTypes`",
        default="members",
        refused_in=Use.WRITE,
    )
    on_unknown_type: Literal["fail", "null", "skip", "dead-letter"] = _read(
        "onUnknownType",
        one_of("fail", "null", "skip", "dead-letter"),
        "for a record of a type that is not to be read: fail; null in all fields; skip: it is no row, and counted in "
        "the metric `records-filtered-total`; or dead-letter: it is written to `deadLetterTopic`, and is no row",
        default="fail",
    )
    key_fields: tuple[str, ...] = _read("keyFields", _FIELDS, "as `valueFields`, for keys", default=())
    value_fields: tuple[str, ...] = _read(
        "valueFields",
        _FIELDS,
        "the fields of the record in the column `value`; others are skipped, not decoded",
        default=(),
        default_text="all",
    )
    schema_id_location: Literal["prefix", "header"] = _read(
        "schemaIdLocation",
        one_of("prefix", "header"),
        "where the schema of a key or value is: an id in its first bytes, or an id or GUID in the headers "
        "`__key_schema_id` and `__value_schema_id` (with header, keys and values without them may have the prefix)",
        default="prefix",
    )
    on_decode_error: Literal["fail", "null", "dead-letter"] = _read(
        "onDecodeError",
        one_of("fail", "null", "dead-letter"),
        "for a key or value that does not decode: fail; null with a warning (`columns` can then name `_raw`, the "
        "value's bytes, and `_error`); or dead-letter: the record is written to `deadLetterTopic`, and is no row",
        default="fail",
    )
    dead_letter_topic: str | None = _read(
        "deadLetterTopic",
        Kind("the name of a topic", checked_topic),
        "the topic for records that do not decode, with their bytes, headers and timestamp, and the reason in headers. "
        "Written at least once, before the task ends; `pykafka replay` sends them back",
    )

    def protobuf(self, part: Part) -> ProtobufSettings:
        """Return how Protobuf keys or values are read."""
        return ProtobufSettings(
            self.key_message_name if part == "key" else self.value_message_name,
            self.recursive_fields_max_depth,
            self.emit_default_values,
            self.enums_as_ints,
            self.upcast_unsigned_ints,
            self.unwrap_wrappers,
            self.retain_empty_messages,
        )

    @property
    def decoded(self) -> tuple[Part, ...]:
        """The columns that have another format than binary."""
        formats: dict[Part, Format] = {"key": self.key_format, "value": self.value_format}
        return tuple(part for part, format in formats.items() if format != "binary" and part in self.row_columns)

    def _reads(self, *columns: str) -> bool:
        """Return True if the rows have one of the columns, or the filter may name it."""
        return any(name in self.row_columns or self.filter_may_name(name) for name in columns)

    def filter_may_name(self, column: str) -> bool:
        """Return False if the filter does not name a column; a text in it may have the same word."""
        return self.filter is not None and re.search(rf"\b{column}\b", self.filter, re.IGNORECASE) is not None

    @property
    def may_fail_to_decode(self) -> bool:
        """True if `onDecodeError` has an effect: tasks decode keys or values with a schema, or determine types."""
        key, value = FORMATS[self.key_format].language, FORMATS[self.value_format].language
        return bool((key and self._reads("key")) or (value and self._reads("value", selection.VALUE_TYPE)))

    @property
    def may_have_unknown_types(self) -> bool:
        """True if `onUnknownType` has an effect: tasks decode values of several types."""
        return self.has_value_types and self._reads("value")

    @property
    def writes_dead_letters(self) -> bool:
        """True if tasks may write dead letters: an action is dead-letter, and has an effect."""
        actions = ((self.on_decode_error, self.may_fail_to_decode), (self.on_unknown_type, self.may_have_unknown_types))
        return ("dead-letter", True) in actions

    @property
    def value_subjects(self) -> tuple[str, ...]:
        """The subjects of several types of values; empty: there is one type."""
        return declared_types(self).subjects(next(iter(self.subscribe or self.assign or ()), ""))

    @property
    def has_union_types(self) -> bool:
        """True if the types of values are the records of one Avro union."""
        return self.value_union_names == "types" and FORMATS[self.value_format].language == "AVRO"

    @property
    def needs_schemas(self) -> bool:
        """True if `driver/reader_schemas.py` has a schema to resolve, or a filter to parse."""
        return bool(self.decoded) or self.filter is not None

    @property
    def has_value_types(self) -> bool:
        """True if the column `value` has a field for each of several types."""
        return bool(self.value_subjects) or self.has_union_types

    @property
    def registered_schemas(self) -> dict[str, ReaderSchema]:
        """The schemas from a registry, by column; those of several subjects also by field, as in `value.Order`.

        Those of columns that only the filter names are among them.
        """
        schemas = {
            name: schema
            for part, column in (dict(self.condition_schemas) | dict(self.schemas)).items()
            for name, schema in (
                [(f"{part}.{field}", schema) for field, schema in column.types]
                if column.types and column.version is None
                else [(part, column)]
            )
        }
        return {name: schema for name, schema in schemas.items() if schema.version is not None}

    @property
    def schema_versions(self) -> dict[str, int]:
        """The version of each schema from a registry, for the checkpoint."""
        return {name: schema.version or 0 for name, schema in self.registered_schemas.items()}

    @property
    def start(self) -> OffsetSpec:
        """The start of a new query. `consumer.auto_offset_reset` applies to `group` only."""
        default: OffsetSpec = (
            "earliest" if not self.streaming else "latest" if self.consumer.group_id is None else "group"
        )
        times = at_time("starting", self.starting_timestamp, self.starting_offsets_by_timestamp)
        return times or self.starting_offsets or default

    @property
    def end(self) -> OffsetSpec:
        """The end of a batch."""
        times = at_time("ending", self.ending_timestamp, self.ending_offsets_by_timestamp)
        return times or self.ending_offsets or "latest"

    @property
    def group_out_of_range(self) -> Literal["fail", "nearest", "earliest", "latest"]:
        """The start if the group's offset is not in the log.

        The default never skips records that are in the log: only `kafka.auto.offset.reset` does so.
        """
        if self.auto_offset_reset is None:
            return "fail" if self.fail_on_data_loss else "nearest"
        return "fail" if self.auto_offset_reset == "none" else self.auto_offset_reset

    @property
    def commits(self) -> bool:
        """True if the query commits its offsets to its group."""
        return self.streaming and self.consumer.group_id is not None and self.commit_offsets is not False

    @property
    def is_member(self) -> bool:
        """True if the query joins its group and shares the partitions with the other members."""
        return self.streaming and self.consumer.group_protocol != "none"

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the rows, in order."""
        return selection.row_columns(self.columns, self.include_headers)

    @property
    def fail_on_topic_recreated(self) -> bool:
        """True if the query fails when a topic was deleted and recreated."""
        return self.fail_on_data_loss if self.on_topic_recreated is None else self.on_topic_recreated == "fail"

    @property
    def offsets_timeout_ms(self) -> int:
        """The time limit of the driver for metadata and offsets; then the query fails."""
        once = self.client.default_api_timeout_ms
        return once + self.fetch_offset_num_retries * (once + self.fetch_offset_retry_interval_ms)


def declared_types(options: SourceOptions | SinkOptions) -> ValueTypes:
    """Return the options on types of values; they have no effect without a registry."""
    if not FORMATS[options.value_format].registered:
        return ValueTypes()
    subject, strategy = parse_subject(options.value_subject), options.value_subject_name_strategy
    in_union = isinstance(options, SourceOptions) and options.has_union_types
    return ValueTypes(options.value_types, subject, strategy, in_union)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The parsed options of a write; `topic` None means that every row has a topic.

    `registry`, `auto_register_schemas` and `normalize_schemas` are `schema.registry.*`.
    """

    @property
    def encoded(self) -> tuple[Part, ...]:
        """The columns that have another format than binary."""
        formats: dict[Part, str] = {"key": self.key_format, "value": self.value_format}
        return tuple(part for part, format in formats.items() if format != "binary")

    @property
    def value_subjects(self) -> tuple[str, ...]:
        """The subjects of several types of values; empty: there is one type."""
        return declared_types(self).subjects(self.topic or "")

    client: ClientConfig
    producer: ProducerConfig
    registry: RegistryConfig | None = None
    auto_register_schemas: bool = False
    normalize_schemas: bool = False

    include_headers: bool = _write(
        "includeHeaders", BOOLEAN, "accepted, but a column `headers` is always written", default=False
    )
    topic: str | None = _write(
        "topic",
        Kind("the name of a topic", checked_topic),
        "the topic of all rows; it overrides a column `topic`. Without it that column is required",
    )
    delivery_guarantee: Literal["at-least-once", "exactly-once", "none"] | None = _write(
        "deliveryGuarantee",
        _DELIVERY,
        "at-least-once: all in-sync replicas acknowledge (acks=all), retries make no duplicates, a batch that Spark "
        "repeats is written again. exactly-once: in transactions, so that consumers with "
        "`isolation.level=read_committed` see every row of a stream once ([delivery.md](delivery.md)). none: no "
        "acknowledgements (acks=0), records can get lost",
        default_text="at-least-once; with `kafka.acks` 0: none",
    )
    key_format: Format = _write("keyFormat", _WRITE_FORMAT, "as `valueFormat`, for keys", default="binary")
    value_format: Format = _write(
        "valueFormat",
        _WRITE_FORMAT,
        "binary: the column `value` is string or binary, and written as it is. json: as `to_json` "
        "writes it. avro, protobuf: with `valueSchema`. confluent-json, glue-json and so on: behind the id of a "
        "schema in a registry ([schemas.md](schemas.md))",
        default="binary",
    )
    key_schema: str | None = _write("keySchema", _SCHEMA, "as `valueSchema`, for keys")
    value_schema: str | None = _write(
        "valueSchema",
        _SCHEMA,
        "the schema to write with; with a registry it must be a version of the subject",
        default_text="with a registry the subject's latest version",
    )
    key_message_name: str | None = _write("keyMessageName", NONEMPTY, "as `valueMessageName`, for keys")
    value_message_name: str | None = _write(
        "valueMessageName",
        NONEMPTY,
        "the message of the Protobuf schema to write, with or without its package",
        default_text="the first message of the schema",
    )
    key_subject: str | None = _write("keySubject", NONEMPTY, "as `valueSubject`, for keys")
    value_subject: str | None = _write(
        "valueSubject",
        NONEMPTY,
        "the subject of the schema. Several subjects, separated by commas: `value` is a struct with a field for each "
        "type of records",
        default_text="the topic's name and `-value`, with glue-avro the topic's name, if the option `topic` is set",
    )
    value_types: tuple[str, ...] = _write(
        "valueTypes",
        _TYPE_NAMES,
        "the types of records to write, such as `com.shop.Order,com.shop.Refund`: `value` is a struct with a field for "
        "each, of which one is not null in a row; a column `valueType`, if there is one, names it. Their subjects "
        "follow from `valueSubjectNameStrategy`",
        default=(),
        default_text="one type, or those of `valueSubject`",
    )
    value_subject_name_strategy: SubjectNameStrategy = _write(
        "valueSubjectNameStrategy",
        _STRATEGY,
        "how the subjects of `valueTypes` are named, as by Confluent's serialisers: by topic and record, or by record",
        default="TopicRecordNameStrategy",
    )
    transactional_id_prefix: str | None = _write(
        "transactionalIdPrefix",
        _PREFIX,
        "required for exactly-once: the prefix of the query's transactional ids and groups, which are PREFIX-QUERYID "
        "and PREFIX-QUERYID-TASK. ACLs must allow both transactional ids and groups",
    )


_WITHOUT_EFFECT = (
    Option(
        "groupIdPrefix",
        READ,
        Kind("any text", str),
        "no group name is generated; set `kafka.group.id` to have offsets committed",
        effect=Effect.NO_EFFECT,
    ),
    Option(
        "convert.any.fields.to.json",
        READ,
        one_of("false", otherwise="a field of google.protobuf.Any is a struct of type_url and value; leave this out"),
        "a field of `google.protobuf.Any` is a struct of `type_url` and `value`; true is refused",
        effect=Effect.NO_EFFECT,
    ),
)


def entries(*classes: type) -> tuple[Option, ...]:
    """Return the entries of dataclasses of options, in the order of their fields."""
    fields = [field for options in classes for field in dataclasses.fields(options) if "option" in field.metadata]
    return tuple(dataclasses.replace(field.metadata["option"], field=field.name) for field in fields)


OPTIONS = (*entries(SourceOptions, SinkOptions), *_WITHOUT_EFFECT)
