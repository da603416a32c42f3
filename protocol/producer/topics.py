"""Topics and partitions to write to: lookup, wait for creation, and leaders.

As with Java's producer, brokers with `auto.create.topics.enable` create missing topics; readers never cause that.
Called by `partition_choice` in the callers' threads, and by `sender`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker, Topic
from protocol.cluster.unknown_topic import is_unknown_topic
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.producer.partition_producer import PartitionProducer

_MISSING_FOR_S = 60.0


def topic_to_write(
    client: Client, name: str, partitions: npt.NDArray[np.int32] | None, deadline: Deadline | None = None
) -> Topic:
    """Return a topic that has all of these partitions (None: any).

    Waits up to ten seconds for a missing topic or partition: brokers may be creating it, or not all of them may know it
    yet. Then raises `TopicUnknown`, or `UsageError` for a partition that does not exist.
    """
    lowest, highest = 0, 0
    if partitions is not None and len(partitions):
        lowest, highest = int(partitions.min()), int(partitions.max())

    deadline = deadline or client.deadline()
    refusal: BrokerError | None = None

    def look_up() -> Topic:
        nonlocal refusal
        try:
            topic = client.topic(name, deadline, create=True)
            if highest >= len(topic.partitions):
                code, context = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {"topic": name, "partition": highest}
                raise broker_error(code, f"{name}-{highest}", count=len(topic.partitions), **context)
        except BrokerError as error:
            refusal = error
            raise
        return topic

    try:
        metadata = client.retrying(f"Metadata of {name}", look_up, deadline, topics=[name])
    except DeadlineExceeded as error:
        # The last attempt may have timed out; the replies before it tell the actual problem.
        raise _missing_topic(name, error, refusal or error.__cause__) from error.__cause__
    require_partition(metadata, lowest)
    return metadata


def require_partition(topic: Topic, partition: int | None) -> None:
    """Raise `UsageError` if the topic does not have the partition."""
    if partition is not None and not 0 <= partition < len(topic.partitions):
        raise _no_partition(topic.name, partition, len(topic.partitions))


def _missing_topic(topic: str, error: DeadlineExceeded, cause: BaseException | None) -> KafkaError:
    """Add the remedy to the error of a missing topic or partition; return other errors unchanged."""
    if not isinstance(cause, BrokerError) or not is_unknown_topic(cause):
        return error
    if (count := cause.context.get("count")) is None:
        return type(error)(
            f"{error}. The brokers do not create it (auto.create.topics.enable=false). Create the topic {topic} first",
            **error.context,
        )
    return _no_partition(topic, cause.context["partition"], count)


def _no_partition(topic: str, partition: int, count: int) -> UsageError:
    return UsageError(
        f"partition {partition} was requested, but topic {topic} has {count} (0 to {count - 1}). Nothing of this "
        "call was sent. Leave out partition, and the key decides, or add partitions to the topic",
        topic=topic,
    )


@dataclass
class _Missing:
    error: KafkaError
    until_s: float
    look_at_s: float


class MissingTopics:
    """Topics and partitions that `topic_to_write` did not find: sends to them fail at once for a minute.

    Meanwhile one request per `retry.backoff.max.ms` tells whether they exist now. Thread-safe.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        # By topic, and by topic and partition if only the partition is missing.
        self._missing: dict[tuple[str, int | None], _Missing] = {}

    def add(self, topic: str, partition: int, error: KafkaError) -> None:
        """Remember an error of `topic_to_write` for the highest partition, if it means that something is missing."""
        if isinstance(error.__cause__, BrokerError) and is_unknown_topic(error.__cause__):
            key = (topic, partition if isinstance(error, UsageError) else None)
            now_s = self._client.clock.now_s()
            self._missing[key] = _Missing(error, now_s + _MISSING_FOR_S, self._next_look_s(now_s))

    def raise_if_missing(self, topic: str, partition: int, deadline: Deadline) -> None:
        """Raise the remembered error, unless the topic and the partition exist now or the error is outdated."""
        if not self._missing:
            return
        for key in ((topic, None), (topic, partition)):
            missing = self._missing.get(key)
            if missing is not None and not self._outdated(missing, key, deadline):
                raise type(missing.error)(str(missing.error), **missing.error.context) from missing.error.__cause__
            self._missing.pop(key, None)

    def _outdated(self, missing: _Missing, key: tuple[str, int | None], deadline: Deadline) -> bool:
        topic, partition = key
        now_s = self._client.clock.now_s()
        if now_s >= missing.until_s:
            return True
        if now_s >= missing.look_at_s:
            missing.look_at_s = self._next_look_s(now_s)
            self._client.expire_metadata([topic])
            try:
                self._client.topic(topic, deadline, create=True)
            except KafkaError as error:
                # Other errors, such as those of a topic that is being created, are worth another wait.
                return not is_unknown_topic(error)
        remembered = self._client.remembered_topic(topic)
        return remembered is not None and (partition or 0) < len(remembered.partitions)

    def _next_look_s(self, now_s: float) -> float:
        return now_s + self._client.config.retry_backoff_max_ms / 1000


class Leaders:
    """The leaders of partitions for one round of requests, from one metadata snapshot.

    `topics`: of all these partitions; one request refreshes the outdated ones.
    `topic_ids`: ids of the topics for which `leader` has returned a broker.
    """

    def __init__(self, client: Client, topics: Iterable[str], deadline: Deadline) -> None:
        self._client = client
        self._deadline = deadline
        self._topics: dict[str, Topic | KafkaError] = {}
        self.topic_ids: dict[str, bytes] = {}
        with suppress(KafkaError):  # `leader` raises it, for outdated topics only
            client.snapshot(topics, deadline, create=True)

    def leader(self, partition: PartitionProducer) -> Broker:
        """Return the leader; raise as `Client.topic` (the same error for all partitions), or if there is no leader."""
        topic = self._topics.get(partition.topic) or self._resolve(partition.topic)
        if isinstance(topic, KafkaError):
            raise topic
        metadata = topic.partitions.get(partition.partition)
        broker = self._client.brokers(self._deadline).get(metadata.leader) if metadata else None
        if broker is None:
            # The topic may have been recreated with fewer partitions.
            raise broker_error(
                ErrorCode.LEADER_NOT_AVAILABLE if metadata else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Produce to {partition.name} (the topic has {len(topic.partitions)} partitions)",
                topic=partition.topic,
                partition=partition.partition,
            )
        return broker

    def _resolve(self, name: str) -> Topic | KafkaError:
        topic: Topic | KafkaError
        try:
            topic = self._client.topic(name, self._deadline, create=True)
            self.topic_ids[name] = topic.topic_id
        except KafkaError as error:
            topic = error
        self._topics[name] = topic
        return topic
