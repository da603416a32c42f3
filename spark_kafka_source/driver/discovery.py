"""Find the partitions that a query subscribes to. Runs on the driver, in every trigger.

A known partition may be missing from a reply although it exists: a starting broker does not know its topics yet. It
counts as deleted after UNKNOWN_TOPIC_OR_PARTITION replies for some time (`UnknownTopicTimer`), or sooner if all brokers
agree (`Client.unknown_to_brokers`). It does not while its topic exists with the same id: Kafka deletes no single
partition, so all these brokers lag behind. A topic without the Describe ACL is not deleted: brokers omit it from a list
of all topics, so a second request names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.base.once import log_once
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import Topic
from protocol.cluster.unknown_topic import (
    SUSPECT_DELETED_S,
    UnknownTopicTimer,
    is_unknown_topic,
    unknown_topics_error,
)
from protocol.errors import BrokerError, ConfigurationError, DeadlineExceeded, KafkaError, TopicUnknown
from protocol.kafka_terms import NO_TOPIC_ID, TopicIds, TopicPartition
from protocol.position import Position, is_another_topic
from spark_kafka_source.options.partitions import partition_names
from spark_kafka_source.options.table import SourceOptions

T = TypeVar("T")


def partitions_of_new_query(client: Client, options: SourceOptions, deadline: Deadline) -> dict[TopicPartition, bytes]:
    """Return the partitions of a new query.

    Returns topic ids (16 bytes, zeros before Kafka 2.8), sorted by partition.
    Raises `ConfigurationError`: a topic or partition that an option names does not exist. `DeadlineExceeded`: no broker
    answers. `BrokerError`: a broker refuses the request (authorization).
    """
    named = _named_topics(options)
    expected = dict.fromkeys(named or (), NO_TOPIC_ID)
    partitions, absent = _discover_with_retries(client, options, named, expected, deadline, existed=False)
    servers = listed([f"{host}:{port}" for host, port in client.config.bootstrap_servers], separator=",")
    if absent:
        raise ConfigurationError(
            f"unknown topic(s) {listed(absent)}: the cluster at {servers} does not have them; create "
            f"them first, or correct the option {'assign' if options.assign is not None else 'subscribe'}"
        )
    if options.assign is not None:
        _require_assigned(client, partitions, options.assign)
    if not partitions:
        log_once(
            f"{subscription(options)} matches no topic of the cluster at {servers}, or none that this user may "
            "describe: nothing is read"
        )
    return partitions


def partitions_of_running_query(
    client: Client, options: SourceOptions, read: Mapping[TopicPartition, Position], deadline: Deadline
) -> dict[TopicPartition, bytes]:
    """Return the partitions of a running query, as `partitions_of_new_query`.

    `read`: positions in the partitions that were read before. One that no longer exists, or is not subscribed to any
    more, is not in the result.
    Raises `DeadlineExceeded` or `BrokerError`: as `partitions_of_new_query`. `TopicUnknown`: brokers know the topic by
    its id, and not the partition. Missing topics are no error: a running query waits for them.
    """
    named = _named_topics(options)
    is_subscribed = partition_filter(options)
    expected = {key: position.topic_id for key, position in read.items() if is_subscribed(key)}
    return _discover_with_retries(client, options, named, expected, deadline, existed=True)[0]


def partition_filter(options: SourceOptions) -> Callable[[TopicPartition], bool]:
    """Return a function that returns True if the query subscribes to a partition, existing or not."""
    is_subscribed_topic, assign = _topic_filter(options), options.assign
    return lambda key: is_subscribed_topic(key[0]) and (assign is None or key[1] in assign[key[0]])


def subscription(options: SourceOptions) -> str:
    """Return the subscribed topics for a message."""
    topics = _named_topics(options)
    if topics is None and options.subscribe_pattern is not None:
        return f"subscribePattern={options.subscribe_pattern.pattern}"
    return listed(sorted(topics or ()))


def partitions_in_one_reply(client: Client, options: SourceOptions, deadline: Deadline) -> dict[TopicPartition, bytes]:
    """Return the subscribed partitions of one Metadata reply, with topic ids; missing ones are left out silently."""
    named = _named_topics(options)
    snapshot = client.metadata(None if named is None else sorted(named), deadline)
    return dict(sorted(_subscribed(snapshot.topics.values(), options).items()))


def require_dead_letter_topic(client: Client, options: SourceOptions, deadline: Deadline) -> None:
    """Raise `ConfigurationError` if `deadLetterTopic` does not exist: a task would find out with its first dead letter.

    Brokers with auto.create.topics.enable create it.
    """
    topic = options.dead_letter_topic
    if topic is None or not options.writes_dead_letters:
        return

    def request() -> None:
        created = client.metadata([topic], deadline, create=True).topics.get(topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if created is None else created.error_code
        if code != ErrorCode.NONE:
            raise broker_error(code, f"topic {topic}", api="Metadata", topic=topic)

    try:
        client.retrying("Metadata of the dead letter topic", request, deadline)
    except DeadlineExceeded as error:
        if not (isinstance(error.__cause__, KafkaError) and is_unknown_topic(error.__cause__)):
            raise
        raise ConfigurationError(
            f"deadLetterTopic: the topic {topic} does not exist; create it first, or correct the option",
            name="deadLetterTopic",
        ) from error


def _discover_with_retries(
    client: Client,
    options: SourceOptions,
    names: Collection[str] | None,
    expected: Mapping[str, bytes] | TopicIds,
    deadline: Deadline,
    *,
    existed: bool,
) -> tuple[dict[TopicPartition, bytes], list[str]]:
    """Return the subscribed partitions, and the topics of `expected` that stay unknown to brokers.

    `names`: topics to request; None: all.
    `expected`: topics or partitions that should exist, with their topic ids.
    `existed`: they existed before. A new topic may be unknown to all brokers yet.
    """
    partitions: dict[TopicPartition, bytes] = {}
    absent: list[str] = []
    lacks_partition = False
    hint = (
        " (if it was deleted together with its ACL, restore the ACL: brokers then report the deletion)"
        if existed
        else ""
    )

    def request(deadline: Deadline) -> None:
        nonlocal lacks_partition
        topics = client.metadata(names, deadline).topics
        absent[:] = _missing(expected, topics, _subscribed(topics.values(), options))
        if names is None and absent:
            topics = client.metadata(absent, deadline).topics  # also all topics of the first reply
        partitions.clear()
        partitions.update(sorted(_subscribed(topics.values(), options).items()))
        absent[:] = _missing(expected, topics, partitions)
        for topic in (topics[name] for name in absent if name in topics):
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise broker_error(topic.error_code, f"topic {topic.name}{hint}", api="Metadata", topic=topic.name)
        if absent:
            lacks_partition = any(
                topics[key[0]].topic_id == topic_id != NO_TOPIC_ID
                for key, topic_id in expected.items()
                if isinstance(key, tuple) and key not in partitions and key[0] in topics
            )
            raise unknown_topics_error(absent)

    try:
        # It ends at the caller's deadline, with retries of unreachable brokers. Only the retries below may exceed it.
        request(deadline)
    except BrokerError as error:
        if not is_retriable(error):
            raise
        retry_deadline = UnknownTopicTimer().prolonged(deadline)
        suspect_at_s = client.clock.now_s() + SUSPECT_DELETED_S

        def retry() -> None:
            try:
                request(retry_deadline)
            except BrokerError as error:
                may_be_deleted = existed and is_unknown_topic(error) and client.clock.now_s() >= suspect_at_s
                if not may_be_deleted or client.unknown_to_brokers(absent, retry_deadline) != set(absent):
                    raise

        try:
            client.retrying("Metadata of the subscribed topics", retry, retry_deadline)
        except TopicUnknown:
            if lacks_partition:
                raise
    return partitions, absent


def _missing(
    expected: Mapping[str, bytes] | TopicIds,
    topics: Mapping[str, Topic],
    discovered: Collection[TopicPartition],
) -> list[str]:
    """Return the topics of `expected` that do not exist, or lack an expected partition. A recreated one may lack it."""
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.error_code == ErrorCode.NONE}
    missing = set()
    for key, topic_id in [(key, topic_id) for key, topic_id in expected.items() if key not in discovered]:
        name = key if isinstance(key, str) else key[0]
        if name not in ids or (key != name and not is_another_topic(ids[name], topic_id)):
            missing.add(name)
    return sorted(missing)


def leader_ids(client: Client, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
    """Return the current leaders' node ids, to combine ranges of one leader (`maxInputPartitions`).

    Partitions without a leader are left out. A stale leader costs one round trip, so nothing is retried.
    """
    try:
        brokers, _ = client.leaders(partitions, deadline)
    except KafkaError:
        return {}
    return {key: broker.node_id for key, (broker, _) in brokers.items()}


def retry_unknown_topics(client: Client, find: Callable[[], T], deadline: Deadline) -> T:
    """Call `find`, and retry it while it raises `TopicUnknown`. `find` requests the topics, then offsets from leaders.

    A topic may be deleted between the two requests: its leader does not know it, and the next call omits it.
    """
    return client.retrying("Metadata and offsets of the subscribed topics", find, deadline)


def _named_topics(options: SourceOptions) -> set[str] | None:
    topics = options.assign if options.subscribe is None else options.subscribe
    return None if topics is None else set(topics)


def _topic_filter(options: SourceOptions) -> Callable[[str], bool]:
    pattern, named = options.subscribe_pattern, _named_topics(options) or set()
    return named.__contains__ if pattern is None else lambda topic: pattern.search(topic) is not None


def _subscribed(topics: Iterable[Topic], options: SourceOptions) -> dict[TopicPartition, bytes]:
    partitions: dict[TopicPartition, bytes] = {}
    is_subscribed_topic = _topic_filter(options)
    for topic in topics:
        if topic.error_code != ErrorCode.NONE or not is_subscribed_topic(topic.name):
            continue
        if options.subscribe_pattern is not None and topic.is_internal:
            continue
        if options.assign is not None:
            numbers = [number for number in options.assign[topic.name] if number in topic.partitions]
        else:
            numbers = list(topic.partitions)
        partitions.update({(topic.name, number): topic.topic_id for number in numbers})
    return partitions


def _require_assigned(
    client: Client, existing: Collection[TopicPartition], assign: Mapping[str, Collection[int]]
) -> None:
    assigned = [(topic, number) for topic, numbers in assign.items() for number in numbers]
    missing = [key for key in assigned if key not in existing]
    if missing:
        topics = filter(None, (client.remembered_topic(name) for name in dict.fromkeys(name for name, _ in missing)))
        raise ConfigurationError(
            f"assign: the partition(s) {partition_names(missing)} do not exist; "
            f"{listed([f'{topic.name} has {len(topic.partitions)}' for topic in topics])}, counted from 0. Correct the "
            "option assign"
        )
