"""Read a bounded range of topics as Arrow batches, and write Arrow data to a topic, in one call each.

Offered as `protocol.read` and `protocol.write`; for pandas, Polars, DuckDB and scripts. Spark does not use them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.base.progress import Progress, ProgressReporter
from protocol.cluster.client import Client
from protocol.config import named_properties, parse_client, parse_producer
from protocol.consumer.group_consumer_config import GroupConsumerConfig, parse_group_consumer
from protocol.consumer.out_of_range import OutOfRange, check_committed
from protocol.errors import ConfigurationError, DataLoss, NoOffset, UsageError
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset, Range
from protocol.group.commits.committed_offsets import as_committed_offsets, fetch_start_offsets
from protocol.kafka_terms import EARLIEST, LATEST, TopicIds, TopicPartition
from protocol.position import Position
from protocol.producer.producer import Producer
from protocol.producer.results import ProducedRange
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.records.decode import SCHEMA
from protocol.settings.secret import hide_variables

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from protocol.filters.condition import Condition
    from protocol.schemas.formats import Format, SubjectNameStrategy
    from protocol.schemas.protobuf_settings import ProtobufSettings
    from protocol.schemas.values import ColumnDecoder

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_PANDAS_INDEX = "__index_level_"  # the column of an index without a name, such as after df[df.value == "a"]
_REGISTRY = "schema.registry."
READ_SCHEMA = pa.schema([("topic", pa.dictionary(pa.int32(), pa.string())), ("partition", pa.int32()), *SCHEMA])

# "earliest", "latest", "committed", a datetime with a time zone, or offsets by (topic, partition).
RangeBound = str | datetime | Mapping[TopicPartition, int]


@hide_variables
def read(
    properties: Mapping[str, object],
    topics: str | Iterable[str],
    start: RangeBound = "earliest",
    end: RangeBound = "latest",
    *,
    columns: Collection[str] | None = None,
    key_format: Format = "binary",
    value_format: Format = "binary",
    value_schema: str | None = None,
    value_subject: str | Collection[str] | None = None,
    value_types: Collection[str] = (),
    value_subject_name_strategy: SubjectNameStrategy = "TopicRecordNameStrategy",
    on_unknown_type: Literal["fail", "null", "skip"] = "fail",
    value_fields: Collection[str] = (),
    protobuf: ProtobufSettings | None = None,
    filter: str | pc.Expression | None = None,
    progress: Callable[[Progress], object] | bool = False,
) -> pa.RecordBatchReader:
    """Read all partitions of topics from `start` to `end`, in parallel and in bounded memory.

    Both positions are resolved to offsets during the call, so the reader ends on a live topic, too. Brokers are
    fetched from while the reader is read, one reply of at most `max.partition.fetch.bytes` per broker ahead.

    Parameters
    ----------
    properties : mapping
        Kafka's client and consumer properties; `bootstrap.servers` is required. With
        `isolation.level=read_committed` "latest" is the last stable offset.
    topics : str or iterable of str
        Names of topics.
    start, end : str, datetime or mapping
        "earliest": log start offsets. "latest": log end offsets at the time of the call. "committed": offsets that
        the group of `group.id` has committed; partitions without one start as `auto.offset.reset` says, and end at
        their start. A committed offset that is not in the log is an error, whatever `auto.offset.reset` says. A
        datetime with a time zone: the first record with this timestamp or a later one, else the log end offset. A
        mapping of (topic, partition) to offsets: partitions that it lacks are not read. `end` is exclusive.
    columns : collection of str, optional
        Names of columns of `READ_SCHEMA`, by default all of them. With several types of values also `value_type`
        (string): the field of `value` that has the record, or the full name of another type.
    key_format, value_format : str
        How keys and values are decoded: "binary", "string", "json", "avro", "protobuf", or one of the last three behind
        "confluent-" or "glue-", with the registry of the properties `schema.registry.*`.
    value_schema : str, optional
        The schema of values, needed for "json" (a JSON Schema, or columns such as `id BIGINT`), "avro" and "protobuf".
    value_subject : str or collection of str, optional
        The subject whose latest version values are resolved to; by default the topic's name and `-value`, or in AWS
        Glue the topic's name. A collection of subjects: values are of several types, one for each subject.
    value_types : collection of str
        Full names of the types of records to read from a topic with several: `value` is a struct with a field for each
        type, of which one is not null (docs/schemas.md).
    value_subject_name_strategy : str
        How Confluent's serialisers have named the subjects of `value_types`: "TopicRecordNameStrategy" or
        "RecordNameStrategy".
    on_unknown_type : str
        For a record of another type: "fail", "null" in all fields, or "skip": it is no row, and counted in the metric
        `records-filtered-total`.
    value_fields : collection of str
        The fields of a value to decode, or of several types those to decode; by default all of them.
    protobuf : ProtobufSettings, optional
        The message of Protobuf values, and how it is read.
    filter : str or pyarrow.compute.Expression, optional
        The records to return. A text is a condition in Spark's SQL with the columns of the Spark source, evaluated as
        with `spark.sql.ansi.enabled=true` (docs/filters.md); it needs sqlglot. An expression has the columns of
        `READ_SCHEMA`, and with several types of values `value_type`.
    progress : bool or callable
        Receives a `Progress` at most four times a second while the reader is read, and at its end. True: print its text
        to standard error.

    Returns
    -------
    pa.RecordBatchReader
        `topic` (dictionary), `partition` (int32), `key`, `value` (binary), `offset`, `timestamp_ms` (int64),
        `timestamp_type` (int8: 0 CreateTime, 1 LogAppendTime) and `headers`
        (list<struct<key: string, value: binary>>). Batches of one partition are in the order of offsets; batches of
        several partitions come as brokers answer.

    Raises
    ------
    ConfigurationError
        A property is missing or wrong.
    UsageError
        A position or a column is invalid, or a mapping names a partition that does not exist or an end above the log.
    TopicUnknown
        Brokers have answered for 10 s that the topic does not exist.
    NoOffset
        `auto.offset.reset` is `none`, and a partition has no committed offset.
    DataLoss
        A committed offset is not in the log, or the log was truncated below it; or a start is above the log end. While
        reading: records were deleted, by retention for example, before they were read.
    DeadlineExceeded
        No broker has answered within `default.api.timeout.ms`.
    RegistryFailed
        The schema registry does not have a schema, refuses, or does not respond.
    DecodeFailed
        While reading: a key or a value does not have its schema, or a value has none of several types.
    FilterFailed
        While reading: a cast, an overflow or a division by zero in the filter.
    """
    properties = named_properties(properties, {})
    names, value_types, value_fields = (
        [texts] if isinstance(texts, str) else list(texts) for texts in (topics, value_types, value_fields)
    )
    decoders: dict[str, ColumnDecoder] = {}
    of_values = value_schema, value_subject, value_types, value_fields, protobuf, on_unknown_type != "fail"
    if {key_format, value_format} != {"binary"} or any(of_values):
        from protocol.decoded_columns import column_decoders
        from protocol.schemas.formats import ValueTypes

        types = ValueTypes(
            tuple(value_types),
            value_subject if isinstance(value_subject, str) else tuple(value_subject or ()) or None,
            value_subject_name_strategy,
        )
        decoders = column_decoders(
            *(properties, names, key_format, value_format, value_schema, types, on_unknown_type),
            *(tuple(value_fields), protobuf),
        )
    properties = {name: value for name, value in properties.items() if not name.startswith(_REGISTRY)}
    schema = _chosen(_all_columns(decoders), columns)
    condition = _parsed(filter, decoders) if isinstance(filter, str) else None
    config = parse_group_consumer(properties)
    client = Client(parse_client(properties))
    try:
        ranges = _ranges(client, config, names, start, end)
        if condition is not None:
            from protocol.filters.pruning import pruned

            ranges = pruned(condition, ranges)
    except BaseException:
        client.close()
        raise
    total = sum(source_range.size for source_range in ranges)
    reporter = ProgressReporter(progress, ", ".join(names), total, "offsets", client.clock)
    expression = None if isinstance(filter, str) else filter
    batches = _read(client, config, ranges, schema, decoders, on_unknown_type, reporter, condition, expression)
    # A reader that is dropped before its first batch never enters the generator.
    weakref.finalize(batches, client.close)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _all_columns(decoders: Mapping[str, ColumnDecoder]) -> pa.Schema:
    """Return the columns that a reader may have."""
    if not decoders:
        return READ_SCHEMA
    from protocol.decoded_columns import column_types

    types = column_types(decoders)
    stored = [field.with_type(types.pop(field.name, field.type)) for field in READ_SCHEMA]
    return pa.schema([*stored, *types.items()])


def _chosen(all_columns: pa.Schema, columns: Collection[str] | None) -> pa.Schema:
    """Return the columns of the reader. Raises `UsageError`."""
    names = set(READ_SCHEMA.names if columns is None else [columns] if isinstance(columns, str) else columns)
    if unknown := names - set(all_columns.names):
        if "value_type" in unknown:
            raise UsageError(
                "columns names value_type, but values have one type; name several in value_types or value_subject"
            )
        raise UsageError(f"{min(unknown)} is not a column; the columns are {', '.join(all_columns.names)}")
    if not names:  # Arrow would count no rows
        raise UsageError("columns is empty; name one, such as offset")
    return pa.schema([field for field in all_columns if field.name in names])


def _parsed(text: str, decoders: Mapping[str, ColumnDecoder]) -> Condition:
    from protocol.filters.parse import parse_condition

    if not decoders:
        return parse_condition(text)
    from protocol.decoded_columns import column_types, with_filter_names

    all_fields = {part: _with_all_fields(decoder) for part, decoder in decoders.items()}
    return parse_condition(text, with_filter_names(column_types(all_fields)))


def _with_all_fields(decoder: ColumnDecoder) -> ColumnDecoder:
    try:
        return decoder.of_fields(())
    except ConfigurationError:  # a field that `value_fields` leaves out has no type in Arrow
        return decoder


def _read(
    client: Client,
    config: GroupConsumerConfig,
    ranges: list[Range],
    schema: pa.Schema,
    decoders: Mapping[str, ColumnDecoder],
    on_unknown_type: str,
    reporter: ProgressReporter,
    condition: Condition | None,
    expression: pc.Expression | None,
) -> Iterator[Any]:
    record_filter = None
    if condition is not None:
        from protocol.filters.record_filter import RecordFilter

        record_filter = RecordFilter(condition, ansi=True, client=client)
    # An expression does not tell its columns.
    needed = set(schema.names if expression is None else _all_columns(decoders).names)
    row_decoder = None
    if decoders:
        from protocol.decoded_columns import RowDecoder

        row_decoder = RowDecoder(client, decoders, needed, on_unknown_type, record_filter)
        needed |= row_decoder.stored_columns
    topics = sorted({source_range.topic for source_range in ranges})
    with client:
        fetched = BoundedReader(
            client,
            config.consumer,
            ranges,
            columns=[name for name in SCHEMA.names if name in needed],
            poll_timeout_ms=client.config.default_api_timeout_ms,
            row_filter=None if record_filter is None else partial(record_filter.of_range, on_left_out=reporter.add),
        )
        for source_range, batch in fetched:
            arrays = _read_columns(batch, source_range, topics, needed)
            if row_decoder is not None:
                arrays = row_decoder.rows(arrays, source_range)
            if expression is None:
                yield pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
            else:
                yield from pa.table(arrays).filter(expression).select(schema.names).cast(schema).to_batches()
            reporter.add(batch.num_rows)
    reporter.end()


def _read_columns(
    batch: pa.RecordBatch, source_range: Range, topics: list[str], needed: Collection[str]
) -> dict[str, pa.Array]:
    """Return the columns of a batch, and those that are constant in its range."""
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "topic" in needed:
        index = pa.repeat(pa.scalar(topics.index(source_range.topic), pa.int32()), batch.num_rows)
        arrays["topic"] = pa.DictionaryArray.from_arrays(index, pa.array(topics, pa.string()))
    if "partition" in needed:
        arrays["partition"] = pa.repeat(pa.scalar(source_range.partition, pa.int32()), batch.num_rows)
    return arrays


def _ranges(
    client: Client, config: GroupConsumerConfig, topics: list[str], start: RangeBound, end: RangeBound
) -> list[Range]:
    deadline = client.deadline()
    topic_ids: dict[TopicPartition, bytes] = {}
    for name in topics:
        topic = client.retrying(f"Metadata of {name}", partial(client.topic, name, deadline), deadline, topics=[name])
        topic_ids.update(((name, partition), topic.topic_id) for partition in sorted(topic.partitions))
    logs = _Logs(client, config, topic_ids, deadline)
    begins = logs.positions("start", start)
    ends = logs.positions("end", end, missing=begins)
    latest = logs.listed(dict.fromkeys(topic_ids, LATEST))
    if start == "committed" or isinstance(start, Mapping):
        above = [key for key, begin in begins.items() if begin.offset > latest[key].offset]
        _require_in_log(client, "start", {key: begins[key] for key in above}, deadline)
    ranges = []
    for key, topic_id in topic_ids.items():
        if key not in begins or key not in ends:
            continue
        until = ends[key].offset
        if until > latest[key].offset and isinstance(end, Mapping):
            committed = config.consumer.isolation_level == "read_committed"
            name = "last stable offset" if committed else "log end offset"
            raise UsageError(f"end: offset {until} of {key[0]}-{key[1]} is above its {name}, {latest[key].offset}")
        last = Position(min(until, latest[key].offset), latest[key].leader_epoch, topic_id=topic_id)
        if begins[key].offset < last.offset:
            ranges.append(Range.between(key, begins[key], last))
    return ranges


def _require_in_log(
    client: Client, option: str, positions: Mapping[TopicPartition, Position], deadline: Deadline
) -> None:
    """Raise `DataLoss` for a position above the high watermark. With `read_committed`, "latest" may be lower."""
    ends = list_offsets(client, dict.fromkeys(positions, LATEST), deadline=deadline)
    above = {key: position for key, position in positions.items() if position.offset > ends[key].offset}
    starts = list_offsets(client, dict.fromkeys(above, EARLIEST), deadline=deadline)
    lost = {key: OutOfRange(position, starts[key].offset, ends[key].offset) for key, position in above.items()}
    if lost:
        raise _out_of_range(option, f"{option}:", lost)


def _out_of_range(option: str, whose: str, lost: Mapping[TopicPartition, OutOfRange]) -> DataLoss:
    key, *further = sorted(lost)
    loss, names = lost[key], listed([f"{topic}-{partition}" for topic, partition in further])
    also = f". The same applies to {names}" if further else ""
    symbol = "earliest" if option == "start" else "latest"
    return DataLoss(
        f"{loss.describe(key, whose)}{also}. Nothing is read. Use {option}={symbol!r}, a datetime, or offsets by "
        f"(topic, partition), such as {{{key}: {loss.nearest}}} for the nearest offset in the log",
        topic=key[0],
        partition=key[1],
        offset=loss.offset,
    )


@dataclass(frozen=True)
class _Logs:
    """The partitions of a call, with the ids of their topics: resolves bounds to positions."""

    client: Client
    config: GroupConsumerConfig
    topic_ids: TopicIds
    deadline: Deadline

    def positions(
        self, option: str, bound: RangeBound, missing: Mapping[TopicPartition, Position] | None = None
    ) -> dict[TopicPartition, Position]:
        """Return the positions of a bound, those of the group with their leader epochs.

        `missing` are the positions of partitions that the group has committed none of.
        """
        match bound:
            case "earliest":
                return self._at(dict.fromkeys(self.topic_ids, EARLIEST))
            case "latest":
                return self._at(dict.fromkeys(self.topic_ids, LATEST))
            case "committed":
                return self._committed_or_reset(option, missing)
            case datetime():
                if bound.tzinfo is None:
                    raise UsageError(f"{bound} has no time zone; use datetime.now(timezone.utc), for example")
                # Rounded down, as timestamps of records are. Negative ones have other meanings in ListOffsets.
                time_ms = max(0, (bound - _EPOCH) // timedelta(milliseconds=1))
                return self._at(dict.fromkeys(self.topic_ids, time_ms))
            case Mapping():
                return self._named(option, bound)
        raise UsageError(
            f"{bound!r} is not a position; use 'earliest', 'latest', 'committed', a datetime with a time zone, "
            "or offsets by (topic, partition)"
        )

    def listed(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """List offsets, with `read_committed` up to the last stable one."""
        isolation = self.config.consumer.isolation_level
        return list_offsets(self.client, times, isolation_level=isolation, deadline=self.deadline)

    def _at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
        """Return the positions at these times; the log ends of partitions without a record that new."""
        offsets = self.listed(times)
        none_since = [key for key, offset in offsets.items() if offset.offset < 0]
        offsets |= self.listed(dict.fromkeys(none_since, LATEST))
        return {key: Position(offset.offset) for key, offset in offsets.items()}

    def _named(self, option: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
        try:
            positions: dict[TopicPartition, Position] = {**as_committed_offsets(offsets)}
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None
        if unknown := positions.keys() - self.topic_ids.keys():
            topic, partition = min(unknown)
            raise UsageError(f"{topic}-{partition} does not exist, or its topic is not one of those to read")
        return positions

    def _committed_or_reset(
        self, option: str, missing: Mapping[TopicPartition, Position] | None
    ) -> dict[TopicPartition, Position]:
        positions = self._committed(option)
        absent = [key for key in self.topic_ids if key not in positions]
        if missing is not None:
            return positions | {key: missing[key] for key in absent if key in missing}
        return positions | self._at(dict.fromkeys(absent, self._reset_time(absent))) if absent else positions

    def _committed(self, option: str) -> dict[TopicPartition, Position]:
        group = self.config.consumer.group_id
        if group is None:
            raise UsageError("the position 'committed' needs group.id", settings=("group.id",))
        offsets = fetch_start_offsets(self.client, group, self.topic_ids, self.deadline)
        valid, lost = check_committed(self.client, offsets, self.deadline)
        if option == "end":
            # Records before the log start offset are not part of the range, whether the group has read them or not.
            valid |= {key: loss.position for key, loss in lost.items() if loss.is_deleted}
        if lost.keys() - valid.keys():
            lost = {key: loss for key, loss in lost.items() if key not in valid}
            raise _out_of_range(option, f"{option}='committed': group {group}: its", lost)
        return valid

    def _reset_time(self, absent: list[TopicPartition]) -> int:
        reset = self.config.auto_offset_reset
        if isinstance(reset, timedelta):
            return self.client.clock.wall_ms() - round(reset.total_seconds() * 1000)
        if reset == "none":
            topic, partition = absent[0]
            raise NoOffset(
                f"group {self.config.consumer.group_id} has committed no offset of {topic}-{partition}, and "
                "auto.offset.reset is none",
                topic=topic,
                partition=partition,
                settings=("auto.offset.reset",),
            )
        return EARLIEST if reset == "earliest" else LATEST


@hide_variables
def write(
    properties: Mapping[str, object], topic: str, data: Any, *, progress: Callable[[Progress], object] | bool = False
) -> dict[TopicPartition, ProducedRange]:
    """Write Arrow data to a topic, and wait until brokers have acknowledged all of it.

    At most `buffer.memory` bytes of rows wait in memory. With `transactional.id` all rows are written in one
    transaction: all of them become visible, or none.

    Parameters
    ----------
    properties : mapping
        Kafka's client and producer properties; `bootstrap.servers` is required.
    topic : str
        Name of the topic.
    data : pa.Table, pa.RecordBatch, pa.RecordBatchReader, or an object with `__arrow_c_stream__`
        Such as a DataFrame of pandas or Polars, or a relation of DuckDB. An index of pandas without a name is not
        written. Columns: `value` and optionally `key` (binary or string), `headers`
        (list<struct<key: string, value: binary>>), `timestamp_ms` (int64) and `partition` (integer; rows where it is
        null go to the partition that the partitioner chooses).
    progress : bool or callable
        Receives a `Progress` of the rows at most four times a second, and when all of them are acknowledged; its total
        is that of a `pa.Table`, else None. True: print its text to standard error.

    Returns
    -------
    dict of (topic, partition) to ProducedRange
        First offset, last offset and number of the records written to each partition.

    Raises
    ------
    ConfigurationError
        A property is missing or wrong.
    UsageError
        A column is missing, unknown or of another type.
    KafkaError
        Rows could not be written; without a transaction, others may have been.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not hasattr(data, "__arrow_c_stream__"):
        raise UsageError(
            f"{type(data).__name__} is no Arrow data; use a pyarrow.Table, or pyarrow.RecordBatchReader.from_batches "
            "for a generator"
        )
    config = parse_producer(named_properties(properties, {}))
    # A reader through Arrow's C stream would raise ArrowInvalid for each exception of its batches.
    rows = data if isinstance(data, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(data)
    total = data.num_rows if isinstance(data, pa.Table) else None  # counting rows of DuckDB would run a query
    with Client(parse_client(properties)) as client:
        reporter = ProgressReporter(progress, topic, total, "rows", client.clock)
        if config.transactional_id is None:
            with Producer(client, config) as producer:
                return _write(producer, topic, rows, reporter)
        with TransactionalProducer(client, config) as producer:  # its end aborts a transaction that is still open
            producer.init_transactions()
            producer.begin_transaction()
            written = _write(producer, topic, rows, reporter)
            producer.commit_transaction()
            return written


def _write(
    producer: Producer, topic: str, rows: pa.RecordBatchReader, reporter: ProgressReporter
) -> dict[TopicPartition, ProducedRange]:
    for batch in rows:
        partitions = batch["partition"] if "partition" in batch.schema.names else None
        names = [name for name in batch.schema.names if name != "partition" and not name.startswith(_PANDAS_INDEX)]
        producer.send_columns(topic, batch.select(names), partitions)
        reporter.add(batch.num_rows)
    producer.flush()
    reporter.end()
    return producer.acknowledged
