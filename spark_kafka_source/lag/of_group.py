"""How far a group's committed offsets are behind the ends of the logs: asked of the brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.consumer.list_offsets import list_offsets
from protocol.group.offsets import fetch_offsets
from protocol.kafka_terms import LATEST, TopicPartition
from spark_kafka_source.clients import client_for
from spark_kafka_source.lag.seconds import SAMPLE_MS, Options, configs, with_seconds
from spark_kafka_source.lag.table import Lag, PartitionLag
from spark_kafka_source.remedies import with_remedies

log = logging.getLogger(__name__)


@with_remedies()
def lag_of_group(
    options: Options,
    group: str,
    topics: Iterable[str] | None = None,
    *,
    seconds: bool = True,
    sample_ms: float = SAMPLE_MS,
    timeout_ms: float | None = None,
) -> Lag:
    """How far a group's committed offsets are behind the logs as they are now; any group, with or without members.

    Every partition of `topics`, by default of all topics that the group has offsets for: then a group without any,
    also one that is misspelled, has no rows, and `offsets_behind` 0; a warning says so. `kafka.isolation.level` says
    what counts as the end. Waits `timeout_ms`, by default `kafka.default.api.timeout.ms`, and `sample_ms` of that at
    most for lag in seconds, which `seconds=False` leaves out.

    Raises `ConfigurationError`, `DeadlineExceeded` or `BrokerError` (unknown topic, not authorized).
    """
    config, consumer = configs(options)
    client = client_for(config)
    deadline = client.deadline(timeout_ms)
    committed = {
        key: entry.offset for key, entry in fetch_offsets(client, group, None, deadline, require_stable=False).items()
    }
    if not committed:
        log.warning("group %s has committed no offsets; is that its name?", group)
    names = sorted({topic for topic, _ in committed} if topics is None else set(topics))
    keys = partitions_of(client, names, deadline, must_exist=topics is not None)
    ends = list_offsets(
        client, dict.fromkeys(keys, LATEST), isolation_level=consumer.isolation_level, deadline=deadline
    )
    lag = Lag(tuple(PartitionLag(*key, committed.get(key), ends[key].offset) for key in sorted(keys)))
    return with_seconds(lag, client, consumer, min(sample_ms, deadline.remaining_ms())) if seconds else lag


def partitions_of(client: Client, topics: list[str], deadline: Deadline, *, must_exist: bool) -> list[TopicPartition]:
    """As brokers have them now. Raises `BrokerError`, of an unknown topic only if it `must_exist`."""
    found = client.metadata(topics, deadline).topics if topics else {}
    keys: list[TopicPartition] = []
    for name in topics:
        code = found[name].error_code if name in found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code == ErrorCode.NONE:
            keys += [(name, partition) for partition in found[name].partitions]
        elif must_exist or code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise broker_error(code, f"topic {name}", topic=name)
    return keys
