"""Lag in seconds: the age of the first records that are not read yet, asked of the brokers.

A sample, not a reading: no retries. A partition that does not answer in time, or whose record batch has no record
there, is left out. Runs wherever its caller does (for Spark: the driver).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ClientConfig, ConsumerConfig, parse_client, parse_consumer
from protocol.consumer.log_samples import log_samples
from protocol.consumer.partition_consumer import Fetched
from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.lag.table import Lag, PartitionLag
from spark_kafka_source.options.partitions import name
from spark_kafka_source.options.stray_options import PREFIX

log = logging.getLogger(__name__)

SAMPLE_MS = 2_000
# A broker sends one whole record batch however little is asked for (KIP-74), but of one partition only.
_FETCH_BYTES = 1

Options = str | Mapping[str, str]
"""Bootstrap servers, or the options of a source: only those that start with `kafka.` are looked at."""


def configs(options: Options) -> tuple[ClientConfig, ConsumerConfig]:
    given = {f"{PREFIX}bootstrap.servers": options} if isinstance(options, str) else options
    kafka = {
        key.lower().removeprefix(PREFIX): str(value) for key, value in given.items() if key.lower().startswith(PREFIX)
    }
    return parse_client(kafka, prefix=PREFIX), parse_consumer(kafka, prefix=PREFIX)


def with_seconds(lag: Lag, client: Client, consumer: ConsumerConfig, sample_ms: float) -> Lag:
    """Asks those first that are behind most."""
    behind = sorted((row for row in lag if (row.offsets_behind or 0) > 0), key=lambda row: -(row.offsets_behind or 0))
    deadline = client.deadline(sample_ms)
    first_ms: dict[tuple[str, int, int | None], int] = {}
    while behind and not deadline.passed:
        # A sample is of one offset in each partition; two sources of a query may be at two.
        asked: dict[TopicPartition, PartitionLag] = {}
        for row in behind:
            asked.setdefault((row.topic, row.partition), row)
        offsets = {key: row.committed for key, row in asked.items() if row.committed is not None}
        found = _first_unread_ms(client, consumer, offsets, deadline)
        first_ms.update({(*key, asked[key].source): time_ms for key, time_ms in found.items()})
        behind = [row for row in behind if asked[row.topic, row.partition] is not row]
    now_ms = client.clock.wall_ms()

    def seconds(row: PartitionLag) -> float | None:
        if row.offsets_behind == 0:
            return 0.0
        timestamp_ms = first_ms.get((row.topic, row.partition, row.source))
        return None if timestamp_ms is None else max(0, now_ms - timestamp_ms) / 1000

    return Lag(tuple(row._replace(seconds_behind=seconds(row)) for row in lag))


def _first_unread_ms(
    client: Client, config: ConsumerConfig, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Timestamps (milliseconds since 1970) of the first records at or after `offsets`, in no particular order.

    Raises nothing of what a broker may answer: whatever could not be learnt before the deadline is left out.
    """
    found: dict[TopicPartition, int] = {}
    samples = log_samples(client, config, offsets, deadline, partition_max_bytes=_FETCH_BYTES, partitions_per_request=1)
    for key, fetched in samples:
        try:
            timestamp_ms = _first_timestamp_ms(fetched, config, name(key))
        except KafkaError as error:
            log.debug("%s: its first unread record could not be read: %s", name(key), error)
        else:
            if timestamp_ms is not None:
                found[key] = timestamp_ms
    return found


def _first_timestamp_ms(fetched: Fetched, config: ConsumerConfig, where: str) -> int | None:
    for batch in fetched.decode(config, ["timestamp_ms"], where):
        timestamp_ms: int = batch.column(0)[0].as_py()
        # Messages of magic 0 have no time, and say -1.
        return timestamp_ms if timestamp_ms >= 0 else None
    return None
