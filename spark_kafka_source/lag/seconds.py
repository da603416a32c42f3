"""Lag in seconds: the age of the first unread record of each partition, from requests to the brokers.

A sample without retries: partitions without a reply in time, and partitions whose record batch has no record at the
offset, are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ClientConfig, ConsumerConfig, parse_client, parse_consumer
from protocol.errors import ConfigurationError, KafkaError
from protocol.fetch.fetch_position import CompletedFetch
from protocol.fetch.log_samples import log_samples
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.lag.table import Lag, PartitionLag
from spark_kafka_source.options.partitions import partition_name
from spark_kafka_source.options.stray_options import PREFIX

log = logging.getLogger(__name__)

SAMPLE_MS = 2_000
# A broker always sends one whole record batch (KIP-74), but only of one partition per request.
_FETCH_BYTES = 1

Options = str | Mapping[str, str]
"""Bootstrap servers, or the options of a source, of which those with the prefix `kafka.` are used."""


@with_remedies()
def configs(options: Options) -> tuple[ClientConfig, ConsumerConfig]:
    """Parse the options of a client and a consumer. Raises `ConfigurationError`."""
    if not isinstance(options, str | Mapping):
        kind = type(options).__name__
        raise ConfigurationError(f"the options are a {kind}; give a text such as broker-1:9092,broker-2:9092 or a dict")
    named = {f"{PREFIX}bootstrap.servers": options} if isinstance(options, str) else options
    kafka = {
        key.lower().removeprefix(PREFIX): str(value) for key, value in named.items() if key.lower().startswith(PREFIX)
    }
    return parse_client(kafka), parse_consumer(kafka)


def with_seconds(lag: Lag, client: Client, consumer: ConsumerConfig, sample_ms: float) -> Lag:
    """Add lag in seconds, first for the partitions with the largest lag, until `sample_ms` have passed."""
    behind = sorted((row for row in lag if (row.offsets_behind or 0) > 0), key=lambda row: -(row.offsets_behind or 0))
    deadline = client.deadline(sample_ms)
    first_ms: dict[tuple[str, int, int | None], int] = {}
    while behind and not deadline.passed:
        # One request takes one offset per partition; two sources of a query may be at different offsets.
        partitions: dict[TopicPartition, PartitionLag] = {}
        for row in behind:
            partitions.setdefault((row.topic, row.partition), row)
        offsets = {key: row.committed for key, row in partitions.items() if row.committed is not None}
        unread_ms = _first_unread_ms(client, consumer, offsets, deadline)
        first_ms.update({(*key, partitions[key].source): time_ms for key, time_ms in unread_ms.items()})
        behind = [row for row in behind if partitions[row.topic, row.partition] is not row]
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
    """Return timestamps (milliseconds since 1970) of the first records at or after `offsets`.

    Partitions with an error, and those without a reply before the deadline, are left out.
    """
    times_ms: dict[TopicPartition, int] = {}
    samples = log_samples(client, config, offsets, deadline, partition_max_bytes=_FETCH_BYTES, partitions_per_request=1)
    for key, fetched in samples:
        try:
            timestamp_ms = _first_timestamp_ms(fetched, config, partition_name(key))
        except KafkaError as error:
            log.debug("%s: cannot read the first unread record: %s", partition_name(key), error)
        else:
            if timestamp_ms is not None:
                times_ms[key] = timestamp_ms
    return times_ms


def _first_timestamp_ms(fetched: CompletedFetch, config: ConsumerConfig, where: str) -> int | None:
    for batch in fetched.decode(config, ["timestamp_ms"], where):
        timestamp_ms: int = batch.column(0)[0].as_py()
        # Messages of magic 0 have no timestamp: -1.
        return timestamp_ms if timestamp_ms >= 0 else None
    return None
