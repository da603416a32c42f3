"""Which partitions a query subscribes to just now, and how far their logs reach. Runs on the driver, every trigger.

A partition that was there before and is missing now may only be missing for a moment (a broker that starts does not
know its topics yet): it is looked for again until the deadline before anyone may call it deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.metadata import Metadata
from protocol.errors import BrokerError, ConfigurationError, DeadlineExceeded
from spark_kafka_source.options import SourceOptions

TopicPartition = tuple[str, int]

_TRANSIENT_UNKNOWN_MS = 10_000


def discover(
    client: Client,
    options: SourceOptions,
    deadline: Deadline,
    *,
    expected: Collection[TopicPartition] = (),
) -> dict[TopicPartition, bytes]:
    """The partitions subscribed to, with their topic's id (16 bytes, zero before Kafka 2.8), in a stable order.

    `expected` are partitions that were there before. Those, and topics asked for by name, are looked for again for
    ten seconds if they are missing; what is still missing then is left out, so compare. Raises
    `ConfigurationError` for a topic asked for by name that never was there, `DeadlineExceeded` when no broker answers.
    """
    found: dict[TopicPartition, bytes] = {}
    named = _named_topics(options)
    patience = deadline.at_most_ms(_TRANSIENT_UNKNOWN_MS)

    def attempt() -> None:
        names = None if named is None else sorted(named | {topic for topic, _ in expected})
        snapshot = client.metadata(names, deadline)
        found.clear()
        found.update(_subscribed(snapshot, options))
        _require(found, named, expected, snapshot)

    try:
        client.retrying("Metadata of the subscribed topics", attempt, patience)
    except DeadlineExceeded as error:
        if not isinstance(error.__cause__, BrokerError):
            raise
        never_there = sorted((named or set()) - {topic for topic, _ in found} - {topic for topic, _ in expected})
        if never_there:
            raise ConfigurationError(
                f"unknown topic(s) {', '.join(never_there)}: the cluster at "
                f"{_bootstrap(client)} does not have them; create them first, or correct the option "
                f"{'assign' if options.assign is not None else 'subscribe'}"
            ) from error
    if options.assign is not None:
        _require_assigned(found, options.assign, expected)
    return dict(sorted(found.items()))


def discover_present(client: Client, options: SourceOptions, deadline: Deadline) -> dict[TopicPartition, bytes]:
    """As `discover`, but one look: what is missing just now is left out, without a word."""
    named = _named_topics(options)
    snapshot = client.metadata(None if named is None else sorted(named), deadline)
    return dict(sorted(_subscribed(snapshot, options).items()))


def _named_topics(options: SourceOptions) -> set[str] | None:
    if options.subscribe is not None:
        return set(options.subscribe)
    if options.assign is not None:
        return set(options.assign)
    return None


def _subscribed(snapshot: Metadata, options: SourceOptions) -> dict[TopicPartition, bytes]:
    pattern = options.subscribe_pattern
    found: dict[TopicPartition, bytes] = {}
    for topic in snapshot.topics.values():
        if topic.error_code != ErrorCode.NONE:
            continue
        if pattern is not None and (topic.is_internal or pattern.search(topic.name) is None):
            continue
        if options.subscribe is not None and topic.name not in options.subscribe:
            continue
        if options.assign is not None:
            numbers = [number for number in options.assign.get(topic.name, ()) if number in topic.partitions]
        else:
            numbers = list(topic.partitions)
        found.update({(topic.name, number): topic.topic_id for number in numbers})
    return found


def _require(
    found: Mapping[TopicPartition, bytes],
    named: set[str] | None,
    expected: Collection[TopicPartition],
    snapshot: Metadata,
) -> None:
    topics_found = {topic for topic, _ in found}
    for name in sorted(named or ()):
        if name in topics_found:
            continue
        topic = snapshot.topics.get(name)
        code = topic.error_code if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code != ErrorCode.NONE:
            raise broker_error(code, f"topic {name}", topic=name)
    for topic_name, partition in expected:
        if (topic_name, partition) not in found:
            raise broker_error(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic_name}-{partition}, which was there before",
                topic=topic_name,
                partition=partition,
            )


def _require_assigned(
    found: Mapping[TopicPartition, bytes],
    assign: Mapping[str, Collection[int]],
    expected: Collection[TopicPartition],
) -> None:
    missing = [
        f"{topic}-{number}"
        for topic, numbers in assign.items()
        for number in numbers
        if (topic, number) not in found and (topic, number) not in expected
    ]
    if missing:
        have = {topic: [number for name, number in found if name == topic] for topic in assign}
        raise ConfigurationError(
            f"assign: the partition(s) {', '.join(missing)} do not exist; found: {have}. Correct the option assign"
        )


def _bootstrap(client: Client) -> str:
    return ",".join(f"{host}:{port}" for host, port in client.config.bootstrap_servers)
