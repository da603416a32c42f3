"""The options of the source and the sink: one table, and what makes frozen values of the dict that Spark hands over.

Owns the options' names, defaults and meaning; what they can hold is read by `selection` and `protocol.properties`.
Used by `source` on the driver; the values pickle and travel to the executors. Every message names the option as users
write it. `python -m spark_kafka_source.options` prints the table as Markdown: docs/options.md is that.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from protocol.config import ClientConfig, ConsumerConfig, ProducerConfig, parse_client, parse_consumer, parse_producer
from protocol.errors import ConfigurationError
from protocol.once import warn_once
from protocol.properties import BOOLEAN, BY_NAME, MAX_INT64, Effect, Kind, Role, integer, one_of, shown
from spark_kafka_source import error_classes, selection
from spark_kafka_source.error_classes import named
from spark_kafka_source.offsets import legal_topic
from spark_kafka_source.sizes import size_bytes
from spark_kafka_source.stray_options import PREFIX, why_ignored
from spark_kafka_source.times import duration_ms, timestamp_ms


class Use(enum.Flag):
    """Which kinds of query an option is for."""

    STREAM_READ = enum.auto()
    BATCH_READ = enum.auto()
    WRITE = enum.auto()


NOWHERE = Use(0)
READ = Use.STREAM_READ | Use.BATCH_READ
USE_WORDS = {Use.STREAM_READ: "streaming reads", Use.BATCH_READ: "batch reads", Use.WRITE: "writes"}


@dataclass(frozen=True)
class Option:
    """One row. `default` None: none, or what `default_text` says.

    In a query of another use it is a warning, but an error in those of `refused_in`.
    """

    name: str
    use: Use
    kind: Kind
    doc: str
    default: Any = None
    default_text: str = ""
    refused_in: Use = NOWHERE
    effect: Effect = Effect.APPLIES


# Ways to say where to start, and where to end: the first that is given decides.
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_MAX_TRIGGER_DELAY_MS = 15 * 60_000

_OFFSETS_JSON = '{"orders": {"0": 23, "1": -1}}'
_POSITIVE = integer(1, MAX_INT64)
_TIMESTAMP = Kind("milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z", timestamp_ms)
_TIMESTAMPS = Kind(
    'JSON like {"orders": {"0": 1767225600000, "1": "2026-01-31T12:00:00Z"}}', selection.offsets_by_timestamp
)
_DURATION = Kind("a number with us, ms, s, m, min, h or d; without, it is milliseconds", duration_ms)
_BYTES = Kind("a number with b, k, m, g or t (powers of 1024); without, it is bytes; at least 1", size_bytes)
_DELIVERY = one_of("at-least-once", "none", otherwise="exactly-once is not supported yet")


OPTIONS: tuple[Option, ...] = (
    Option(
        "subscribe",
        READ,
        Kind("topic names with commas between them", selection.subscribe),
        "the topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed",
    ),
    Option(
        "subscribePattern",
        READ,
        Kind("a regular expression in Java's syntax", selection.subscribe_pattern),
        "the topics to read: those with a match anywhere in their name (`^` and `$` anchor it), also topics that are "
        "created later; never Kafka's internal topics",
    ),
    Option(
        "assign",
        READ,
        Kind('JSON like {"orders": [0, 1]}', selection.assign),
        "the partitions to read",
    ),
    Option(
        "startingOffsets",
        READ,
        Kind(f"earliest, latest, group, or JSON like {_OFFSETS_JSON}", selection.starting_offsets),
        "where a new query begins; one that has a checkpoint resumes there. In JSON -2 is earliest and -1 latest, and "
        "every partition must be named. `group`: the offsets of `kafka.group.id`, for a partition without one what "
        "`kafka.auto.offset.reset` says. If that is given, it also says where to begin when the group's offset is not "
        "in the log; else the query fails then, or with `failOnDataLoss` false begins at the nearest offset that is "
        "there. Partitions that are found later are read from their earliest offset. A batch cannot "
        "start at latest",
        default_text="streams: group with `kafka.group.id`, else latest; batches: earliest, with a group too",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READ,
        _TIMESTAMPS,
        "a new query begins, in each partition, at the first record whose timestamp is that or later; "
        "`startingOffsets` has no effect then",
    ),
    Option(
        "startingTimestamp",
        READ,
        _TIMESTAMP,
        "the same with one time for all partitions; `startingOffsetsByTimestamp` and `startingOffsets` have no effect "
        "then",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        READ,
        one_of("error", "latest"),
        "what to do in a partition without a record that new: fail, or begin at its end",
        default="error",
    ),
    Option(
        "endingOffsets",
        Use.BATCH_READ,
        Kind(f"latest, or JSON like {_OFFSETS_JSON}", selection.ending_offsets),
        "where a batch ends (exclusive). In JSON -1 is latest; -2 is not allowed",
        default_text="latest",
        refused_in=Use.STREAM_READ,
    ),
    Option(
        "endingOffsetsByTimestamp",
        Use.BATCH_READ,
        _TIMESTAMPS,
        "a batch ends, in each partition, before the first record whose timestamp is that or later, or at its end; "
        "`endingOffsets` has no effect then",
        refused_in=Use.STREAM_READ,
    ),
    Option(
        "endingTimestamp",
        Use.BATCH_READ,
        _TIMESTAMP,
        "the same with one time for all partitions; `endingOffsetsByTimestamp` and `endingOffsets` have no effect then",
        refused_in=Use.STREAM_READ,
    ),
    Option(
        "commitOffsets",
        READ,
        BOOLEAN,
        "whether offsets are committed to `kafka.group.id` when their micro-batch has completed. A batch read never "
        "commits: nobody tells it whether its query completed",
        default_text="true for a stream with `kafka.group.id`",
    ),
    Option(
        "maxOffsetsPerTrigger",
        Use.STREAM_READ,
        _POSITIVE,
        "about how many offsets a micro-batch covers, shared out over the partitions by how far each is behind",
    ),
    Option(
        "maxBytesPerTrigger",
        Use.STREAM_READ,
        _BYTES,
        "about how many bytes a micro-batch covers, as they lie in Kafka's log: compressed, if producers compress. An "
        "estimate: in every trigger the driver looks at the sizes of some record batches where each partition goes on. "
        "With `maxOffsetsPerTrigger` the stricter of the two decides",
    ),
    Option(
        "minOffsetsPerTrigger",
        Use.STREAM_READ,
        _POSITIVE,
        "a trigger with fewer new offsets than that waits for more. The first trigger of a run never waits, nor does a "
        "run with the trigger availableNow or once",
    ),
    Option(
        "maxTriggerDelay",
        Use.STREAM_READ,
        _DURATION,
        "how long `minOffsetsPerTrigger` may make triggers wait after the last that did not",
        default_text="15m",
    ),
    Option(
        "maxRecordsPerPartition",
        READ,
        _POSITIVE,
        "the most offsets that one range has: larger ones are split, before `minPartitions` splits",
    ),
    Option(
        "minPartitions",
        READ,
        integer(1),
        "about how many tasks read, if more than there are partitions with new records: large ranges are split",
    ),
    Option(
        "maxInputPartitions",
        READ,
        integer(1),
        "the most tasks that read: ranges are put together, those of one leader first, so that every task has about as "
        "many offsets. It also bounds what `minPartitions` and `maxRecordsPerPartition` split",
    ),
    Option(
        "columns",
        READ,
        Kind("names of columns with commas between them", selection.columns),
        "the columns there are, in this order; what is left out is neither decoded nor handed to Spark",
        default_text="all; `headers` only with `includeHeaders`",
    ),
    Option(
        "failOnDataLoss",
        READ,
        BOOLEAN,
        "whether the query fails when records it should read are gone; if not, what is missing is skipped and logged",
        default=True,
    ),
    Option(
        "onTopicRecreated",
        Use.STREAM_READ,
        one_of("fail", "earliest"),
        "what a running query does when a topic was deleted and made anew under its name: fail, or read the new one "
        "from its earliest offset. What was not read of the old one is lost either way",
        default_text="fail; with `failOnDataLoss` false: earliest",
    ),
    Option(
        "includeHeaders",
        READ | Use.WRITE,
        BOOLEAN,
        "reads: add the column `headers`. Writes: accepted, but a column `headers` is written in any case",
        default=False,
    ),
    Option(
        "fetchOffset.numRetries",
        READ,
        integer(0),
        "how patiently the driver asks for offsets and metadata before the query fails: one time "
        "`kafka.default.api.timeout.ms`, and once more for each retry",
        default=3,
    ),
    Option(
        "fetchOffset.retryIntervalMs",
        READ,
        integer(0),
        "milliseconds that each such retry adds; the waits themselves are `kafka.retry.backoff.ms` and more",
        default=1_000,
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        READ,
        integer(1),
        "how long a task waits for records that must be there before it fails, in milliseconds",
        default=120_000,
    ),
    Option(
        "topic",
        Use.WRITE,
        Kind("the name of a topic", legal_topic),
        "the topic of all rows, whatever a column `topic` says; without it that column is needed",
    ),
    Option(
        "deliveryGuarantee",
        Use.WRITE,
        _DELIVERY,
        "at-least-once: all in-sync replicas confirm (acks=all), retries make no duplicates, a batch that Spark "
        "repeats is written again. none: nobody confirms (acks=0), records can get lost",
        default_text="at-least-once, or what `kafka.acks` makes of it",
    ),
    Option(
        "groupIdPrefix",
        READ,
        Kind("any text", str),
        "no group is made up to read; set `kafka.group.id` to have offsets committed",
        effect=Effect.NO_EFFECT,
    ),
)

_BY_KEY: Mapping[str, Option] = {row.name.lower(): row for row in OPTIONS}

# What Spark puts among the options by itself: for streams, and for tables of SQL (which also repeat every option).
_OF_SPARK = frozenset(
    ("checkpointlocation", "queryname", "owner", "provider", "comment", "location", "external", "is_managed_location")
)
_OF_SPARK_PREFIX = "option."
# What a user gave to load() or save(), which Spark hands on as an option.
_PATHS = frozenset(("path", "paths"))

# Said better here than `protocol` can, which knows neither columns nor options.
_FORBIDDEN = {
    "enable.auto.commit": "offsets are committed when a micro-batch has completed; use commitOffsets",
    "key.deserializer": "the column key is binary; turn it into something else in the query, e.g. key.cast('string')",
    "value.deserializer": "the column value is binary; use functions such as from_json or from_avro in the query",
    "key.serializer": "the column key is written as it is, string or binary; prepare it in the query",
    "value.serializer": "the column value is written as it is, string or binary; prepare it in the query",
    "interceptor.classes": "JVM classes that may change records cannot run here; change columns in the query",
}


@dataclass(frozen=True)
class SourceOptions:
    """What a query reads and how; exactly one of `subscribe`, `subscribe_pattern` and `assign` is not None.

    `starting_offsets` and `ending_offsets` are a word, a time, or topic -> partition -> offset, where -1 is latest and
    -2 earliest. `subscribe_pattern` is to be searched for in names. `consumer.auto_offset_reset` matters for the start
    `group` only, and so does `group_out_of_range`: where to begin when the group's offset is not in the log. `columns`
    are those of the rows, in their order.
    """

    client: ClientConfig
    consumer: ConsumerConfig
    streaming: bool
    subscribe: tuple[str, ...] | None
    subscribe_pattern: re.Pattern[str] | None
    assign: selection.Assignment | None
    starting_offsets: selection.Place
    ending_offsets: selection.Place
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"]
    group_out_of_range: Literal["fail", "nearest", "earliest", "latest"]
    commit_offsets: bool
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_records_per_partition: int | None
    min_partitions: int | None
    max_input_partitions: int | None
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    on_topic_recreated: Literal["fail", "earliest"]
    fetch_offset_num_retries: int
    fetch_offset_retry_interval_ms: int
    poll_timeout_ms: int

    @property
    def offsets_timeout_ms(self) -> int:
        """How long the driver may take to find out about partitions and offsets before the query fails."""
        once = self.client.default_api_timeout_ms
        return once + self.fetch_offset_num_retries * (once + self.fetch_offset_retry_interval_ms)


@dataclass(frozen=True)
class SinkOptions:
    """Where and how a query writes; `topic` None: every row names its own."""

    client: ClientConfig
    producer: ProducerConfig
    topic: str | None
    delivery_guarantee: Literal["at-least-once", "none"]
    include_headers: bool


def row_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """What the schema depends on, which is asked for before it is known what the query does."""
    lower = {key.lower(): str(text) for key, text in options.items()}
    rows = (_BY_KEY["columns"], _BY_KEY["includeheaders"])
    chosen, include_headers = (
        row.kind.read(row.name, lower[row.name.lower()]) if row.name.lower() in lower else row.default for row in rows
    )
    return _columns(chosen, include_headers)


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Reads the options of a source. Raises `ConfigurationError` that names the option and the remedy."""
    values, kafka = _read(options, Use.STREAM_READ if streaming else Use.BATCH_READ)
    client = parse_client(kafka, prefix=PREFIX)
    consumer = parse_consumer(kafka, prefix=PREFIX)
    topics = {key: values[key] for key in ("subscribe", "subscribePattern", "assign")}
    if sum(value is not None for value in topics.values()) != 1:
        given = [key for key, value in topics.items() if value is not None]
        raise ConfigurationError(
            f"{' and '.join(given) or 'None'} of subscribe, subscribePattern and assign "
            f"{'are' if given else 'is'} given; give exactly one of them to say what to read."
        )
    start_option, start_given = _place(values, _STARTS)
    start = _start(start_given, consumer, streaming)
    _check_reset("auto.offset.reset" in kafka, start, consumer, streaming)
    if not streaming:
        if "auto.offset.reset" not in kafka:
            # For a batch, Kafka's default (latest) would mean to read nothing.
            consumer = dataclasses.replace(consumer, auto_offset_reset="earliest")
        if consumer.group_id is not None and start != "group":
            warn_once(f"{PREFIX}group.id has no effect: this batch does not start from the group, and commits nothing")
    end_option, end = _place(values, _ENDS)
    _check_places(options, {start_option: start, end_option: end or "latest"}, topics, streaming)
    _check_bounds(values)
    delay_ms = values.get("maxTriggerDelay")
    if delay_ms is not None and values["minOffsetsPerTrigger"] is None:
        warn_once("maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return SourceOptions(
        client=client,
        consumer=consumer,
        streaming=streaming,
        subscribe=topics["subscribe"],
        subscribe_pattern=topics["subscribePattern"],
        assign=topics["assign"],
        starting_offsets=start,
        ending_offsets=end or "latest",
        starting_offsets_by_timestamp_strategy=values["startingOffsetsByTimestampStrategy"],
        group_out_of_range=_out_of_range("auto.offset.reset" in kafka, consumer, values["failOnDataLoss"]),
        commit_offsets=_commits(values["commitOffsets"], consumer, streaming),
        max_offsets_per_trigger=values.get("maxOffsetsPerTrigger"),
        max_bytes_per_trigger=values.get("maxBytesPerTrigger"),
        min_offsets_per_trigger=values.get("minOffsetsPerTrigger"),
        max_trigger_delay_ms=_MAX_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        max_records_per_partition=values["maxRecordsPerPartition"],
        min_partitions=values["minPartitions"],
        max_input_partitions=values["maxInputPartitions"],
        columns=_columns(values["columns"], values["includeHeaders"]),
        fail_on_data_loss=values["failOnDataLoss"],
        on_topic_recreated=values.get("onTopicRecreated") or ("fail" if values["failOnDataLoss"] else "earliest"),
        fetch_offset_num_retries=values["fetchOffset.numRetries"],
        fetch_offset_retry_interval_ms=values["fetchOffset.retryIntervalMs"],
        poll_timeout_ms=values["kafkaConsumer.pollTimeoutMs"],
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Reads the options of a sink. Raises `ConfigurationError` that names the option and the remedy."""
    values, kafka = _read(options, Use.WRITE)
    client = parse_client(kafka, prefix=PREFIX)
    guarantee = values["deliveryGuarantee"]
    if guarantee == "none" and "acks" not in kafka:
        kafka = {"enable.idempotence": "false", **kafka, "acks": "0"}
    producer = parse_producer(kafka, prefix=PREFIX)
    wanted = {"none": 0, "at-least-once": -1}
    if guarantee is not None and producer.acks != wanted[guarantee]:
        raise ConfigurationError(
            f"deliveryGuarantee is {guarantee}, but {PREFIX}acks is {producer.acks}. Leave {PREFIX}acks out."
        )
    if guarantee is None and producer.acks == 1:
        warn_once(f"{PREFIX}acks is 1: records that the leader alone has are lost when it fails")
    return SinkOptions(
        client=client,
        producer=producer,
        topic=values["topic"],
        delivery_guarantee="none" if producer.acks == 0 else "at-least-once",
        include_headers=values["includeHeaders"],
    )


# -- reading --------------------------------------------------------------------------------------


def _read(options: Mapping[str, str], use: Use) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of one use by name, defaults included, and the properties behind `kafka.`."""
    values = {row.name: row.default for row in OPTIONS if row.use & use and row.effect is Effect.APPLIES}
    kafka: dict[str, str] = {}
    for key, text in options.items():
        lower = key.lower()
        if lower in _OF_SPARK or lower.startswith(_OF_SPARK_PREFIX):
            continue
        if lower in _PATHS:
            warn_once(f"{lower} has no effect: {'topic says' if use & Use.WRITE else 'subscribe says'} what is meant")
        elif lower.startswith(PREFIX):
            _refuse_forbidden(lower[len(PREFIX) :], use)
            kafka[lower[len(PREFIX) :]] = text
        else:
            row = _row(key, use)
            if row is not None:
                values[row.name] = row.kind.read(row.name, str(text))
    return values, kafka


def _row(key: str, use: Use) -> Option | None:
    """The row of an option that applies; None, with a warning, for one that does nothing here."""
    row = _BY_KEY.get(key.lower())
    if row is None:
        applying = (each.name for each in OPTIONS if each.use & use and each.effect is Effect.APPLIES)
        warn_once(f"{key} has no effect: {why_ignored(key, applying, _role(use), _FORBIDDEN)}")
        return None
    if row.use & use and row.effect is Effect.APPLIES:
        return row
    if row.use & use:
        warn_once(f"{row.name} has no effect: {row.doc}")
        return None
    mine, theirs = (" and ".join(word for member, word in USE_WORDS.items() if member & u) for u in (use, row.use))
    if row.refused_in & use:
        raise ConfigurationError(f"{row.name} is an option of {theirs}, not of {mine}; leave it out.", name=row.name)
    instead = {"topic": ". A source takes subscribe", "subscribe": ". A sink takes topic"}.get(row.name, "")
    warn_once(f"{row.name} has no effect: it is an option of {theirs}, this is one of {mine}{instead}")
    return None


def _role(use: Use) -> Role:
    return Role.PRODUCER if use & Use.WRITE else Role.CONSUMER


def _refuse_forbidden(name: str, use: Use) -> None:
    if name in _FORBIDDEN and BY_NAME[name].role & _role(use):
        raise ConfigurationError(f"{PREFIX}{name} is forbidden: {_FORBIDDEN[name]}.", name=PREFIX + name)


# -- rules between options ------------------------------------------------------------------------


def _place(values: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, selection.Place | None]:
    """The option of `names` that decides, and its value; None when none of them is given."""
    given = [name for name in names if values.get(name) is not None]
    if not given:
        return names[-1], None
    for name in given[1:]:
        warn_once(f"{name} has no effect: {given[0]} is given, which comes before it")
    value = values[given[0]]
    return given[0], value if given[0] == names[-1] else selection.AtTime(value, given[0])


def _start(given: selection.Place | None, consumer: ConsumerConfig, streaming: bool) -> selection.Place:
    if given == "group" and consumer.group_id is None:
        raise ConfigurationError("startingOffsets is group, but there is no group; set kafka.group.id.")
    if given is not None:
        return given
    if not streaming:
        return "earliest"
    return "latest" if consumer.group_id is None else "group"


def _check_reset(given: bool, start: selection.Place, consumer: ConsumerConfig, streaming: bool) -> None:
    if given and start != "group":
        raise ConfigurationError(
            "kafka.auto.offset.reset says where to start when the group has no offset, but this query does not start "
            "from a group. Set startingOffsets instead, or kafka.group.id with startingOffsets=group."
        )
    if given and not streaming and consumer.auto_offset_reset == "latest":
        raise ConfigurationError(
            "kafka.auto.offset.reset is latest: a batch cannot start at the latest offset; use earliest or none."
        )


def _out_of_range(
    given: bool, consumer: ConsumerConfig, fail_on_data_loss: bool
) -> Literal["fail", "nearest", "earliest", "latest"]:
    """A default must not skip anything that is there: only who has asked for it begins at the other end of the log."""
    reset = consumer.auto_offset_reset
    if given and reset != "none":
        return reset
    return "fail" if given or fail_on_data_loss else "nearest"


def _commits(given: bool | None, consumer: ConsumerConfig, streaming: bool) -> bool:
    if given and consumer.group_id is None:
        raise ConfigurationError("commitOffsets is true, but there is no group; set kafka.group.id.")
    if given and not streaming:
        raise ConfigurationError(
            "commitOffsets is true, but a batch read cannot commit: nobody tells it whether its query completed. "
            "Use a stream with trigger(availableNow=True), or leave commitOffsets out."
        )
    return streaming and consumer.group_id is not None and given is not False


def _check_places(
    options: Mapping[str, str], places: Mapping[str, selection.Place], topics: Mapping[str, Any], streaming: bool
) -> None:
    (start_option, start), (end_option, end) = places.items()
    times, offsets = error_classes.TIMESTAMPS_DO_NOT_MATCH_ASSIGNED, error_classes.OFFSETS_DO_NOT_MATCH_ASSIGNED
    unlike = times if isinstance(start, selection.AtTime) else offsets
    _check(options, start_option, unlike, lambda: selection.check_fits(start, *topics.values()))
    if streaming:
        return
    _check(options, start_option, None, lambda: selection.check_batch_start(start))
    unlike = times if isinstance(end, selection.AtTime) else offsets
    _check(options, end_option, unlike, lambda: selection.check_fits(end, *topics.values()))
    _check(
        options,
        end_option,
        error_classes.START_AND_END_DO_NOT_MATCH,
        lambda: selection.check_same_partitions(start, end, start_option),
    )
    _check(options, end_option, error_classes.UNRESOLVED_START_AFTER_END, lambda: selection.check_order(start, end))


def _check(options: Mapping[str, str], name: str, error_class: str | None, check: Callable[[], None]) -> None:
    try:
        check()
    except ValueError as error:
        text = next((text for key, text in options.items() if key.lower() == name.lower()), "")
        message = f"{name} is {shown(text)}, which does not fit: {error}."
        raise ConfigurationError(named(error_class, message) if error_class else message, name=name) from error


def _check_bounds(values: Mapping[str, Any]) -> None:
    for low, high in (("minOffsetsPerTrigger", "maxOffsetsPerTrigger"), ("minPartitions", "maxInputPartitions")):
        least, most = values.get(low), values.get(high)
        if least is not None and most is not None and least > most:
            raise ConfigurationError(f"{low} is {least}, more than {high} ({most}); lower it or raise the other.")


def _columns(chosen: tuple[str, ...] | None, include_headers: bool) -> tuple[str, ...]:
    if chosen is None:
        return (*selection.COLUMNS, selection.HEADERS) if include_headers else selection.COLUMNS
    if include_headers and selection.HEADERS not in chosen:
        raise ConfigurationError("includeHeaders is true, but columns does not name headers; add it, or leave one out.")
    return chosen


if __name__ == "__main__":
    from spark_kafka_source.options_table import markdown

    print(markdown())
