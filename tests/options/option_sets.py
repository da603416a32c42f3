"""Options as users write them: names and kinds of values found in public notebooks and jobs for `format("kafka")`.

BROKERS, TOPIC (two partitions), OTHER (one partition) and PATTERN are placeholders for names of a test; offsets and
times match its records. The query must read or write the same rows as with Spark's own connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

BROKERS, TOPIC, OTHER, PATTERN = "<brokers>", "<topic>", "<other>", "<pattern>"
CONNECT = {"kafka.bootstrap.servers": BROKERS}
READ = {**CONNECT, "subscribe": TOPIC}
EARLIEST = {**READ, "startingOffsets": "earliest"}
LATEST = {**READ, "startingOffsets": "latest"}
WRITE = {**CONNECT, "topic": TOPIC}
STRING = "org.apache.kafka.common.serialization.StringDeserializer"


@dataclass(frozen=True)
class OptionSet:
    """Options of one query. `warnings`: the options without effect here."""

    name: str
    use: Literal["stream", "batch", "sink"]
    options: dict[str, str]
    warnings: tuple[str, ...] = ()


def stream(name: str, options: dict[str, str], *warnings: str) -> OptionSet:
    return OptionSet(name, "stream", options, warnings)


def batch(name: str, options: dict[str, str], *warnings: str) -> OptionSet:
    return OptionSet(name, "batch", options, warnings)


def sink(name: str, options: dict[str, str], *warnings: str) -> OptionSet:
    return OptionSet(name, "sink", options, warnings)


PLAIN = [
    stream("latest", LATEST),
    stream("earliest", EARLIEST),
    stream("no place to start", READ),
    stream("data loss allowed", {**EARLIEST, "failOnDataLoss": "false"}),
    stream("another order and case", {"startingoffsets": "EARLIEST", "maxoffsetspertrigger": "500", **READ}),
    stream("two topics", {**EARLIEST, "subscribe": f"{TOPIC},{OTHER}"}),
    stream("a pattern", {**CONNECT, "subscribePattern": PATTERN, "startingOffsets": "earliest"}),
    stream(
        "partitions and offsets",
        {**CONNECT, "assign": f'{{"{TOPIC}":[0,1]}}', "startingOffsets": f'{{"{TOPIC}":{{"0":10,"1":-2}}}}'},
    ),
    stream("a time for each", {**READ, "startingOffsetsByTimestamp": f'{{"{TOPIC}":{{"0":1000,"1":0}}}}'}),
    stream("one time", {**READ, "startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}),
    stream("a scheme", {**EARLIEST, "kafka.bootstrap.servers": f"http://{BROKERS}"}),
    batch("all there is", {**EARLIEST, "endingOffsets": "latest"}),
    batch("a part", {**CONNECT, "assign": f'{{"{TOPIC}": [1]}}', "failOnDataLoss": "false"}),
    batch("a pattern in a batch", {**CONNECT, "subscribePattern": PATTERN, "startingOffsets": "earliest"}),
    batch(
        "between offsets",
        {
            **READ,
            "startingOffsets": f'{{"{TOPIC}":{{"0":1,"1":1}}}}',
            "endingOffsets": f'{{"{TOPIC}":{{"0":-1,"1":-1}}}}',
            "maxOffsetsPerTrigger": "100",
            "failOnDataLoss": "false",
        },
        "maxOffsetsPerTrigger",
    ),
    batch(
        "between times",
        {
            **READ,
            "startingOffsetsByTimestamp": f'{{"{TOPIC}":{{"0":1000,"1":2000}}}}',
            "endingOffsetsByTimestamp": f'{{"{TOPIC}":{{"0":20000,"1":21000}}}}',
        },
    ),
    sink("a topic", WRITE),
    sink("a checkpoint in a batch", {**WRITE, "checkpointLocation": "/tmp/checkpoint"}),
]

TUNED = [
    stream("limits", {**LATEST, "maxOffsetsPerTrigger": "10000", "minPartitions": "6"}),
    stream("least and most", {**LATEST, "minOffsetsPerTrigger": "100", "minPartitions": "8"}),
    stream("headers and a poll timeout", {**LATEST, "includeHeaders": "true", "kafkaConsumer.pollTimeoutMs": "3000"}),
    stream(
        "retries of offsets",
        {**EARLIEST, "fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "10", "maxOffsetsPerTrigger": "10"},
    ),
    stream(
        "a group", {**LATEST, "maxOffsetsPerTrigger": "2000", "failOnDataLoss": "false", "kafka.group.id": "alerts"}
    ),
    stream(
        "members' timeouts",
        {
            **LATEST,
            "failOnDataLoss": "false",
            "kafka.request.timeout.ms": "60000",
            "kafka.session.timeout.ms": "30000",
            "kafka.heartbeat.interval.ms": "10000",
            "kafka.max.poll.records": "500",
        },
        "kafka.session.timeout.ms",
        "kafka.heartbeat.interval.ms",
        "kafka.max.poll.records",
    ),
    stream(
        "a group and an assignor",
        {
            **LATEST,
            "kafka.group.id": "logs",
            "kafka.session.timeout.ms": "10000",
            "kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        },
        "kafka.session.timeout.ms",
        "kafka.partition.assignment.strategy",
    ),
    stream(
        "large fetches",
        {
            **EARLIEST,
            "kafka.max.partition.fetch.bytes": "2147483647",
            "kafka.fetch.max.bytes": "20971520",
            "kafka.max.poll.interval.ms": "900000",
        },
        "kafka.max.poll.interval.ms",
    ),
    stream("fresh metadata", {**EARLIEST, "kafka.metadata.max.age.ms": "1", "failOnDataLoss": "false"}),
    sink(
        "a producer's usual four",
        {
            **WRITE,
            "kafka.acks": "all",
            "kafka.retries": "3",
            "kafka.batch.size": "16384",
            "kafka.linger.ms": "5",
            "kafka.compression.type": "lz4",
        },
    ),
    sink("in flight", {**WRITE, "kafka.acks": "all", "kafka.max.in.flight.requests.per.connection": "5"}),
    sink(
        "the leader alone",
        {**WRITE, "kafka.acks": "1", "kafka.linger.ms": "0"},
        "kafka.enable.idempotence",
        "kafka.acks",
    ),
    sink("large record batches", {**WRITE, "kafka.compression.type": "gzip", "kafka.batch.size": "1048576"}),
    sink(
        "idempotent",
        {**WRITE, "kafka.acks": "-1", "kafka.enable.idempotence": "true", "kafka.compression.type": "zstd"},
    ),
    sink("large records", {**WRITE, "kafka.max.request.size": "12000000", "kafka.compression.type": "snappy"}),
]

STRAYS = [
    stream(
        "graceful",
        {**EARLIEST, "maxOffsetsPerTrigger": "200", "maxRatePerPartition": "10", "stopGracefullyOnShutdown": "true"},
        "maxRatePerPartition",
        "stopGracefullyOnShutdown",
    ),
    stream("of files", {**EARLIEST, "mode": "PERMISSIVE", "inferSchema": "true"}, "mode", "inferSchema"),
    stream(
        "deserializers",
        {**EARLIEST, "key.deserializer": STRING, "value.deserializer": STRING, "enable.auto.commit": "false"},
        "key.deserializer",
        "value.deserializer",
        "enable.auto.commit",
    ),
    sink(
        "a source's",
        {**WRITE, "failOnDataLoss": "false", "kafka.session.timeout.ms": "60000", "kafka.group.id": "$Default"},
        "failOnDataLoss",
        "kafka.session.timeout.ms",
        "kafka.group.id",
    ),
    sink(
        "of old clients",
        {
            **WRITE,
            "kafka.timeout.ms": "30000",
            "kafka.metadata.fetch.timeout.ms": "60000",
            "kafka.queue.buffering.max.messages": "170000",
            "fetchOffset.numRetries": "3",
        },
        "kafka.timeout.ms",
        "kafka.metadata.fetch.timeout.ms",
        "kafka.queue.buffering.max.messages",
        "fetchOffset.numRetries",
    ),
]

OPTION_SETS = [*PLAIN, *TUNED, *STRAYS]
READS = [option_set for option_set in OPTION_SETS if option_set.use != "sink"]
SINKS = [option_set for option_set in OPTION_SETS if option_set.use == "sink"]


def filled(option_set: OptionSet, names: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the placeholders replaced by `names`."""
    return {
        key: reduce(lambda text, name: text.replace(name, names[name]), names, option_set.options[key])
        for key in option_set.options
    }
