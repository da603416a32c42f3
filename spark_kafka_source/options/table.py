"""The options of the source and the sink: one table, and the values that `parsing` makes of them.

Owns the options' names, defaults and meaning; what they can hold is read by `start_positions` and
`protocol.properties`. `python -m spark_kafka_source.options` prints the table as Markdown: docs/options.md is that.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any, Literal

from protocol.config import ClientConfig, ConsumerConfig, ProducerConfig
from protocol.properties import BOOLEAN, MAX_INT64, Effect, Kind, integer, one_of
from spark_kafka_source.options import start_positions
from spark_kafka_source.options.partitions import legal_topic
from spark_kafka_source.options.sizes import size_bytes
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


_OFFSETS_JSON = '{"orders": {"0": 23, "1": -1}}'
_POSITIVE = integer(1, MAX_INT64)
_TIMESTAMP = Kind("milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z", timestamp_ms)
_TIMESTAMPS = Kind(
    'JSON like {"orders": {"0": 1767225600000, "1": "2026-01-31T12:00:00Z"}}', start_positions.offsets_by_timestamp
)
_DURATION = Kind("a number with us, ms, s, m, min, h or d; without, it is milliseconds", duration_ms)
_BYTES = Kind("a number with b, k, m, g or t (powers of 1024); without, it is bytes; at least 1", size_bytes)
_DELIVERY = one_of("at-least-once", "none", otherwise="exactly-once is not supported yet")


OPTIONS: tuple[Option, ...] = (
    Option(
        "subscribe",
        READ,
        Kind("topic names with commas between them", start_positions.subscribe),
        "the topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed",
    ),
    Option(
        "subscribePattern",
        READ,
        Kind("a regular expression in Java's syntax", start_positions.subscribe_pattern),
        "the topics to read: those with a match anywhere in their name (`^` and `$` anchor it), also topics that are "
        "created later; never Kafka's internal topics",
    ),
    Option(
        "assign",
        READ,
        Kind('JSON like {"orders": [0, 1]}', start_positions.assign),
        "the partitions to read",
    ),
    Option(
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
        Kind(f"latest, or JSON like {_OFFSETS_JSON}", start_positions.ending_offsets),
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
        Kind("names of columns with commas between them", start_positions.columns),
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
    assign: start_positions.Assignment | None
    starting_offsets: start_positions.Place
    ending_offsets: start_positions.Place
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
