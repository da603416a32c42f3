"""The time of the first record at or after an offset, for many partitions: what a lag in seconds is made of.

A sample, not a reading: no retries. A partition that does not answer in time, or whose record batch has no record
there, is left out. Runs wherever its caller does (for Spark: the driver). Used by `seconds`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig
from protocol.consumer.log_samples import log_samples
from protocol.consumer.partition_consumer import Fetched
from protocol.errors import KafkaError
from spark_kafka_source.options.partitions import TopicPartition, name

log = logging.getLogger(__name__)

# A broker sends one whole record batch however little is asked for (KIP-74), but of one partition only.
_FETCH_BYTES = 1


def first_unread_ms(
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
