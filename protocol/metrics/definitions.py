"""The table of metrics: name, group and tags as in Kafka's Java client, and the sensor that each is read from.

docs/metrics.md is made of this table (`tests.protocol.metrics.metrics_page`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

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

    `sensor`: attribute of `ClientSensors`; "" for the value of a gauge.
    `value`: index of the value in an event.
    `tags`: tags besides `client-id`.
    `apis`: keys of the requests that count; empty: all.
    `per`: for AVG: the sensor whose events are the divisor, by default `sensor` itself.
    `over`: for AVG: index of the value that is the divisor, instead of the number of events.
    `gauge`: for MAX: the gauge whose present values count, too.
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


class _Group:
    """Makes the definitions of one group."""

    def __init__(self, name: str) -> None:
        self._name = name

    def metric(self, name: str, description: str, sensor: str, stat: Stat, value: int = 0, **more: Any) -> Definition:
        """Return one definition; `more` are its further attributes."""
        return Definition(name, self._name, description, sensor, stat, value, **more)

    def meter(
        self, name: str, description: str, sensor: str, *, value: int | None = None, **more: Any
    ) -> Iterator[Definition]:
        """Yield `NAME-rate` and `NAME-total`, of a value or of the number of events."""
        rate, total = (Stat.COUNT_RATE, Stat.COUNT) if value is None else (Stat.RATE, Stat.TOTAL)
        yield self.metric(f"{name}-rate", f"{description} per second", sensor, rate, value or 0, **more)
        yield self.metric(f"{name}-total", f"{description} since the start", sensor, total, value or 0, **more)

    def spread(self, name: str, description: str, sensor: str, *, value: int = 0, **more: Any) -> Iterator[Definition]:
        """Yield `NAME-avg` and `NAME-max`."""
        yield self.metric(f"{name}-avg", f"{description}, mean", sensor, Stat.AVG, value, **more)
        yield self.metric(f"{name}-max", f"{description}, maximum", sensor, Stat.MAX, value, **more)


_client, _consumer, _fetch, _member = _Group(CLIENT), _Group(CONSUMER), _Group(FETCH), _Group(COORDINATOR)
_producer, _topic = _Group(PRODUCER), _Group(PRODUCER_TOPIC)


def _of_requests() -> Iterator[Definition]:
    for group, tags in ((_client, ()), (_Group(NODE), (NODE_ID, BROKER))):
        yield from group.meter("request", "requests sent", "requests", tags=tags)
        yield from group.meter("response", "replies decoded", "replies", tags=tags)
        yield from group.meter("outgoing-byte", "bytes of requests", "requests", value=0, tags=tags)
        yield from group.meter("incoming-byte", "bytes of replies", "replies", value=_BYTES, tags=tags)
        yield from group.spread("request-size", "bytes of a request", "requests", tags=tags)
        yield from group.spread(
            "request-latency", "ms from a request to its reply", "replies", value=_LATENCY_MS, tags=tags
        )
        yield from group.spread(
            "throttle-time", "ms for which a reply announced throttling", "replies", value=_THROTTLE_MS, tags=tags
        )
    yield _client.metric(
        "request-latency-in-ms", "ms from a request to its reply, as sarama's histogram", "replies", Stat.HISTOGRAM
    )
    yield _client.metric("connection-count", "open connections", "", Stat.SUM_OF_GAUGES)
    yield from _client.meter("connection-creation", "connections opened", "connections")
    yield from _client.meter("failed-authentication", "authentications that failed", "failed_authentications")


def _of_consumers() -> Iterator[Definition]:
    yield from _consumer.spread("time-between-poll", "ms between two calls of `poll`", "polls")
    yield _consumer.metric(
        "last-poll-seconds-ago", "seconds since the last call of `poll`; -1 before it", "polls", Stat.SECONDS_AGO
    )
    yield from _fetch.spread("fetch-latency", "ms from a Fetch to its reply", "replies", apis=(_FETCH,))
    yield from _fetch.meter("fetch", "replies to Fetch", "replies", apis=(_FETCH,))
    yield from _fetch.spread(
        "fetch-throttle-time",
        "ms for which a reply to Fetch announced throttling",
        "replies",
        value=_THROTTLE_MS,
        apis=(_FETCH,),
    )
    yield from _fetch.spread("fetch-size", "bytes of record batches in a reply that has any", "fetches")
    yield _fetch.metric(
        "records-per-request-avg",
        "records delivered per reply that has any, mean",
        "consumed",
        Stat.AVG,
        _RECORDS,
        per="fetches",
    )
    for tags in ((), (TOPIC,)):
        yield from _fetch.meter("records-consumed", "records delivered", "consumed", value=_RECORDS, tags=tags)
        yield from _fetch.meter("records-filtered", "records that a filter left out", "filtered", value=0, tags=tags)
        yield from _fetch.meter(
            "bytes-consumed",
            "bytes of delivered record batches, as compressed by the producer",
            "consumed",
            value=_RECORD_BYTES,
            tags=tags,
        )
    yield _fetch.metric(
        "records-lag-max",
        "largest lag of a partition: now, or after a delivery in the window",
        "lag",
        Stat.MAX,
        gauge="records-lag",
    )
    yield _fetch.metric(
        "records-lag",
        "offsets from the position to the high watermark (read_committed: last stable offset) of the last reply",
        "",
        Stat.MAX_OF_GAUGES,
        tags=(TOPIC, PARTITION),
    )
    yield _fetch.metric(
        "consumer-batch-size",
        "records of one partition in a reply, as sarama's histogram",
        "partition_replies",
        Stat.HISTOGRAM,
    )


def _of_members() -> Iterator[Definition]:
    yield from _member.meter("heartbeat", "heartbeats answered", "replies", apis=_HEARTBEATS)
    yield _member.metric(
        "heartbeat-response-time-max",
        "ms from a heartbeat to its reply, maximum",
        "replies",
        Stat.MAX,
        _LATENCY_MS,
        apis=_HEARTBEATS,
    )
    yield _member.metric(
        "last-heartbeat-seconds-ago",
        "seconds since the last answered heartbeat; -1 before it",
        "replies",
        Stat.SECONDS_AGO,
        apis=_HEARTBEATS,
    )
    yield from _member.meter("join", "JoinGroup requests answered", "replies", apis=(_JOIN,))
    yield from _member.spread("join-time", "ms from a JoinGroup to its reply", "replies", apis=(_JOIN,))
    yield from _member.meter("sync", "SyncGroup requests answered", "replies", apis=(_SYNC,))
    yield from _member.spread("sync-time", "ms from a SyncGroup to its reply", "replies", apis=(_SYNC,))
    yield from _member.meter("commit", "OffsetCommit requests answered", "replies", apis=(_OFFSET_COMMIT,))
    yield from _member.spread(
        "commit-latency", "ms from an OffsetCommit to its reply", "replies", apis=(_OFFSET_COMMIT,)
    )
    yield _member.metric("rebalance-total", "rebalances completed since the start", "rebalances", Stat.COUNT)
    yield _member.metric(
        "rebalance-rate-per-hour", "rebalances completed per hour", "rebalances", Stat.COUNT_RATE_PER_HOUR
    )
    yield from _member.spread(
        "rebalance-latency", "ms from the start of a rebalance until its partitions are accepted", "rebalances"
    )
    yield _member.metric(
        "rebalance-latency-total", "ms spent in completed rebalances since the start", "rebalances", Stat.TOTAL
    )
    yield _member.metric(
        "last-rebalance-seconds-ago",
        "seconds since the last completed rebalance; -1 before it",
        "rebalances",
        Stat.SECONDS_AGO,
    )
    yield _member.metric("assigned-partitions", "partitions being read", "", Stat.SUM_OF_GAUGES)


def _of_producers() -> Iterator[Definition]:
    yield from _producer.meter("record-send", "records sent, including retries", "produced", value=_RECORDS)
    yield from _producer.spread("batch-size", "bytes of a record batch", "produced", value=_RECORD_BYTES)
    yield _producer.metric(
        "compression-rate-avg",
        "compressed size of a record batch over its estimated uncompressed size, mean",
        "produced",
        Stat.AVG,
        _RATIO,
    )
    yield from _producer.spread(
        "record-queue-time", "ms from the encoding of a record batch until it is sent", "produced", value=_QUEUE_MS
    )
    yield _producer.metric(
        "records-per-request-avg",
        "records of a Produce request, mean",
        "produced",
        Stat.AVG,
        _RECORDS,
        per="produce_requests",
    )
    yield from _producer.spread("request-latency", "ms from a Produce to its reply", "replies", apis=(_PRODUCE,))
    yield from _producer.spread(
        "produce-throttle-time",
        "ms for which a reply to Produce announced throttling",
        "replies",
        value=_THROTTLE_MS,
        apis=(_PRODUCE,),
    )
    yield from _producer.meter("record-retry", "records sent again", "retried", value=_RECORDS)
    yield from _producer.meter("record-error", "records given up", "failed", value=_RECORDS)
    yield from _producer.meter("batch-split", "splits of record batches that a broker found too large", "splits")
    description = "bytes of a record without compression"
    yield _producer.metric("record-size-avg", f"{description}, mean", "record_sizes", Stat.AVG, _ALL_BYTES, over=_COUNT)
    yield _producer.metric("record-size-max", f"{description}, maximum", "record_sizes", Stat.MAX, _LARGEST_BYTES)
    yield _producer.metric("requests-in-flight", "Produce requests without a reply", "", Stat.SUM_OF_GAUGES)
    yield _producer.metric(
        "metadata-age",
        "seconds since the last reply to Metadata; -1 before it",
        "replies",
        Stat.SECONDS_AGO,
        apis=(_METADATA,),
    )


def _of_buffers_and_waits() -> Iterator[Definition]:
    yield _producer.metric("buffer-total-bytes", "`buffer.memory`", "", Stat.SUM_OF_GAUGES)
    yield _producer.metric("buffer-available-bytes", "bytes of `buffer.memory` that are free", "", Stat.SUM_OF_GAUGES)
    yield _producer.metric(
        "waiting-threads", "threads that wait because `buffer.memory` is full", "", Stat.SUM_OF_GAUGES
    )
    yield _producer.metric(
        "bufferpool-wait-ratio",
        "time spent in waits for `buffer.memory`, of all threads, over elapsed time",
        "memory_waits",
        Stat.NS_RATIO,
    )
    yield from _producer.meter(
        "buffer-exhausted",
        "records refused after `max.block.ms` without room in `buffer.memory`",
        "exhausted",
        value=_RECORDS,
    )
    for name, description, sensor in (
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
        doc = f"nanoseconds spent in {description} since the start"
        yield _producer.metric(f"{name}-time-ns-total", doc, sensor, Stat.TOTAL)


def _of_produced_topics() -> Iterator[Definition]:
    tags = (TOPIC,)
    yield from _topic.meter("record-send", "records sent, including retries", "produced", value=_RECORDS, tags=tags)
    yield from _topic.meter("byte", "bytes of record batches sent", "produced", value=_RECORD_BYTES, tags=tags)
    yield _topic.metric(
        "compression-rate",
        "compressed size of a record batch over its estimated uncompressed size, mean",
        "produced",
        Stat.AVG,
        _RATIO,
        tags=tags,
    )
    yield from _topic.meter("record-retry", "records sent again", "retried", value=_RECORDS, tags=tags)
    yield from _topic.meter("record-error", "records given up", "failed", value=_RECORDS, tags=tags)


DEFINITIONS: tuple[Definition, ...] = (
    *_of_requests(),
    *_of_consumers(),
    *_of_members(),
    *_of_producers(),
    *_of_buffers_and_waits(),
    *_of_produced_topics(),
)


def most_specific() -> list[Definition]:
    """Return all definitions, but omit an untagged one if it also exists with tags: sums would count it twice."""
    tagged = {(definition.group, definition.name) for definition in DEFINITIONS if definition.tags}
    return [
        definition for definition in DEFINITIONS if definition.tags or (definition.group, definition.name) not in tagged
    ]
