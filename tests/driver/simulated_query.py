"""A cluster that changes at random, a streaming query without Spark that reads it, and a model that judges its rows.

The query makes Spark's calls on the stream reader: it plans a batch, reads its tasks, writes the commit log, and is
killed anywhere in between; the next run continues from its checkpoint, and replays a planned batch. Meanwhile the
cluster gets records, loses their ends (unclean elections) and their beginnings (retention), moves leaders, stops
brokers, and loses requests and replies.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import DataLoss, KafkaError
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict, Offsets

TOPIC, GROUP = "t", "g"

# Short, so that a simulation takes about a second.
PATIENCE = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.retry.backoff.ms": "2",
    "kafka.retry.backoff.max.ms": "20",
    "kafka.reconnect.backoff.ms": "2",
    "kafka.reconnect.backoff.max.ms": "10",
    "kafka.default.api.timeout.ms": "3000",
    "kafka.metadata.max.age.ms": "300",
    "kafkaConsumer.pollTimeoutMs": "2000",
    "fetchOffset.numRetries": "0",
}
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
        self._rng = rng

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(TOPIC, number) for number in range(len(self.kafka.controller.topic(TOPIC).partitions))]

    def write(self, key: TopicPartition | None = None, count: int | None = None) -> None:
        """Append values, in a few record batches; none without a leader."""
        key = key or self._rng.choice(self.partitions)
        left = count or self._rng.choice([1, 2, 5, 20])
        while left:
            size = min(left, self._rng.choice([1, 3, 10]))
            values = [str(len(self.written) + number) for number in range(size)]
            with contextlib.suppress(KafkaError):
                offsets = self.kafka.produce(TOPIC, *values, partition=key[1])
                self.written |= {value: (key, offset) for value, offset in zip(values, offsets, strict=True)}
            left -= size

    def truncate(self) -> None:
        """An unclean election, or two: the new leader's log ends earlier. Usually it grows again."""
        kafka, key = self.kafka, self._rng.choice(self.partitions)
        with kafka.changed:
            image = kafka.controller.topic(TOPIC)
            partition = image.partitions[key[1]]
            if partition.leader < 0 or not kafka.brokers[partition.leader].running:
                return
            log = kafka.log(*key)
            end = self._rng.choice([*(each.base_offset for each in log.batches), log.end_offset][-8:])
            self.gone |= {value for value, (where, offset) in self.written.items() if where == key and offset >= end}
            log.truncate(end)
            for _ in range(self._rng.choice([1, 1, 2])):
                partition = kafka.controller.topic(TOPIC).partitions[key[1]]
                running = [each for each in partition.replicas if kafka.brokers[each].running]
                leader = self._rng.choice(running)
                if leader != partition.leader:
                    kafka.brokers[leader].replicas[image.topic_id, key[1]].log = log.copy()
                kafka.controller.elect(*key, leader, tuple(running))
            kafka.advance()
            kafka.changed.notify_all()
            self.truncated = True
        if self._rng.random() < 0.7:
            self.write(key, self._rng.randint(1, 30))

    def delete_records(self) -> None:
        """As retention does."""
        key = self._rng.choice(self.partitions)
        with self.kafka.changed:
            if self.kafka.controller.topic(TOPIC).partitions[key[1]].leader < 0:
                return
            log = self.kafka.log(*key)
            start = self._rng.randint(log.start_offset, log.end_offset)
            self.kafka.shrink_log(*key, start)
            self.gone |= {value for value, (where, offset) in self.written.items() if where == key and offset < start}
            self.shrunk = True

    def move_leader(self) -> None:
        key = self._rng.choice(self.partitions)
        in_sync = self.kafka.controller.topic(TOPIC).partitions[key[1]].isr
        if running := [each for each in in_sync if self.kafka.brokers[each].running]:
            self.kafka.move_leader(*key, self._rng.choice(running))

    def stop_or_start_broker(self) -> None:
        brokers = self.kafka.brokers
        number = self._rng.choice(list(brokers))
        if not brokers[number].running:
            self.kafka.start(number)
        elif sum(each.running for each in brokers.values()) > 1:
            self.kafka.stop(number)

    def add_partition(self) -> None:
        if len(self.partitions) < 6 and all(each.running for each in self.kafka.brokers.values()):
            self.kafka.create_partitions(TOPIC, len(self.partitions) + 1)

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
        assert twice or not (doubled := {each for each, count in times.items() if count > 1}), f"read twice: {doubled}"
        lost = {value: self.written[value] for value in self.written.keys() - times.keys() - self.gone}
        assert not lost, f"lost: {lost}"


class Killed(Exception):
    """The query's process has ended here."""


@dataclass
class SimulatedQuery:
    """A query: what is in its checkpoint, and the rows of its completed batches."""

    cluster: ChangingCluster
    rng: random.Random
    options: dict[str, str]
    dies: bool = True
    checkpoint: JsonDict | None = None
    planned: JsonDict | None = None
    rows: list[Row] = field(default_factory=list)

    def run(self, triggers: int, meanwhile: Callable[[], None], *, now: bool = False) -> None:
        """One run, which ends after some triggers, with `availableNow` when all is read, or is killed."""
        reader = KafkaStreamReader(parse_source_options(self.options | self._limits(), streaming=True))
        if now:
            reader.prepareForTriggerAvailableNow()
        try:
            self.checkpoint = self.checkpoint or reader.initialOffset()
            for _ in range(triggers):
                if not self.trigger(reader, meanwhile) and now:
                    return
            if not self.dies:  # the next trigger commits the last batch
                reader.latestOffset(self.checkpoint, reader.getDefaultReadLimit())
        except Killed:
            pass
        except DataLoss as loss:
            raise AssertionError(f"failOnDataLoss=false: {loss}") from loss
        finally:
            reader.stop()

    def trigger(self, reader: KafkaStreamReader, meanwhile: Callable[[], None]) -> bool:
        """Plan and read a batch; return False if there is none."""
        assert self.checkpoint is not None
        if self.planned is None:
            end = reader.latestOffset(self.checkpoint, reader.getDefaultReadLimit())
            if end == self.checkpoint:
                meanwhile()
                return False
            self.die(0.05)
            self.planned = json.loads(json.dumps(end))  # as the offset log does
            meanwhile()
            self.die(0.1)
        rows: list[Row] = []
        for task in reader.partitions(self.checkpoint, self.planned):
            rows += self._read(reader, task)
            meanwhile()
        self.die(0.1)
        self.rows += rows
        self.checkpoint, self.planned = self.planned, None
        self.die(0.1)
        return True

    def read_all(self) -> None:
        """Run until nothing is left, and the group's offsets are the ends of the logs."""
        self.dies = False
        reader = KafkaStreamReader(parse_source_options(self.options, streaming=True))
        try:
            self.checkpoint = self.checkpoint or reader.initialOffset()
            while self.trigger(reader, lambda: None):
                pass
        finally:
            reader.stop()

    def die(self, probability: float) -> None:
        if self.dies and self.rng.random() < probability:
            raise Killed

    def _read(self, reader: KafkaStreamReader, task: object) -> list[Row]:
        """Read a task, up to four times as Spark does."""
        for attempt in range(4):
            try:
                found = [row for batch in reader.read(task) for row in batch.to_pylist()]  # type: ignore[arg-type]
                return [((row["topic"], row["partition"]), row["offset"], row["value"].decode()) for row in found]
            except DataLoss:
                raise
            except KafkaError:
                if attempt == 3:
                    raise
                self.cluster.heal()
        raise AssertionError

    def _limits(self) -> dict[str, str]:
        limits = {
            "maxOffsetsPerTrigger": [1, 3, 7, 20],
            "minPartitions": [2, 3],
            "maxRecordsPerPartition": [1, 2, 5],
            "maxInputPartitions": [3, 4, 7],
            "kafka.max.partition.fetch.bytes": [1, 100, 1000],
        }
        return {name: str(self.rng.choice(values)) for name, values in limits.items() if self.rng.random() < 0.35}


def check_commits(query: SimulatedQuery) -> None:
    """No offset of the group may be beyond the last completed batch."""
    cluster = query.cluster
    if cluster.truncated or query.checkpoint is None or "@startingOffsets" in query.checkpoint:
        return
    ends = Offsets.from_json_dict(query.checkpoint).ends
    for key, offset in cluster.kafka.committed_offsets(GROUP).items():
        assert offset <= ends.get(key, offset if cluster.shrunk else 0), f"{key} is committed at {offset}: {ends}"


class Member(threading.Thread):
    """A query that is a member of the group, with starts and ends, until `ending` is set."""

    def __init__(self, query: SimulatedQuery, life_s: float, ending: threading.Event) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._query = query
        self._until_s = time.monotonic() + life_s
        self._ending = ending
        self.start()

    def run(self) -> None:
        try:
            while time.monotonic() < self._until_s and not self._ending.is_set():
                with contextlib.suppress(KafkaError):
                    self._query.run(self._query.rng.randint(5, 50), self._work)
            # What is planned belongs to this query alone: no other member reads it.
            while self._query.planned is not None and not self._ending.is_set():
                with contextlib.suppress(KafkaError):
                    self._query.run(1, self._work)
        except BaseException as error:
            self.error = error

    def _work(self) -> None:
        self._ending.wait(self._query.rng.uniform(0, 0.05))
