"""Lag in seconds: the age of the first records that are not read yet, asked of the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from protocol.config import ClientConfig, ConsumerConfig, parse_client, parse_consumer
from spark_kafka_source.clients import client_for
from spark_kafka_source.lag.first_unread import first_unread_ms
from spark_kafka_source.lag.table import Lag, PartitionLag
from spark_kafka_source.options.stray_options import PREFIX

SAMPLE_MS = 2_000

Options = str | Mapping[str, str]
"""Bootstrap servers, or the options of a source: only those that start with `kafka.` are looked at."""


def configs(options: Options) -> tuple[ClientConfig, ConsumerConfig]:
    given = {f"{PREFIX}bootstrap.servers": options} if isinstance(options, str) else options
    kafka = {
        key.lower().removeprefix(PREFIX): str(value) for key, value in given.items() if key.lower().startswith(PREFIX)
    }
    return parse_client(kafka, prefix=PREFIX), parse_consumer(kafka, prefix=PREFIX)


def with_seconds(lag: Lag, config: ClientConfig, consumer: ConsumerConfig, sample_ms: float) -> Lag:
    """Asks those first that are behind most."""
    client = client_for(config)
    behind = sorted((row for row in lag if (row.offsets_behind or 0) > 0), key=lambda row: -(row.offsets_behind or 0))
    offsets = {(row.topic, row.partition): row.committed for row in behind if row.committed is not None}
    first_ms = first_unread_ms(client, consumer, offsets, client.deadline(sample_ms))
    now_ms = client.clock.wall_ms()

    def seconds(row: PartitionLag) -> float | None:
        if row.offsets_behind == 0:
            return 0.0
        timestamp_ms = first_ms.get((row.topic, row.partition))
        return None if timestamp_ms is None else max(0, now_ms - timestamp_ms) / 1000

    return Lag(tuple(replace(row, seconds_behind=seconds(row)) for row in lag))
