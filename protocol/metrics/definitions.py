"""The table of metrics: name, group and tags as in Kafka's Java client, and the sensor that each is read from.

docs/metrics.md is made of this table (`protocol.metrics_page`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

CLIENT = "client-metrics"
NODE = "client-node-metrics"
CONSUMER = "consumer-metrics"
FETCH = "consumer-fetch-manager-metrics"
COORDINATOR = "consumer-coordinator-metrics"
PRODUCER = "producer-metrics"
PRODUCER_TOPIC = "producer-topic-metrics"

CONSUMER_GROUPS = (CONSUMER, FETCH, COORDINATOR)
PRODUCER_GROUPS = (PRODUCER, PRODUCER_TOPIC)
CLIENT_GROUPS = (CLIENT, NODE)

NODE_ID, BROKER, TOPIC, PARTITION = "node-id", "broker", "topic", "partition"

_PRODUCE, _FETCH, _METADATA, _OFFSET_COMMIT, _JOIN, _HEARTBEAT, _SYNC = 0, 1, 3, 8, 11, 12, 14
_CONSUMER_GROUP_HEARTBEAT = 68
_HEARTBEATS = (_HEARTBEAT, _CONSUMER_GROUP_HEARTBEAT)

# Positions of the values in the events of `ClientSensors`.
_LATENCY_MS, _BYTES, _THROTTLE_MS = range(3)
_RECORDS, _RECORD_BYTES, _QUEUE_MS, _RATIO = range(4)
_LARGEST_BYTES, _ALL_BYTES, _COUNT = range(3)


class Stat(Enum):
    """The source of a metric: a value of the events, or their number."""

    TOTAL = "sum since the start"
    RATE = "sum per second in the window"
    NS_RATIO = "share of the window, of a sum of nanoseconds"
    COUNT = "number since the start"
    COUNT_RATE = "number per second in the window"
    COUNT_RATE_PER_HOUR = "number per hour in the window"
    AVG = "mean in the window"
    MAX = "maximum in the window"
    SECONDS_AGO = "seconds since the last event"
    HISTOGRAM = "numbers by magnitude since the start"
    SUM_OF_GAUGES = "present value; the sum, if several objects share the client"
    MAX_OF_GAUGES = "present value; the largest, if several objects share the client"


class Kind(Enum):
    """The kind of a metric for monitoring systems."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_OF_GAUGES = (Stat.SUM_OF_GAUGES, Stat.MAX_OF_GAUGES)


@dataclass(frozen=True)
class Definition:
    """One metric.

    Attributes
    ----------
    name, group : str
    description : str
    sensor : str
        Attribute of `ClientSensors`; "" for the value of a gauge.
    stat : Stat
    value : int
        Index of the value in an event.
    tags : tuple of str
        Tags besides `client-id`.
    apis : tuple of int
        Keys of the requests that count; empty: all.
    per : str
        For AVG: the sensor whose events are the divisor, by default `sensor` itself.
    over : int, optional
        For AVG: index of the value that is the divisor, instead of the number of events.
    gauge : str
        For MAX: the gauge whose present values count, too.
    """

    name: str
    group: str
    description: str
    sensor: str
    stat: Stat
    value: int = 0
    tags: tuple[str, ...] = ()
    apis: tuple[int, ...] = ()
    per: str = ""
    over: int | None = None
    gauge: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of the metric."""
        if self.stat is Stat.HISTOGRAM:
            return Kind.HISTOGRAM
        return Kind.COUNTER if self.stat in (Stat.TOTAL, Stat.COUNT) else Kind.GAUGE

    @property
    def is_gauge(self) -> bool:
        """True if objects provide the value."""
        return self.stat in _OF_GAUGES


def _meter(
    name: str,
    group: str,
    what: str,
    sensor: str,
    *,
    value: int | None = None,
    tags: tuple[str, ...] = (),
    apis: tuple[int, ...] = (),
) -> Iterator[Definition]:
    """Yield `NAME-rate` and `NAME-total`, of a value or of the number of events."""
    rate, total = (Stat.COUNT_RATE, Stat.COUNT) if value is None else (Stat.RATE, Stat.TOTAL)
    at = value or 0
    yield Definition(f"{name}-rate", group, f"{what} per second", sensor, rate, at, tags, apis)
    yield Definition(f"{name}-total", group, f"{what} since the start", sensor, total, at, tags, apis)


def _spread(
    name: str,
    group: str,
    what: str,
    sensor: str,
    *,
    value: int = 0,
    tags: tuple[str, ...] = (),
    apis: tuple[int, ...] = (),
) -> Iterator[Definition]:
    """Yield `NAME-avg` and `NAME-max`."""
    yield Definition(f"{name}-avg", group, f"{what}, mean", sensor, Stat.AVG, value, tags, apis)
    yield Definition(f"{name}-max", group, f"{what}, maximum", sensor, Stat.MAX, value, tags, apis)


def _of_requests() -> Iterator[Definition]:
    for group, tags in ((CLIENT, ()), (NODE, (NODE_ID, BROKER))):
        yield from _meter("request", group, "requests sent", "requests", tags=tags)
        yield from _meter("response", group, "replies decoded", "replies", tags=tags)
        yield from _meter("outgoing-byte", group, "bytes of requests", "requests", value=0, tags=tags)
        yield from _meter("incoming-byte", group, "bytes of replies", "replies", value=_BYTES, tags=tags)
        yield from _spread("request-size", group, "bytes of a request", "requests", tags=tags)
        yield from _spread(
            "request-latency", group, "ms from a request to its reply", "replies", value=_LATENCY_MS, tags=tags
        )
        yield from _spread(
            "throttle-time",
            group,
            "ms for which a reply announced throttling",
            "replies",
            value=_THROTTLE_MS,
            tags=tags,
        )
    yield Definition(
        "request-latency-in-ms",
        CLIENT,
        "ms from a request to its reply, as sarama's histogram",
        "replies",
        Stat.HISTOGRAM,
    )
    yield Definition("connection-count", CLIENT, "open connections", "", Stat.SUM_OF_GAUGES)
    yield from _meter("connection-creation", CLIENT, "connections opened", "connections")
    yield from _meter("failed-authentication", CLIENT, "authentications that failed", "failed_authentications")


def _of_consumers() -> Iterator[Definition]:
    yield from _spread("time-between-poll", CONSUMER, "ms between two calls of `poll`", "polls")
    yield Definition(
        "last-poll-seconds-ago",
        CONSUMER,
        "seconds since the last call of `poll`; -1 before it",
        "polls",
        Stat.SECONDS_AGO,
    )
    yield from _spread("fetch-latency", FETCH, "ms from a Fetch to its reply", "replies", apis=(_FETCH,))
    yield from _meter("fetch", FETCH, "replies to Fetch", "replies", apis=(_FETCH,))
    yield from _spread(
        "fetch-throttle-time",
        FETCH,
        "ms for which a reply to Fetch announced throttling",
        "replies",
        value=_THROTTLE_MS,
        apis=(_FETCH,),
    )
    yield from _spread("fetch-size", FETCH, "bytes of record batches in a reply that has any", "fetches")
    yield Definition(
        "records-per-request-avg",
        FETCH,
        "records delivered per reply that has any, mean",
        "consumed",
        Stat.AVG,
        _RECORDS,
        per="fetches",
    )
    for tags in ((), (TOPIC,)):
        yield from _meter("records-consumed", FETCH, "records delivered", "consumed", value=_RECORDS, tags=tags)
        yield from _meter(
            "bytes-consumed",
            FETCH,
            "bytes of delivered record batches, as compressed by the producer",
            "consumed",
            value=_RECORD_BYTES,
            tags=tags,
        )
    yield Definition(
        "records-lag-max",
        FETCH,
        "largest lag of a partition: now, or after a delivery in the window",
        "lag",
        Stat.MAX,
        gauge="records-lag",
    )
    yield Definition(
        "records-lag",
        FETCH,
        "offsets from the position to the high watermark (read_committed: last stable offset) of the last reply",
        "",
        Stat.MAX_OF_GAUGES,
        tags=(TOPIC, PARTITION),
    )
    yield Definition(
        "consumer-batch-size",
        FETCH,
        "records of one partition in a reply, as sarama's histogram",
        "partition_replies",
        Stat.HISTOGRAM,
    )


def _of_members() -> Iterator[Definition]:
    yield from _meter("heartbeat", COORDINATOR, "heartbeats answered", "replies", apis=_HEARTBEATS)
    yield Definition(
        "heartbeat-response-time-max",
        COORDINATOR,
        "ms from a heartbeat to its reply, maximum",
        "replies",
        Stat.MAX,
        _LATENCY_MS,
        apis=_HEARTBEATS,
    )
    yield Definition(
        "last-heartbeat-seconds-ago",
        COORDINATOR,
        "seconds since the last answered heartbeat; -1 before it",
        "replies",
        Stat.SECONDS_AGO,
        apis=_HEARTBEATS,
    )
    yield from _meter("join", COORDINATOR, "JoinGroup requests answered", "replies", apis=(_JOIN,))
    yield from _spread("join-time", COORDINATOR, "ms from a JoinGroup to its reply", "replies", apis=(_JOIN,))
    yield from _meter("sync", COORDINATOR, "SyncGroup requests answered", "replies", apis=(_SYNC,))
    yield from _spread("sync-time", COORDINATOR, "ms from a SyncGroup to its reply", "replies", apis=(_SYNC,))
    yield from _meter("commit", COORDINATOR, "OffsetCommit requests answered", "replies", apis=(_OFFSET_COMMIT,))
    yield from _spread(
        "commit-latency", COORDINATOR, "ms from an OffsetCommit to its reply", "replies", apis=(_OFFSET_COMMIT,)
    )
    yield Definition("rebalance-total", COORDINATOR, "rebalances completed since the start", "rebalances", Stat.COUNT)
    yield Definition(
        "rebalance-rate-per-hour", COORDINATOR, "rebalances completed per hour", "rebalances", Stat.COUNT_RATE_PER_HOUR
    )
    yield from _spread(
        "rebalance-latency",
        COORDINATOR,
        "ms from the start of a rebalance until its partitions are accepted",
        "rebalances",
    )
    yield Definition(
        "rebalance-latency-total",
        COORDINATOR,
        "ms spent in completed rebalances since the start",
        "rebalances",
        Stat.TOTAL,
    )
    yield Definition(
        "last-rebalance-seconds-ago",
        COORDINATOR,
        "seconds since the last completed rebalance; -1 before it",
        "rebalances",
        Stat.SECONDS_AGO,
    )
    yield Definition("assigned-partitions", COORDINATOR, "partitions being read", "", Stat.SUM_OF_GAUGES)


def _of_producers() -> Iterator[Definition]:
    yield from _meter("record-send", PRODUCER, "records sent, including retries", "produced", value=_RECORDS)
    yield from _spread("batch-size", PRODUCER, "bytes of a record batch", "produced", value=_RECORD_BYTES)
    yield Definition(
        "compression-rate-avg",
        PRODUCER,
        "compressed size of a record batch over its estimated uncompressed size, mean",
        "produced",
        Stat.AVG,
        _RATIO,
    )
    yield from _spread(
        "record-queue-time",
        PRODUCER,
        "ms from the encoding of a record batch until it is sent",
        "produced",
        value=_QUEUE_MS,
    )
    yield Definition(
        "records-per-request-avg",
        PRODUCER,
        "records of a Produce request, mean",
        "produced",
        Stat.AVG,
        _RECORDS,
        per="produce_requests",
    )
    yield from _spread("request-latency", PRODUCER, "ms from a Produce to its reply", "replies", apis=(_PRODUCE,))
    yield from _spread(
        "produce-throttle-time",
        PRODUCER,
        "ms for which a reply to Produce announced throttling",
        "replies",
        value=_THROTTLE_MS,
        apis=(_PRODUCE,),
    )
    yield from _meter("record-retry", PRODUCER, "records sent again", "retried", value=_RECORDS)
    yield from _meter("record-error", PRODUCER, "records given up", "failed", value=_RECORDS)
    yield from _meter("batch-split", PRODUCER, "splits of record batches that a broker found too large", "splits")
    what = "bytes of a record without compression"
    yield Definition("record-size-avg", PRODUCER, f"{what}, mean", "record_sizes", Stat.AVG, _ALL_BYTES, over=_COUNT)
    yield Definition("record-size-max", PRODUCER, f"{what}, maximum", "record_sizes", Stat.MAX, _LARGEST_BYTES)
    yield Definition("requests-in-flight", PRODUCER, "Produce requests without a reply", "", Stat.SUM_OF_GAUGES)
    yield Definition(
        "metadata-age",
        PRODUCER,
        "seconds since the last reply to Metadata; -1 before it",
        "replies",
        Stat.SECONDS_AGO,
        apis=(_METADATA,),
    )
    yield Definition("buffer-total-bytes", PRODUCER, "`buffer.memory`", "", Stat.SUM_OF_GAUGES)
    yield Definition(
        "buffer-available-bytes", PRODUCER, "bytes of `buffer.memory` that are free", "", Stat.SUM_OF_GAUGES
    )
    yield Definition(
        "waiting-threads", PRODUCER, "threads that wait because `buffer.memory` is full", "", Stat.SUM_OF_GAUGES
    )
    yield Definition(
        "bufferpool-wait-ratio",
        PRODUCER,
        "time spent in waits for `buffer.memory`, of all threads, over elapsed time",
        "memory_waits",
        Stat.NS_RATIO,
    )
    yield from _meter(
        "buffer-exhausted",
        PRODUCER,
        "records refused after `max.block.ms` without room in `buffer.memory`",
        "exhausted",
        value=_RECORDS,
    )
    for name, what, sensor in (
        ("bufferpool-wait", "waits for `buffer.memory`, of all threads,", "memory_waits"),
        ("flush", "`flush`", "flushes"),
        ("metadata-wait", "waits for topics that are not in the cached metadata", "metadata_waits"),
        ("txn-init", "`init_transactions`", "txn_init"),
        ("txn-begin", "`begin_transaction`", "txn_begin"),
        ("txn-send-offsets", "`send_offsets_to_transaction`", "txn_send_offsets"),
        ("txn-commit", "`commit_transaction`", "txn_commit"),
        ("txn-abort", "`abort_transaction`", "txn_abort"),
        ("txn-prepare", "`prepare_transaction`", "txn_prepare"),
    ):
        doc = f"nanoseconds spent in {what} since the start"
        yield Definition(f"{name}-time-ns-total", PRODUCER, doc, sensor, Stat.TOTAL)
    tags = (TOPIC,)
    yield from _meter(
        "record-send", PRODUCER_TOPIC, "records sent, including retries", "produced", value=_RECORDS, tags=tags
    )
    yield from _meter(
        "byte", PRODUCER_TOPIC, "bytes of record batches sent", "produced", value=_RECORD_BYTES, tags=tags
    )
    yield Definition(
        "compression-rate",
        PRODUCER_TOPIC,
        "compressed size of a record batch over its estimated uncompressed size, mean",
        "produced",
        Stat.AVG,
        _RATIO,
        tags,
    )
    yield from _meter("record-retry", PRODUCER_TOPIC, "records sent again", "retried", value=_RECORDS, tags=tags)
    yield from _meter("record-error", PRODUCER_TOPIC, "records given up", "failed", value=_RECORDS, tags=tags)


DEFINITIONS: tuple[Definition, ...] = (
    *_of_requests(),
    *_of_consumers(),
    *_of_members(),
    *_of_producers(),
)


def most_specific() -> list[Definition]:
    """Return all definitions, but omit an untagged one if it also exists with tags: sums would count it twice."""
    tagged = {(each.group, each.name) for each in DEFINITIONS if each.tags}
    return [each for each in DEFINITIONS if each.tags or (each.group, each.name) not in tagged]
