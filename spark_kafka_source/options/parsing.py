"""The dict of options that Spark hands over, made into frozen values.

Used by `source` on the driver; the values pickle and travel to the executors. Every message names the option as users
write it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from protocol.config import ConsumerConfig, parse_client, parse_consumer, parse_producer
from protocol.errors import ConfigurationError
from protocol.once import warn_once
from protocol.properties import BY_NAME, Effect, Role, shown
from spark_kafka_source import error_classes
from spark_kafka_source.error_classes import named
from spark_kafka_source.options import start_positions
from spark_kafka_source.options.stray_options import PREFIX, why_ignored
from spark_kafka_source.options.table import OPTIONS, USE_WORDS, Option, SinkOptions, SourceOptions, Use

_BY_KEY: Mapping[str, Option] = {row.name.lower(): row for row in OPTIONS}

# Ways to say where to start, and where to end: the first that is given decides.
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_MAX_TRIGGER_DELAY_MS = 15 * 60_000

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


def _place(values: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, start_positions.Place | None]:
    """The option of `names` that decides, and its value; None when none of them is given."""
    given = [name for name in names if values.get(name) is not None]
    if not given:
        return names[-1], None
    for name in given[1:]:
        warn_once(f"{name} has no effect: {given[0]} is given, which comes before it")
    value = values[given[0]]
    return given[0], value if given[0] == names[-1] else start_positions.AtTime(value, given[0])


def _start(given: start_positions.Place | None, consumer: ConsumerConfig, streaming: bool) -> start_positions.Place:
    if given == "group" and consumer.group_id is None:
        raise ConfigurationError("startingOffsets is group, but there is no group; set kafka.group.id.")
    if given is not None:
        return given
    if not streaming:
        return "earliest"
    return "latest" if consumer.group_id is None else "group"


def _check_reset(given: bool, start: start_positions.Place, consumer: ConsumerConfig, streaming: bool) -> None:
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
    options: Mapping[str, str], places: Mapping[str, start_positions.Place], topics: Mapping[str, Any], streaming: bool
) -> None:
    (start_option, start), (end_option, end) = places.items()
    times, offsets = error_classes.TIMESTAMPS_DO_NOT_MATCH_ASSIGNED, error_classes.OFFSETS_DO_NOT_MATCH_ASSIGNED
    unlike = times if isinstance(start, start_positions.AtTime) else offsets
    _check(options, start_option, unlike, lambda: start_positions.check_fits(start, *topics.values()))
    if streaming:
        return
    _check(options, start_option, None, lambda: start_positions.check_batch_start(start))
    unlike = times if isinstance(end, start_positions.AtTime) else offsets
    _check(options, end_option, unlike, lambda: start_positions.check_fits(end, *topics.values()))
    _check(
        options,
        end_option,
        error_classes.START_AND_END_DO_NOT_MATCH,
        lambda: start_positions.check_same_partitions(start, end, start_option),
    )
    _check(
        options, end_option, error_classes.UNRESOLVED_START_AFTER_END, lambda: start_positions.check_order(start, end)
    )


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
        return (*start_positions.COLUMNS, start_positions.HEADERS) if include_headers else start_positions.COLUMNS
    if include_headers and start_positions.HEADERS not in chosen:
        raise ConfigurationError("includeHeaders is true, but columns does not name headers; add it, or leave one out.")
    return chosen
