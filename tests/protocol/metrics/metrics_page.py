"""The reference of metrics as Markdown; a test keeps docs/metrics.md equal to this text.

The tables are those of `protocol.metrics.definitions`.

    python -m tests.protocol.metrics.metrics_page > docs/metrics.md
"""

from __future__ import annotations

from protocol.metrics.definitions import (
    CLIENT,
    CONSUMER,
    COORDINATOR,
    DEFINITIONS,
    FETCH,
    NODE,
    PRODUCER,
    PRODUCER_TOPIC,
)
from protocol.property_page import table

_INTRODUCTION = """\
# Metrics and logs

This page is made by `python -m tests.protocol.metrics.metrics_page > docs/metrics.md`.

Every `Client` keeps metrics with the names of Kafka's Java client. They are always on. Nothing is counted per record:
an event is a request, a reply or a record batch.

Recording took 0.02 % of the processor time of reading 100-byte records, 0.06 % of writing them in columns, and 0.13 %
with one record per request: the number of events times the cost of one (`python -m benchmarks.run metrics`).

```python
from protocol import KafkaConsumer

consumer = KafkaConsumer({"bootstrap.servers": "broker-1:9092", "group.id": "orders-etl"})
consumer.subscribe(["orders"])
records = consumer.poll(1_000)
for metric in consumer.metrics():
    print(metric.group, metric.name, dict(metric.tags), metric.value)
```

`KafkaConsumer.metrics`, `Consumer.metrics`, `ConsumerGroup.metrics` and `Producer.metrics` return the metrics of their
client that concern them, `Client.metrics` all of them. Consumers and producers that share a client share its metrics:
totals are sums. These methods are thread-safe and send no request."""

_CALLBACK = """\
`MetricsReporter` calls a function at an interval, and a last time when it is closed:

```python
from protocol.metrics import MetricsReporter

with MetricsReporter(consumer, lambda metrics: print(len(metrics), "metrics"), interval_ms=30_000):
    consumer.poll(1_000)
```"""

_PROMETHEUS = """\
`pip install '.[prometheus]'` adds `prometheus_client`. The names are those of Micrometer for the Java client, such as
`kafka_consumer_fetch_manager_records_lag_max`, and tags become labels:

```python
from protocol.metrics.prometheus import start_http_server

server, thread = start_http_server(9400, consumer)
```

Several sources are served together if their clients differ in `client.id`. `MetricsCollector(consumer)` is for a
registry of your own. Metrics that exist both for a client and for its topics are exported for the topics only."""

_OPENTELEMETRY = """\
`pip install '.[opentelemetry]'` adds `opentelemetry-api`. Nothing is exported until `observe` is called. It creates an
observable instrument for each metric, such as `kafka.consumer_fetch_manager.records_lag_max`, which the SDK reads when
it exports. Histograms have none.

```python
from protocol.metrics.opentelemetry import observe

observe(consumer)
```"""

_LAG = """\
`pykafka groups lag GROUP... --serve :9308` serves the lag of groups, and `LagListener(options=...).serve(9309)` that of
the queries of a Spark session, with their rates. Both need `pip install '.[prometheus]'`. Lag is computed for each
scrape. Without `options`, the lag of a query is that at the end of its last trigger, and up to the log ends at the
start of that trigger only. The names are those of kafka_exporter and Kafka Lag Exporter. The dashboard
`conf/grafana-lag.json` shows them.

Records arrive at the rate of `kafka_topic_partition_current_offset`; Spark's rates are those of the records that were
read, which `maxOffsetsPerTrigger` limits. A query in its first batch has no lag yet, and that of an ended query is not
served any more: `spark_streaming_query_active` is 1 from the start of a query, and 0 after its end. Alert on 0, and on
its absence, which means that the driver is gone or that the query was never started.

| metric | labels | meaning |
| --- | --- | --- |
| `kafka_consumergroup_lag` | consumergroup, query, topic, partition | offsets from the committed one to the log end |
| `kafka_consumergroup_current_offset` | consumergroup, query, topic, partition | the committed offset |
| `kafka_consumergroup_group_lag_seconds` | consumergroup, query, topic, partition | age of the next record to read |
| `kafka_consumergroup_members` | consumergroup | members of the group |
| `kafka_topic_partition_current_offset` | topic, partition | the log end |
| `spark_streaming_query_active` | query | 1 while the query runs, 0 after its end |
| `spark_streaming_input_rows_per_second` | query | rows read per second since the trigger before |
| `spark_streaming_processed_rows_per_second` | query | rows per second of the last trigger's duration |
| `spark_streaming_batch_duration_seconds` | query | time of the last trigger |

The label `query` is the name of a query, or its id. `consumergroup` is the group that the query commits to; without
one, and before PySpark 4.2, it is the same as `query`. Lag from `pykafka groups lag --serve` has no `query`."""

_WINDOWS = """\
Rates, means and maxima are those of the last 30 to 60 seconds, as in Java with its default configuration: two samples
of 30 seconds. A mean or maximum without events in this time is NaN. Totals begin with the client. Every metric has the
tag `client-id`, and those of the tables further ones. Times are in milliseconds unless the name says otherwise."""

_OF_CLIENTS = """\
Requests and connections, as in Java's `consumer-metrics`, `producer-metrics` and `admin-client-metrics`: here one
client may serve all three. `client-node-metrics` has the same by broker; `node-id` is `node--1` for an address that is
not in the metadata, such as a bootstrap server behind a load balancer.

Java's metrics of its selector thread (`io-*`, `select-*`, `network-io-*`) have no counterpart: each connection is
served by the thread that uses it. Closed connections and successful authentications are not counted."""

_SECTIONS = (
    ("Client", _OF_CLIENTS, (CLIENT, NODE)),
    ("Consumer", "Of `KafkaConsumer`, `ConsumerGroup`, `Consumer` and bounded reads.", (CONSUMER, FETCH)),
    ("Group member", "Of `KafkaConsumer`, `ConsumerGroup` and `OffsetManager`.", (COORDINATOR,)),
    ("Producer", "Of `Producer` and `TransactionalProducer`.", (PRODUCER, PRODUCER_TOPIC)),
)


def markdown() -> str:
    """Return the page."""
    parts = [_INTRODUCTION, _CALLBACK, "## Values", _WINDOWS, "## Prometheus", _PROMETHEUS]
    parts += ["## OpenTelemetry", _OPENTELEMETRY]
    parts += ["## Lag of groups and queries", _LAG]
    for title, text, groups in _SECTIONS:
        parts += [f"## {title}", text, _table(groups)]
    return "\n\n".join(parts)


def _table(groups: tuple[str, ...]) -> str:
    rows = [
        (f"`{definition.name}`", f"`{definition.group}`", ", ".join(definition.tags), definition.description)
        for group in groups
        for definition in DEFINITIONS
        if definition.group == group
    ]
    return table(("metric", "group", "tags", "meaning"), rows)


if __name__ == "__main__":
    print(markdown())
