"""A cluster that changes at random, and a model of its records that judges the rows of queries.

The cluster gets records, loses their ends (unclean elections) and their beginnings (retention), moves leaders, stops
brokers, and loses requests and replies.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable

from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.server import FakeKafka

TOPIC, GROUP = "t", "g"

REFUSALS = {
    "Fetch": ["NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE", "UNKNOWN_LEADER_EPOCH", "KAFKA_STORAGE_ERROR"],
    "ListOffsets": ["NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE"],
    "OffsetForLeaderEpoch": ["NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"],
    "OffsetCommit": ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "REQUEST_TIMED_OUT"],
    "OffsetFetch": ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"],
}
MEMBERSHIP = {
    "Heartbeat": ["NOT_COORDINATOR", "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"],
    "JoinGroup": ["NOT_COORDINATOR"],
    "SyncGroup": ["REBALANCE_IN_PROGRESS"],
    "ConsumerGroupHeartbeat": ["NOT_COORDINATOR", "FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"],
}

Row = tuple[TopicPartition, int, str]


class ChangingCluster:
    """A fake cluster with one topic, and the model of its records: those that were written, and those that are gone."""

    def __init__(self, rng: random.Random, partitions: int, **settings: str) -> None:
        brokers = rng.choice([1, 2, 3])
        self.kafka = FakeKafka(brokers=brokers, record_requests=False, settings=settings)
        self.kafka.create_topic(TOPIC, partitions, rng.randint(1, brokers))
        self.written: dict[str, tuple[TopicPartition, int]] = {}
        self.gone: set[str] = set()
        self.truncated = self.shrunk = False
        self.exists = True
        self.deleted_topic_ids: set[bytes] = set()
        self._rng = rng

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(TOPIC, number) for number in range(len(self.kafka.controller.topic(TOPIC).partitions))]

    def write(self, key: TopicPartition | None = None, count: int | None = None) -> None:
        """Append values, in a few record batches; none without a leader, a topic, or an in-sync replica's copy."""
        if not self.exists:
            return
        key = key or self._rng.choice(self.partitions)
        if any(self.kafka.brokers[number].isolated or not self._has_log(key, number) for number in self._in_sync(key)):
            return
        left = count or self._rng.choice([1, 2, 5, 20])
        while left:
            size = min(left, self._rng.choice([1, 3, 10]))
            with contextlib.suppress(KafkaError), self.kafka.changed:  # else two threads would write the same values
                values = [str(len(self.written) + number) for number in range(size)]
                offsets = self.kafka.produce(TOPIC, *values, partition=key[1])
                self.written |= {value: (key, offset) for value, offset in zip(values, offsets, strict=True)}
            left -= size

    def truncate(self) -> None:
        """An unclean election, or two: the new leader's log ends earlier. Usually it grows again."""
        if not self.exists:
            return
        kafka, key = self.kafka, self._rng.choice(self.partitions)
        with kafka.changed:
            image = kafka.controller.topic(TOPIC)
            if not self._has_log(key, image.partitions[key[1]].leader):
                return
            log = kafka.log(*key)
            end = self._rng.choice([*(batch.base_offset for batch in log.batches), log.end_offset][-8:])
            self.gone |= {value for value, (where, offset) in self.written.items() if where == key and offset >= end}
            log.truncate(end)
            for _ in range(self._rng.choice([1, 1, 2])):
                partition = kafka.controller.topic(TOPIC).partitions[key[1]]
                leader = self._rng.choice([replica for replica in partition.replicas if self._has_log(key, replica)])
                if leader != partition.leader:
                    kafka.brokers[leader].replicas[image.topic_id, key[1]].log = log.copy()
                kafka.controller.elect(*key, leader, tuple(r for r in partition.replicas if self._has_log(key, r)))
            kafka.advance()
            kafka.changed.notify_all()
            self.truncated = True
        if self._rng.random() < 0.7:
            self.write(key, self._rng.randint(1, 30))

    def delete_records(self) -> None:
        """As retention does."""
        if not self.exists:
            return
        key = self._rng.choice(self.partitions)
        with self.kafka.changed:
            if not self._has_log(key, self.kafka.controller.topic(TOPIC).partitions[key[1]].leader):
                return
            log = self.kafka.log(*key)
            start = self._rng.randint(log.start_offset, log.end_offset)
            self.kafka.shrink_log(*key, start)
            self.gone |= {value for value, (where, offset) in self.written.items() if where == key and offset < start}
            self.shrunk = True

    def _has_log(self, key: TopicPartition, broker_id: int) -> bool:
        """Return True if a broker runs and has a replica: one that lags behind has not heard of the new topic."""
        broker = self.kafka.brokers.get(broker_id)
        return broker is not None and broker.running and (self.topic_id, key[1]) in broker.replicas

    def _in_sync(self, key: TopicPartition) -> tuple[int, ...]:
        return tuple(self.kafka.controller.topic(TOPIC).partitions[key[1]].isr)

    def move_leader(self) -> None:
        if not self.exists:
            return
        key = self._rng.choice(self.partitions)
        if running := [replica for replica in self._in_sync(key) if self.kafka.brokers[replica].running]:
            self.kafka.move_leader(*key, self._rng.choice(running))

    def stop_or_start_broker(self) -> None:
        brokers = self.kafka.brokers
        number = self._rng.choice(list(brokers))
        if not brokers[number].running:
            self.kafka.start(number)
        elif sum(broker.running for broker in brokers.values()) > 1:
            self.kafka.stop(number)

    def add_partition(self) -> None:
        if self.exists and len(self.partitions) < 6 and all(broker.running for broker in self.kafka.brokers.values()):
            self.kafka.create_partitions(TOPIC, len(self.partitions) + 1)

    @property
    def topic_id(self) -> bytes | None:
        """Id of the topic; None while there is none."""
        return self.kafka.controller.topic(TOPIC).topic_id if self.exists else None

    @property
    def committed_in_topic(self) -> dict[TopicPartition, int]:
        """The group's offsets in the existing topic; a late coordinator may keep others of the deleted one."""
        committed = self.kafka.offsets.committed.get(GROUP, {})
        return {key: at.offset for key, at in committed.items() if at.topic_id == self.topic_id}

    def delete_topic(self, partitions: int | None = None, copies: int | None = None) -> Callable[[], None]:
        """Delete the topic with all records; return the function that creates it again.

        `partitions`, `copies`: numbers of partitions and of their replicas in the new topic; by default as many.
        """
        kafka = self.kafka
        with kafka.changed:
            image = kafka.controller.topic(TOPIC)
            self.exists = False
            self.gone |= self.written.keys()
            self.deleted_topic_ids.add(image.topic_id)
            kafka.delete_topic(TOPIC)

        def create() -> None:
            with kafka.changed:
                replicas = min(copies or len(image.partitions[0].replicas), len(kafka.controller.image.brokers))
                kafka.create_topic(TOPIC, partitions or len(image.partitions), replicas)
                self.exists = True

        return create

    def fault(self, refusals: dict[str, list[str]] = REFUSALS) -> None:
        kind = self._rng.choice(list(refusals))
        faults: list[Callable[[], object]] = [
            lambda: self.kafka.refuse(kind, self._rng.choice(refusals[kind]), times=self._rng.choice([1, 2, 3])),
            lambda: self.kafka.lose_requests(kind),
            lambda: self.kafka.lose_replies(kind),
            lambda: self.kafka.delay_replies(kind, 0.03, times=2),
            self.kafka.drop_connections,
        ]
        self._rng.choice(faults)()

    def change(self) -> None:
        """Change a few things."""
        changes = {
            self.write: 50,
            self.truncate: 12,
            self.delete_records: 6,
            self.move_leader: 12,
            self.stop_or_start_broker: 4,
            self.fault: 12,
            self.add_partition: 4,
        }
        for change in self._rng.choices(list(changes), list(changes.values()), k=self._rng.choice([0, 1, 1, 2, 4])):
            change()

    def heal(self) -> None:
        self.kafka.clear_faults()
        for number, broker in self.kafka.brokers.items():
            if not broker.running:
                self.kafka.start(number)
        for key in self.partitions:
            partition = self.kafka.controller.topic(TOPIC).partitions[key[1]]
            if partition.leader < 0:
                self.kafka.move_leader(*key, partition.isr[0])

    def judge(self, rows: list[Row], *, twice: bool = False) -> None:
        """Fail if a record is lost, unknown, or, unless it may be, read twice."""
        times = Counter(value for _, _, value in rows)
        assert all(self.written.get(value) == (key, offset) for key, offset, value in rows), "rows that are not written"
        assert twice or not (doubled := {value for value, count in times.items() if count > 1}), (
            f"read twice: {doubled}"
        )
        lost = {value: self.written[value] for value in self.written.keys() - times.keys() - self.gone}
        assert not lost, f"lost: {lost}"
