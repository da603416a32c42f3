"""The topics and partitions that a producer writes to: looked up, waited for while they come to be, and their leaders.

Called by `partition_choice` in callers' threads, by `sender` in its own, and by Spark's sink. As with Java's producer,
a topic that is not there is created by brokers that do so (`auto.create.topics.enable`); reading never asks for that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker, Topic
from protocol.cluster.unknown_topic import is_unknown_topic
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.producer.partition_producer import PartitionProducer


def topic_to_write(
    client: Client, name: str, partitions: npt.NDArray[np.int32] | None, deadline: Deadline | None = None
) -> Topic:
    """The topic, with all of these partitions (None: whichever it has).

    What is not there is looked for again for ten seconds: brokers may be creating it, or it is new and not every
    broker knows it yet. Raises `UsageError` for a partition that is not there then, `TopicUnknown` for a topic.
    """
    lowest, highest = 0, 0
    if partitions is not None and len(partitions):
        lowest, highest = int(partitions.min()), int(partitions.max())

    deadline = deadline or client.deadline()
    said: BrokerError | None = None

    def look() -> Topic:
        nonlocal said
        try:
            known = client.topic(name, deadline, create=True)
            if highest >= len(known.partitions):
                code, context = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {"topic": name, "partition": highest}
                raise broker_error(code, f"{name}-{highest}", count=len(known.partitions), **context)
        except BrokerError as error:
            said = error
            raise
        return known

    try:
        known = client.retrying(f"Metadata of {name}", look, deadline, topics=[name])
    except DeadlineExceeded as error:
        # The last look may have had no time left for an answer: what brokers said before is what is wrong.
        raise _not_there(name, error, said or error.__cause__) from error.__cause__
    require_partition(known, lowest)
    return known


def require_partition(topic: Topic, partition: int | None) -> None:
    """Raises `UsageError` for one that the topic does not have."""
    if partition is not None and not 0 <= partition < len(topic.partitions):
        raise _no_partition(topic.name, partition, len(topic.partitions))


def _not_there(topic: str, error: DeadlineExceeded, cause: BaseException | None) -> KafkaError:
    """What is to be done where brokers have said that a topic or a partition is not there; else the error itself."""
    if not isinstance(cause, BrokerError) or not is_unknown_topic(cause):
        return error
    if (count := cause.context.get("count")) is None:
        return type(error)(
            f"{error}. Brokers with auto.create.topics.enable=true would have created it: these do not. Create the "
            f"topic {topic} first",
            **error.context,
        )
    return _no_partition(topic, cause.context["partition"], count)


def _no_partition(topic: str, partition: int, count: int) -> UsageError:
    return UsageError(
        f"partition {partition} was asked for, but topic {topic} has {count} (0 to {count - 1}). Nothing of this "
        "call was sent",
        topic=topic,
    )


class Leaders:
    """Who leads what, as one look at the metadata shows it, for one round of requests."""

    def __init__(self, client: Client, deadline: Deadline) -> None:
        self._client = client
        self._deadline = deadline
        self._topics: dict[str, Topic | KafkaError] = {}
        self.topic_ids: dict[str, bytes] = {}

    def of(self, partition: PartitionProducer) -> Broker:
        """Raises what `Client.topic` does (one error for all partitions of a topic), or that nobody leads this one."""
        topic = self._topics.get(partition.topic) or self._look_up(partition.topic)
        if isinstance(topic, KafkaError):
            raise topic
        known = topic.partitions.get(partition.partition)
        broker = self._client.brokers(self._deadline).get(known.leader) if known else None
        if broker is None:
            # The topic may have been made anew, with fewer partitions.
            raise broker_error(
                ErrorCode.LEADER_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Produce to {partition.name} (the topic has {len(topic.partitions)} partitions)",
                topic=partition.topic,
                partition=partition.partition,
            )
        return broker

    def _look_up(self, name: str) -> Topic | KafkaError:
        found: Topic | KafkaError
        try:
            found = self._client.topic(name, self._deadline, create=True)
            self.topic_ids[name] = found.topic_id
        except KafkaError as error:
            found = error
        self._topics[name] = found
        return found
