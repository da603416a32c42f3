"""The lag of a consumer group, from requests to the brokers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, DeadlineExceeded
from protocol.fetch.list_offsets import list_offsets
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.kafka_terms import LATEST, TopicPartition
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.lag.seconds import SAMPLE_MS, Options, configs, with_seconds
from spark_kafka_source.lag.table import Lag, PartitionLag
from spark_kafka_source.options.partitions import partition_names
from spark_kafka_source.process_state import PROCESS

log = logging.getLogger(__name__)

# A leader election takes less, except if no replica is in sync.
_ELECTION_MS = 2_000


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
    """Return the distance of a group's committed offsets from the log ends now.

    A partition without a leader has no log end and no lag, and a warning is logged.

    Parameters
    ----------
    options : str or mapping
        Bootstrap servers, or the options of the source. `kafka.isolation.level` decides what the log end is: the high
        watermark or the last stable offset.
    group : str
        Any group, with or without members. A group without offsets has no rows, and a warning is logged.
    topics : str or iterable of str, optional
        The topics whose partitions are listed; by default all topics for which the group has offsets.
    seconds : bool
        True to determine lag in seconds, too.
    sample_ms : float
        The time limit for lag in seconds, within `timeout_ms`.
    timeout_ms : float, optional
        The time limit, by default `kafka.default.api.timeout.ms`.

    Raises
    ------
    ConfigurationError, DeadlineExceeded, BrokerError
        Wrong options; no reply from the brokers in time; an unknown topic, or one without authorization.
    """
    config, consumer = configs(options)
    client = PROCESS.client(config)
    deadline = client.deadline(timeout_ms)
    committed = {
        key: entry.offset for key, entry in fetch_offsets(client, group, None, deadline, require_stable=False).items()
    }
    if not committed:
        log.warning("group %s has committed no offsets; is that its name?", group)
    chosen = [topics] if isinstance(topics, str) else topics
    names = sorted({topic for topic, _ in committed} if chosen is None else set(chosen))
    keys = partitions_of(client, names, deadline, must_exist=topics is not None)
    lag = lag_of_partitions(client, consumer, keys, committed, deadline)
    if without_end := [(row.topic, row.partition) for row in lag if row.end is None]:
        log.warning(
            "group %s: the lag is unknown in partitions without a leader: %s", group, partition_names(without_end)
        )
    return with_seconds(lag, client, consumer, min(sample_ms, deadline.remaining_ms())) if seconds else lag


def lag_of_partitions(
    client: Client,
    consumer: ConsumerConfig,
    partitions: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
    deadline: Deadline,
) -> Lag:
    """Return the lag in offsets. A partition without a leader for 2 s, or of a deleted topic, has no log end."""
    led: Collection[TopicPartition] = ()

    def require_leaders() -> None:
        nonlocal led
        led, failures = client.leaders(partitions, deadline)
        for failure in sorted(failures.values(), key=is_retriable, reverse=True):  # a refusal would end the retries
            raise failure

    try:
        client.retrying("leaders of the group's partitions", require_leaders, deadline.at_most_ms(_ELECTION_MS))
    except BrokerError as error:
        log.debug("log ends without those of some partitions: %s", error)
    except DeadlineExceeded as error:
        if not isinstance(error.__cause__, BrokerError):
            raise
    ends = list_offsets(client, dict.fromkeys(led, LATEST), isolation_level=consumer.isolation_level, deadline=deadline)
    return Lag(
        tuple(
            PartitionLag(*key, committed.get(key), ends[key].offset if key in ends else None)
            for key in sorted(partitions)
        )
    )


def partitions_of(client: Client, topics: list[str], deadline: Deadline, *, must_exist: bool) -> list[TopicPartition]:
    """Return the current partitions of topics. Raises `BrokerError`, for an unknown topic only if it `must_exist`."""
    topics_by_name = client.metadata(topics, deadline).topics if topics else {}
    keys: list[TopicPartition] = []
    for name in topics:
        code = topics_by_name[name].error_code if name in topics_by_name else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code == ErrorCode.NONE:
            keys += [(name, partition) for partition in topics_by_name[name].partitions]
        elif must_exist or code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise broker_error(code, f"topic {name}", topic=name)
    return keys
