"""A real cluster with the methods of `FakeKafka` that it can have, so that one test runs on both."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import count

from protocol.admin.admin import Admin
from protocol.admin.topics import NewTopic
from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.errors import AdminFailed, BrokerError, UsageError
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.kafka_terms import TopicPartition
from protocol.producer.messages import Headers
from protocol.producer.producer import Producer
from protocol.tables import read

# Limit of the wait until deleted topics are no longer listed.
_GONE_MS = 5_000


class RealKafka:
    """A cluster that runs elsewhere, for tests: topics, records, committed offsets.

    `close` deletes the topics that `create_topic` made; it is also a context manager.

    Parameters
    ----------
    bootstrap_servers : str
    properties : mapping, optional
        Kafka's client properties, such as those of security.
    exclusive : bool
        The test alone uses the cluster: `close` also deletes other topics and groups that have appeared meanwhile.
    """

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, object] | None = None, *, exclusive: bool = False
    ) -> None:
        self._properties = {**(properties or {}), "bootstrap.servers": bootstrap_servers}
        self._bootstrap_servers = bootstrap_servers
        self._admin = Admin(self._properties)
        self._producer: Producer | None = None
        self._created: set[str] = set()
        # By topic: the turns of partitions for records without a key.
        self._turns: dict[str, count[int]] = {}
        self._exclusive = exclusive
        self._closed = False
        self._topics_before, self._groups_before = self._present() if exclusive else (set(), set())

    def __enter__(self) -> RealKafka:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers, for `bootstrap.servers`."""
        return self._bootstrap_servers

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int = -1, *, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; return when it has leaders. As `FakeKafka.create_topic`."""
        self._admin.create_topics([NewTopic(name, partitions, replication_factor, configs=dict(config or {}))])
        self._created.add(name)

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[int]:
        """Write one record per value, and return their offsets. As `FakeKafka.produce`.

        Raises
        ------
        UsageError
            The topic or the partition does not exist.
        """
        partitions = self._require(topic, partition)
        if self._producer is None:
            self._producer = Producer(self._properties)
        turns, futures = self._turns.setdefault(topic, count()), []
        for value in values:
            number = next(turns) % partitions if partition is None and key is None else partition
            futures.append(
                self._producer.send(topic, value, key=key, headers=headers, partition=number, timestamp_ms=timestamp_ms)
            )
        self._producer.flush()
        return [future.result().offset for future in futures]

    def records(
        self, topic: str, partition: int | None = None, *, isolation_level: str = "read_committed"
    ) -> list[ConsumerMessage]:
        """Return the records that a consumer would read now, by partition and offset. As `FakeKafka.records`.

        Raises
        ------
        UsageError
            The topic or the partition does not exist.
        ConfigurationError
            `isolation_level` has another value.
        """
        self._require(topic, partition)
        properties = {**self._properties, "isolation.level": isolation_level}
        rows = []
        for row in read(properties, topic).read_all().to_pylist():
            pairs = [(header["key"], header["value"]) for header in row.pop("headers") or ()]
            rows.append(ConsumerMessage(headers=pairs or None, **row))
        return sorted(
            (record for record in rows if partition in (None, record.partition)), key=lambda record: record[1:3]
        )

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        return {key: offset.offset for key, offset in self._admin.list_consumer_group_offsets(group_id).items()}

    def close(self) -> None:
        """Delete topics, and groups of an exclusive cluster; groups that still have members stay.

        Waits up to 5 s until the deleted topics are no longer listed: brokers learn of a deletion later. Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        if self._producer is not None:
            self._producer.abort()
        try:
            topics, groups = self._present()
            topics = topics - self._topics_before if self._exclusive else topics & self._created
            groups = groups - self._groups_before if self._exclusive else set()
            with suppress(AdminFailed, BrokerError):
                if topics:
                    self._admin.delete_topics(topics)
                    deadline = Deadline.after_ms(_GONE_MS, SYSTEM_CLOCK)
                    while topics & self._admin.list_topics().keys() and not deadline.passed:
                        SYSTEM_CLOCK.sleep_s(0.05)
            with suppress(AdminFailed, BrokerError):
                if groups:
                    self._admin.delete_groups(groups)
        finally:
            self._admin.close()

    def _require(self, topic: str, partition: int | None) -> int:
        """Return the number of partitions of a topic."""
        if topic in self._admin.list_topics(internal=True):
            partitions = len(self._admin.describe_topics([topic])[topic].partitions)
            if partition is None or 0 <= partition < partitions:
                return partitions
        subject = topic if partition is None else f"{topic}-{partition}"
        raise UsageError(f"{subject} does not exist in this cluster; call create_topic first", topic=topic)

    def _present(self) -> tuple[set[str], set[str]]:
        """Return the topics and the groups of the cluster."""
        return set(self._admin.list_topics()), {group.group for group in self._admin.list_groups()}
