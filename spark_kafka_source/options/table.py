"""The table of options: one entry each, which is also the field that holds its value.

An entry says the option's name as users write it, which queries it is for, what it may hold, what it means, and its
default. `parsing` reads by it, `markdown` prints it (`python -m spark_kafka_source.options` makes docs/options.md), and
readers and writers get the dataclasses below. What several options mean together is a property here, if it is a value,
and in `rules`, if it can be wrong. The values pickle and travel to the executors.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from dataclasses import dataclass
from typing import Any, Literal

from protocol.config import ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig
from protocol.property import Effect
from protocol.property_kinds import BOOLEAN, MAX_INT64, Kind, integer, one_of
from spark_kafka_source.options import selection, start_positions
from spark_kafka_source.options.id_prefix import id_prefix
from spark_kafka_source.options.partitions import ByPartition, legal_topic
from spark_kafka_source.options.sizes import size_bytes
from spark_kafka_source.options.start_positions import OffsetSpec, at_time
from spark_kafka_source.options.times import duration_ms, timestamp_ms


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
    """One entry. `default` None: none, or what `default_text` says. `field`: of the dataclass that it stands in.

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
    field: str = ""


def option(name: str, use: Use, kind: Kind, doc: str, default: Any = None, **more: Any) -> Any:
    """A field with its entry; the parameters are those of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(name, use, kind, doc, default, **more)})


_OFFSETS_JSON = '{"orders": {"0": 23, "1": -1}}'
_POSITIVE = integer(1, MAX_INT64)
_TIMESTAMP = Kind("milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z", timestamp_ms)
_TIMESTAMPS = Kind(
    'JSON like {"orders": {"0": 1767225600000, "1": "2026-01-31T12:00:00Z"}}', start_positions.offsets_by_timestamp
)
_DURATION = Kind("a number with us, ms, s, m, min, h or d; without, it is milliseconds", duration_ms)
_BYTES = Kind("a number with b, k, m, g or t (powers of 1024); without, it is bytes; at least 1", size_bytes)
_DELIVERY = one_of("at-least-once", "exactly-once", "none")
_PREFIX = Kind("letters, digits, `.`, `_` and `-`, at most 200 of them", id_prefix)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a query reads and how.

    `auto_offset_reset` is `kafka.auto.offset.reset` if it is given. Offsets are topic -> partition -> offset, where -1
    is latest and -2 earliest. `subscribe_pattern` is to be searched for in names.
    """

    client: ClientConfig
    consumer: ConsumerConfig
    streaming: bool
    auto_offset_reset: OffsetReset | None = None

    subscribe: tuple[str, ...] | None = option(
        "subscribe",
        READ,
        Kind("topic names with commas between them", selection.subscribe),
        "the topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed",
    )
    subscribe_pattern: re.Pattern[str] | None = option(
        "subscribePattern",
        READ,
        Kind("a regular expression that Java and Python read alike", selection.subscribe_pattern),
        "the topics to read: those with a match anywhere in their name (`^` and `$` anchor it), also topics that are "
        "created later; never Kafka's internal topics",
    )
    assign: selection.Assignment | None = option(
        "assign", READ, Kind('JSON like {"orders": [0, 1]}', selection.assign), "the partitions to read"
    )
    starting_offsets: OffsetSpec | None = option(
        "startingOffsets",
        READ,
        Kind(f"earliest, latest, group, or JSON like {_OFFSETS_JSON}", start_positions.starting_offsets),
        "where a new query begins; one that has a checkpoint resumes there. In JSON -2 is earliest and -1 latest, and "
        "every partition must be named. `group`: the offsets of `kafka.group.id`, for a partition without one what "
        "`kafka.auto.offset.reset` says. If that is given, it also says where to begin when the group's offset is not "
        "in the log; else the query fails then, or with `failOnDataLoss` false begins at the nearest offset that is "
        "there. Partitions that are found later are read from their earliest offset. A batch cannot "
        "start at latest",
        default_text="streams: group with `kafka.group.id`, else latest; batches: earliest, with a group too",
    )
    starting_offsets_by_timestamp: ByPartition | None = option(
        "startingOffsetsByTimestamp",
        READ,
        _TIMESTAMPS,
        "a new query begins, in each partition, at the first record whose timestamp is that or later; "
        "`startingOffsets` has no effect then",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        READ,
        _TIMESTAMP,
        "the same with one time for all partitions; `startingOffsetsByTimestamp` and `startingOffsets` have no effect "
        "then",
    )
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"] = option(
        "startingOffsetsByTimestampStrategy",
        READ,
        one_of("error", "latest"),
        "what to do in a partition without a record that new: fail, or begin at its end",
        default="error",
    )
    ending_offsets: OffsetSpec | None = option(
        "endingOffsets",
        Use.BATCH_READ,
        Kind(f"latest, or JSON like {_OFFSETS_JSON}", start_positions.ending_offsets),
        "where a batch ends (exclusive). In JSON -1 is latest; -2 is not allowed",
        default_text="latest",
        refused_in=Use.STREAM_READ,
    )
    ending_offsets_by_timestamp: ByPartition | None = option(
        "endingOffsetsByTimestamp",
        Use.BATCH_READ,
        _TIMESTAMPS,
        "a batch ends, in each partition, before the first record whose timestamp is that or later, or at its end; "
        "`endingOffsets` has no effect then",
        refused_in=Use.STREAM_READ,
    )
    ending_timestamp: int | None = option(
        "endingTimestamp",
        Use.BATCH_READ,
        _TIMESTAMP,
        "the same with one time for all partitions; `endingOffsetsByTimestamp` and `endingOffsets` have no effect then",
        refused_in=Use.STREAM_READ,
    )
    commit_offsets: bool | None = option(
        "commitOffsets",
        READ,
        BOOLEAN,
        "whether offsets are committed to `kafka.group.id` when their micro-batch has completed. A batch read never "
        "commits: nobody tells it whether its query completed",
        default_text="true for a stream with `kafka.group.id`",
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        Use.STREAM_READ,
        _POSITIVE,
        "about how many offsets a micro-batch covers, shared out over the partitions by how far each is behind",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        Use.STREAM_READ,
        _BYTES,
        "about how many bytes a micro-batch covers, as they lie in Kafka's log: compressed, if producers compress. An "
        "estimate: in every trigger the driver looks at the sizes of some record batches where each partition goes on. "
        "With `maxOffsetsPerTrigger` the stricter of the two decides",
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger",
        Use.STREAM_READ,
        _POSITIVE,
        "a trigger with fewer new offsets than that waits for more. The first trigger of a run never waits, nor does a "
        "run with the trigger availableNow or once",
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        Use.STREAM_READ,
        _DURATION,
        "how long `minOffsetsPerTrigger` may make triggers wait after the last that did not",
        default=15 * 60_000,
        default_text="15m",
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        READ,
        _POSITIVE,
        "the most offsets that one range has: larger ones are split, before `minPartitions` splits",
    )
    min_partitions: int | None = option(
        "minPartitions",
        READ,
        integer(1),
        "about how many tasks read, if more than there are partitions with new records: large ranges are split",
    )
    max_input_partitions: int | None = option(
        "maxInputPartitions",
        READ,
        integer(1),
        "the most tasks that read: ranges are put together, those of one leader first, so that every task has about as "
        "many offsets. It also bounds what `minPartitions` and `maxRecordsPerPartition` split",
    )
    columns: tuple[str, ...] | None = option(
        "columns",
        READ,
        Kind("names of columns with commas between them", selection.columns),
        "the columns there are, in this order; what is left out is neither decoded nor handed to Spark",
        default_text="all; `headers` only with `includeHeaders`",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        READ,
        BOOLEAN,
        "whether the query fails when records it should read are gone; if not, what is missing is skipped and logged",
        default=True,
    )
    on_topic_recreated: Literal["fail", "earliest"] | None = option(
        "onTopicRecreated",
        Use.STREAM_READ,
        one_of("fail", "earliest"),
        "what a running query does when a topic was deleted and recreated under its name: fail, or read the new one "
        "from its earliest offset. What was not read of the old one is lost either way",
        default_text="fail; with `failOnDataLoss` false: earliest",
    )
    include_headers: bool = option(
        "includeHeaders", READ, BOOLEAN, "whether there is a column `headers`", default=False
    )
    fetch_offset_num_retries: int = option(
        "fetchOffset.numRetries",
        READ,
        integer(0),
        "how patiently the driver asks for offsets and metadata before the query fails: one time "
        "`kafka.default.api.timeout.ms`, and once more for each retry. Before any broker has answered the process, the "
        "query fails after 30 s, or `kafka.request.timeout.ms` if longer",
        default=3,
    )
    fetch_offset_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        READ,
        integer(0),
        "milliseconds that each such retry adds; the waits themselves are `kafka.retry.backoff.ms` and more",
        default=1_000,
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs",
        READ,
        integer(1),
        "how long a task waits for records that must be there before it fails, in milliseconds",
        default=120_000,
    )

    @property
    def start(self) -> OffsetSpec:
        """Where a new query begins. `consumer.auto_offset_reset` matters for `group` only."""
        default: OffsetSpec = (
            "earliest" if not self.streaming else "latest" if self.consumer.group_id is None else "group"
        )
        times = at_time("starting", self.starting_timestamp, self.starting_offsets_by_timestamp)
        return times or self.starting_offsets or default

    @property
    def end(self) -> OffsetSpec:
        """Where a batch ends."""
        times = at_time("ending", self.ending_timestamp, self.ending_offsets_by_timestamp)
        return times or self.ending_offsets or "latest"

    @property
    def group_out_of_range(self) -> Literal["fail", "nearest", "earliest", "latest"]:
        """Where to begin when the group's offset is not in the log.

        A default must not skip anything that is there: only who has asked for it begins at the other end of the log.
        """
        if self.auto_offset_reset is None:
            return "fail" if self.fail_on_data_loss else "nearest"
        return "fail" if self.auto_offset_reset == "none" else self.auto_offset_reset

    @property
    def commits(self) -> bool:
        return self.streaming and self.consumer.group_id is not None and self.commit_offsets is not False

    @property
    def is_member(self) -> bool:
        """Whether the query joins its group, and shares the partitions with the other members."""
        return self.streaming and self.consumer.group_protocol != "none"

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the rows, in their order."""
        return selection.row_columns(self.columns, self.include_headers)

    @property
    def fail_on_topic_recreated(self) -> bool:
        return self.fail_on_data_loss if self.on_topic_recreated is None else self.on_topic_recreated == "fail"

    @property
    def offsets_timeout_ms(self) -> int:
        """How long the driver may take to find out about partitions and offsets before the query fails."""
        once = self.client.default_api_timeout_ms
        return once + self.fetch_offset_num_retries * (once + self.fetch_offset_retry_interval_ms)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Where and how a query writes; `topic` None: every row names its own."""

    client: ClientConfig
    producer: ProducerConfig

    include_headers: bool = option(
        "includeHeaders", Use.WRITE, BOOLEAN, "accepted, but a column `headers` is written in any case", default=False
    )
    topic: str | None = option(
        "topic",
        Use.WRITE,
        Kind("the name of a topic", legal_topic),
        "the topic of all rows, whatever a column `topic` says; without it that column is needed",
    )
    delivery_guarantee: Literal["at-least-once", "exactly-once", "none"] | None = option(
        "deliveryGuarantee",
        Use.WRITE,
        _DELIVERY,
        "at-least-once: all in-sync replicas confirm (acks=all), retries make no duplicates, a batch that Spark "
        "repeats is written again. exactly-once: in transactions, so that who reads with "
        "`isolation.level=read_committed` sees every row of a stream once ([delivery.md](delivery.md)). none: nobody "
        "confirms (acks=0), records can get lost",
        default_text="at-least-once, or what `kafka.acks` makes of it",
    )
    transactional_id_prefix: str | None = option(
        "transactionalIdPrefix",
        Use.WRITE,
        _PREFIX,
        "needed for exactly-once: what the transactional ids of the query and its groups begin with, PREFIX-QUERYID "
        "and PREFIX-QUERYID-TASK; ACLs must allow both, transactional ids and groups",
    )


_WITHOUT_EFFECT = (
    Option(
        "groupIdPrefix",
        READ,
        Kind("any text", str),
        "no group is made up to read; set `kafka.group.id` to have offsets committed",
        effect=Effect.NO_EFFECT,
    ),
)


def entries(*classes: type) -> tuple[Option, ...]:
    """The entries of dataclasses of options, in the order of their fields."""
    fields = [field for options in classes for field in dataclasses.fields(options) if "option" in field.metadata]
    return tuple(dataclasses.replace(field.metadata["option"], field=field.name) for field in fields)


OPTIONS = (*entries(SourceOptions, SinkOptions), *_WITHOUT_EFFECT)
