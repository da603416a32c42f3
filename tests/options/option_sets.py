"""Options as users write them: names and kinds of values found in public notebooks and jobs for `format("kafka")`.

BROKERS, TOPIC (two partitions), OTHER (one partition) and PATTERN are placeholders for names of a test; offsets and
times match its records. The query must read or write the same rows as with Spark's own connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal, get_args

BROKERS, TOPIC, OTHER, PATTERN = "<brokers>", "<topic>", "<other>", "<pattern>"
CONNECT = {"kafka.bootstrap.servers": BROKERS}
READ = {**CONNECT, "subscribe": TOPIC}
EARLIEST = {**READ, "startingOffsets": "earliest"}
LATEST = {**READ, "startingOffsets": "latest"}
NO_FAIL = {**LATEST, "failOnDataLoss": "false"}
SESSION = {"kafka.session.timeout.ms": "30000"}
WRITE = {**CONNECT, "topic": TOPIC}
ACKS_ALL = {**WRITE, "kafka.acks": "all"}


NONE: Mapping[str, str] = {}
Use = Literal["stream", "batch", "sink"]


@dataclass(frozen=True)
class OptionSet:
    """Options of one query. `warnings`: those without effect here."""

    name: str
    use: Use
    options: dict[str, str]
    warnings: tuple[str, ...]


def _option_set(
    use: Use, name: str, options: dict[str, str], idle: Mapping[str, str] = NONE, warnings: tuple[str, ...] = ()
) -> OptionSet:
    """Return the options, and `idle` ones, which have no effect here."""
    return OptionSet(name, use, {**options, **idle}, (*idle, *warnings))


stream, batch, sink = (partial(_option_set, use) for use in get_args(Use))

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
            "failOnDataLoss": "false",
        },
        idle={"maxOffsetsPerTrigger": "100"},
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
    stream("least and most", {**LATEST, "minOffsetsPerTrigger": "100", "minPartitions": "8"}),
    stream("a group", {**NO_FAIL, "maxOffsetsPerTrigger": "2000", "kafka.group.id": "alerts"}),
    stream(
        "members' timeouts",
        {**NO_FAIL, "kafka.request.timeout.ms": "60000"},
        idle={**SESSION, "kafka.heartbeat.interval.ms": "10000", "kafka.max.poll.records": "500"},
    ),
    stream(
        "a group and an assignor",
        {**LATEST, "kafka.group.id": "logs"},
        idle={**SESSION, "kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"},
    ),
    stream(
        "large fetches",
        {**EARLIEST, "kafka.max.partition.fetch.bytes": "2147483647", "kafka.fetch.max.bytes": "20971520"},
        idle={"kafka.max.poll.interval.ms": "900000"},
    ),
    sink(
        "a producer's usual four",
        {
            **ACKS_ALL,
            "kafka.retries": "3",
            "kafka.batch.size": "16384",
            "kafka.linger.ms": "5",
            "kafka.compression.type": "lz4",
        },
    ),
    sink("in flight", {**ACKS_ALL, "kafka.max.in.flight.requests.per.connection": "5"}),
    sink(
        "the leader alone",
        {**WRITE, "kafka.acks": "1", "kafka.linger.ms": "0"},
        warnings=("kafka.enable.idempotence", "kafka.acks"),
    ),
    sink("large record batches", {**WRITE, "kafka.compression.type": "gzip", "kafka.batch.size": "1048576"}),
    sink(
        "idempotent",
        {**WRITE, "kafka.acks": "-1", "kafka.enable.idempotence": "true", "kafka.compression.type": "zstd"},
    ),
    sink("large records", {**WRITE, "kafka.max.request.size": "12000000", "kafka.compression.type": "snappy"}),
]

STRAYS = [
    stream("of files", EARLIEST, idle={"mode": "PERMISSIVE", "inferSchema": "true"}),
    sink("a source's", WRITE, idle={"failOnDataLoss": "false", **SESSION, "kafka.group.id": "$Default"}),
    sink(
        "of old clients",
        WRITE,
        idle={
            "kafka.timeout.ms": "30000",
            "kafka.metadata.fetch.timeout.ms": "60000",
            "kafka.queue.buffering.max.messages": "170000",
            "fetchOffset.numRetries": "3",
        },
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
