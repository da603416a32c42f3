"""Create, delete, list and describe topics; add partitions; delete records.

Runs in the caller's thread. Sends changes of topics to the controller, DeleteRecords to partition leaders, in the
shared retry loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from protocol.admin.configs import ConfigEntry, ConfigOperations, ConfigResource, topic_resource
from protocol.admin.resources import Row, RowsByResource, ask_each, results_or_raise
from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.call import call_partitions
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import (
    Broker,
    Metadata,
    Partition,
    Topic,
    is_another_topic,
    topic_id_bytes,
    topic_id_text,
)
from protocol.errors import AdminFailed, BrokerError, KafkaError
from protocol.kafka_terms import TopicPartition
from protocol.wire.messages.m03_metadata import FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION, METADATA
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from protocol.wire.messages.m20_delete_topics import DELETE_TOPICS
from protocol.wire.messages.m21_delete_records import DELETE_RECORDS
from protocol.wire.messages.m37_create_partitions import CREATE_PARTITIONS

_FIRST_WITH_IDS = 6
_FIRST_METADATA_WITH_IDS = 12


@dataclass(frozen=True)
class NewTopic:
    """A topic to create.

    Attributes
    ----------
    partitions, replication_factor
        -1 for the broker's default.
    configs
        Kafka's topic settings by name.
    assignment
        Broker ids of the replicas by partition, the preferred leader first. Replaces `partitions` and
        `replication_factor`, which are then ignored.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True)
class CreatedTopic:
    """A created topic as the controller reports it.

    `topic_id` is in Kafka's text form, "" before Kafka 2.8. Without the ACL DescribeConfigs on the topic, and before
    Kafka 2.4, `partitions` and `replication_factor` are -1, and `configs` is empty.
    """

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True)
class NewPartitions:
    """A new partition count of a topic, and optionally the replicas (broker ids) of each added partition."""

    total: int
    assignment: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True)
class TopicListing:
    """A topic of the cluster; `topic_id` is in Kafka's text form, "" before Kafka 2.8."""

    name: str
    topic_id: str
    is_internal: bool


@dataclass(frozen=True)
class TopicDescription:
    """A topic with its partitions (leader, replicas, in-sync and offline replicas) and, if requested, its configs."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: Mapping[int, Partition]
    configs: Mapping[str, ConfigEntry] | None = None


class TopicOperations(ConfigOperations):
    """Topics of a cluster.

    `timeout_ms` limits the time of a method; by default `default.api.timeout.ms`.
    """

    def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        wait_for_leaders: bool = True,
        timeout_ms: float | None = None,
    ) -> dict[str, CreatedTopic]:
        """Create topics.

        Parameters
        ----------
        validate_only
            Check the request without creating anything.
        wait_for_leaders
            Wait until every partition has a leader, so that clients can use the topics at once.

        Returns
        -------
        dict of str to CreatedTopic
            By topic name.

        Raises
        ------
        AdminFailed
            Some topics were refused (TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, …); its `errors` name them.
        DeadlineExceeded
            No broker answered in time.
        """
        return self._create_topics(list(topics), self._deadline(timeout_ms), validate_only, wait_for_leaders)

    def _create_topics(
        self, topics: Sequence[NewTopic], deadline: Deadline, validate_only: bool = False, wait: bool = True
    ) -> dict[str, CreatedTopic]:
        new_topics = {topic.name: topic for topic in topics}
        batch = ask_each(
            self._client,
            CREATE_TOPICS,
            new_topics,
            lambda names: {"topics": [_new_topic(new_topics[name]) for name in names], "validate_only": validate_only},
            lambda reply, _: ((row["name"], row) for row in reply["topics"]),
            deadline,
            topics=new_topics,
            error_context=_about,
        )
        if wait and not validate_only:
            self._wait_for_leaders(new_topics, batch, deadline)
        return batch.results("CreateTopics", _created)

    def _wait_for_leaders(
        self, topics: Mapping[str, NewTopic], created: RowsByResource[str], deadline: Deadline
    ) -> None:
        """Wait for the leaders of all partitions; a topic without them at the deadline becomes an error."""
        client, waiting = self._client, dict(created)

        def require_leaders() -> None:
            client.expire_metadata(waiting)
            snapshot = client.snapshot(waiting, deadline)
            failure: BrokerError | None = None
            for name, row in list(waiting.items()):
                try:
                    _require_leaders(snapshot, topics[name], bytes(row["topic_id"]))
                    del waiting[name]
                except BrokerError as error:
                    if is_retriable(error) or len(topics) == 1:
                        failure = error
                    else:
                        created.errors[name] = error
                        del waiting[name], created[name]
            if failure is not None:
                raise failure

        try:
            # The controller has created the topics, so they are not missing, but busy brokers may learn of them late.
            client.retrying(f"leaders of {listed(list(waiting))}", require_leaders, deadline, unknown_topic_s=math.inf)
        except KafkaError as error:
            if len(topics) == 1:
                raise
            for name in waiting:
                del created[name]
                created.errors[name] = error

    def delete_topics(
        self, names: Iterable[str] = (), *, ids: Iterable[str] = (), timeout_ms: float | None = None
    ) -> None:
        """Delete topics by name, or by id (since Kafka 2.8).

        Parameters
        ----------
        ids
            Topic ids in Kafka's text form.

        Raises
        ------
        AdminFailed
            Some topics were not deleted (UNKNOWN_TOPIC_OR_PARTITION, TOPIC_DELETION_DISABLED, …).
        UnsupportedVersion
            `ids` are given, and the broker cannot delete by id.
        """
        self._delete_topics(list(names), list(ids), self._deadline(timeout_ms))

    def _delete_topics(self, names: Sequence[str], ids: Sequence[str], deadline: Deadline) -> None:
        by_id = {topic_id_bytes(text): text for text in ids}

        def body(pending: list[str]) -> Any:
            # KIP-516: from version 6 on, the field is a list of names or ids.
            topics = [
                {"name": None, "topic_id": topic_id_bytes(key)} if key in ids else {"name": key} for key in pending
            ]
            return lambda version: {"topics": topics} if version >= _FIRST_WITH_IDS else {"topic_names": pending}

        def rows(reply: Row, _: list[str]) -> Iterable[tuple[str, Row]]:
            for row in reply["responses"]:
                key = by_id.get(bytes(row["topic_id"]), row["name"])
                yield key if key is not None else "", row

        batch = ask_each(
            self._client,
            DELETE_TOPICS,
            [*names, *ids],
            body,
            rows,
            deadline,
            topics=names,
            error_context=_about,
            at_least=_FIRST_WITH_IDS if ids else 0,
        )
        self._client.expire_metadata(names)
        batch.results("DeleteTopics", lambda key, row: None)

    def list_topics(self, *, internal: bool = False, timeout_ms: float | None = None) -> dict[str, TopicListing]:
        """Return the topics of the cluster by name, sorted; `internal` includes internal ones."""
        snapshot = self._client.metadata(None, self._deadline(timeout_ms))
        return {
            name: TopicListing(name, topic.topic_id_text, topic.is_internal)
            for name, topic in sorted(snapshot.topics.items())
            if internal or not topic.is_internal
        }

    def describe_topics(
        self,
        names: Iterable[str] = (),
        *,
        ids: Iterable[str] = (),
        configs: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[str, TopicDescription]:
        """Describe topics by name, or by id (since Kafka 2.8).

        Parameters
        ----------
        ids
            Topic ids in Kafka's text form.
        configs
            Return the configuration of each topic, too.

        Returns
        -------
        dict of str to TopicDescription
            By the name or id that was passed.

        Raises
        ------
        AdminFailed
            Some topics are unknown, or the user has no Describe ACL for them.
        """
        deadline = self._deadline(timeout_ms)
        topics, errors = self._topics(list(names), list(ids), deadline)
        resources = {key: topic_resource(topic.name) for key, topic in topics.items()}
        entries: Mapping[ConfigResource, Mapping[str, ConfigEntry]] = {}
        if configs:
            try:
                entries = self._describe_configs(list(resources.values()), deadline)
            except AdminFailed as failed:
                entries, refused = failed.results, failed.errors
                errors |= {key: refused[resource] for key, resource in resources.items() if resource in refused}
        results = {
            key: TopicDescription(
                topic.name, topic.topic_id_text, topic.is_internal, topic.partitions, entries.get(resources[key])
            )
            for key, topic in topics.items()
            if key not in errors
        }
        return results_or_raise("Metadata", results, errors)

    def _topics(
        self, names: Sequence[str], ids: Sequence[str], deadline: Deadline
    ) -> tuple[dict[str, Topic], dict[str, KafkaError]]:
        requested = {**{name: {"name": name} for name in names}, **{topic_id: _by_id(topic_id) for topic_id in ids}}
        if not requested:
            return {}, {}
        body = {"topics": list(requested.values()), "allow_auto_topic_creation": False}
        first = _FIRST_METADATA_WITH_IDS if ids else FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION
        reply = self._client.retrying(
            f"Metadata of {listed(list(requested))}",
            lambda: self._client.ask_any(METADATA, body, deadline, at_least=first),
            deadline,
        )
        snapshot = Metadata.from_reply(reply)
        by_id = {topic.topic_id_text: topic for topic in snapshot.topics.values()}
        topics: dict[str, Topic] = {}
        errors: dict[str, KafkaError] = {}
        for key in requested:
            topic = by_id.get(key) if key in ids else snapshot.topics.get(key)
            if topic is not None and topic.error_code == ErrorCode.NONE:
                topics[key] = topic
                continue
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if key in ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            code = unknown if topic is None else topic.error_code
            errors[key] = broker_error(code, f"Metadata of {key}", api="Metadata", topic=key)
        return topics, errors

    def create_partitions(
        self, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> None:
        """Increase the number of partitions of topics.

        Parameters
        ----------
        counts
            By topic: the total number of partitions, or a `NewPartitions`, which may also name the replicas.
        validate_only
            Check the request without changing anything.

        Raises
        ------
        AdminFailed
            Some topics were not changed (INVALID_PARTITIONS, UNKNOWN_TOPIC_OR_PARTITION, …).
        """
        self._create_partitions(counts, self._deadline(timeout_ms), validate_only)

    def _create_partitions(
        self, counts: Mapping[str, int | NewPartitions], deadline: Deadline, validate_only: bool = False
    ) -> None:
        batch = ask_each(
            self._client,
            CREATE_PARTITIONS,
            counts,
            lambda names: {
                "topics": [_new_partitions(name, counts[name]) for name in names],
                "validate_only": validate_only,
            },
            lambda reply, _: ((row["name"], row) for row in reply["results"]),
            deadline,
            topics=counts,
            error_context=_about,
        )
        self._client.expire_metadata(counts)
        batch.results("CreatePartitions", lambda name, row: None)

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition, -1 for the high watermark.

        Returns
        -------
        dict of (str, int) to int
            The new log start offset of each partition.

        Raises
        ------
        AdminFailed
            Some partitions were refused (OFFSET_OUT_OF_RANGE, POLICY_VIOLATION of a compacted topic, …), or had no
            reply from a leader in time.
        DeadlineExceeded
            No partition had a reply from a leader in time.
        """
        return delete_records(self._client, before, self._deadline(timeout_ms))


def create_topic(client: Client, topic: NewTopic, deadline: Deadline | None = None) -> None:
    """Create a topic, and wait until every partition has a leader; raise `BrokerError` (TOPIC_ALREADY_EXISTS, …)."""
    with _single_error():
        TopicOperations(client)._create_topics([topic], deadline or client.deadline())


def delete_topic(client: Client, name: str, deadline: Deadline | None = None) -> None:
    """Delete a topic by name; raise `BrokerError` (UNKNOWN_TOPIC_OR_PARTITION, …)."""
    with _single_error():
        TopicOperations(client)._delete_topics([name], (), deadline or client.deadline())


def create_partitions(client: Client, name: str, count: int, deadline: Deadline | None = None) -> None:
    """Increase a topic to `count` partitions in total; raise `BrokerError` (INVALID_PARTITIONS, …)."""
    with _single_error():
        TopicOperations(client)._create_partitions({name: count}, deadline or client.deadline())


def delete_records(
    client: Client, before: Mapping[TopicPartition, int], deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """Delete the records before an offset of each partition, as `Admin.delete_records`."""
    rows: RowsByResource[TopicPartition] = RowsByResource()

    def handle(key: TopicPartition, row: Row, broker: Broker, error: BrokerError | None) -> BrokerError | None:
        if error is None:
            rows[key] = row
        elif is_retriable(error):
            return error
        else:
            rows.errors[key] = error
        return None

    fields = {key: {"offset": offset} for key, offset in before.items()}
    try:
        call_partitions(client, DELETE_RECORDS, {}, fields, deadline or client.deadline(), handle=handle)
    except KafkaError as error:
        if not rows and not rows.errors:
            raise
        rows.errors.update(dict.fromkeys(before.keys() - rows.keys() - rows.errors.keys(), error))
    return rows.results("DeleteRecords", lambda key, row: row["low_watermark"])


@contextmanager
def _single_error() -> Iterator[None]:
    """Raise the only error in an `AdminFailed` instead of the `AdminFailed`."""
    try:
        yield
    except AdminFailed as failed:
        (error,) = failed.errors.values()
        raise error from None


def _about(name: str) -> dict[str, str]:
    return {"topic": name}


def _by_id(text: str) -> dict[str, Any]:
    return {"name": None, "topic_id": topic_id_bytes(text)}


def _new_topic(topic: NewTopic) -> dict[str, Any]:
    assignment = topic.assignment or {}
    return {
        "name": topic.name,
        "num_partitions": -1 if assignment else topic.partitions,
        "replication_factor": -1 if assignment else topic.replication_factor,
        "assignments": [
            {"partition_index": partition, "broker_ids": list(brokers)} for partition, brokers in assignment.items()
        ],
        "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
    }


def _require_leaders(snapshot: Metadata, topic: NewTopic, topic_id: bytes) -> None:
    topic_now = snapshot.topic(topic.name)
    if is_another_topic(topic_now.topic_id, topic_id):  # deleted before: the broker's metadata is old
        raise broker_error(ErrorCode.UNKNOWN_TOPIC_ID, f"Metadata of {topic.name}", topic=topic.name)
    for partition in range(max(topic.partitions, len(topic.assignment or ()), len(topic_now.partitions), 1)):
        snapshot.leader(topic.name, partition)


def _created(name: str, row: Row) -> CreatedTopic:
    return CreatedTopic(
        name,
        topic_id_text(bytes(row["topic_id"])),
        row["num_partitions"],
        row["replication_factor"],
        {config["name"]: config["value"] for config in row["configs"] or ()},
    )


def _new_partitions(name: str, new: int | NewPartitions) -> dict[str, Any]:
    new = NewPartitions(new) if isinstance(new, int) else new
    assignments = None if new.assignment is None else [{"broker_ids": list(brokers)} for brokers in new.assignment]
    return {"name": name, "count": new.total, "assignments": assignments}
