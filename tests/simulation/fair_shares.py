"""Replies with room for few records, also of brokers without fetch sessions: no partition waits while others are read.

Without a session, a broker fills a reply in the order of the request, up to `fetch.max.bytes`. One broker leads all
partitions, most with a backlog, and nothing else happens: an assigned consumer and ranges must read them in turns.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from protocol import Client, KafkaConsumer
from protocol.config import parse_consumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import TopicPartition
from protocol.testing import FakeKafka
from protocol.testing.simulation import Simulation

TOPICS = ("a", "b")
PARTITIONS = 2
RECORDS = 60
"""Records of a partition with a backlog, each in a record batch."""
VALUE = "x" * 200
ROOM_BYTES = (1, 300, 900)
"""Fetch limits: a reply has up to three records."""
MOST_OTHERS = 40
IDLE_RATE = 0.3
LONGEST_FAULT_S = 20.0


class Turns:
    """Counts the records of other partitions that a reader gets while a partition waits.

    Attributes
    ----------
    failures : list of str
        Broken rules.
    """

    def __init__(self, reader: str, partitions: list[TopicPartition], failures: list[str]) -> None:
        self.failures = failures
        self._reader = reader
        self._unread = dict.fromkeys(partitions, RECORDS)
        self._others: Counter[TopicPartition] = Counter()

    def read(self, key: TopicPartition, batch: pa.RecordBatch) -> None:
        """Judge records of a partition."""
        self._unread[key] -= batch.num_rows
        self._others[key] = 0
        for waiting, unread in self._unread.items():
            if waiting != key and unread:
                self._others[waiting] += batch.num_rows
                if self._others[waiting] > MOST_OTHERS:
                    text = f"{self._reader}: {waiting} has {unread} unread records, and waits while {key} is read"
                    self.failures.append(text)

    @property
    def complete(self) -> bool:
        """True if all records are read."""
        return not any(self._unread.values())


def judge_shares(world: Simulation, kafka: FakeKafka, servers: str) -> None:
    """Read backlogs of partitions with one leader, when all faults have ended; fail if a partition starves."""
    world.sleep(LONGEST_FAULT_S)
    keys = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
    leader = world.random.choice(list(kafka.brokers))
    for topic in TOPICS:
        kafka.create_topic(topic, PARTITIONS, len(kafka.brokers))
    for key in keys:
        kafka.move_leader(*key, leader)
    busy = [key for key in keys if world.random.random() >= IDLE_RATE]
    for topic, partition in busy:
        for _ in range(RECORDS):
            kafka.produce(topic, VALUE, partition=partition)
    limits = {"fetch.max.bytes": world.random.choice(ROOM_BYTES)}
    limits["max.partition.fetch.bytes"] = world.random.choice([*ROOM_BYTES, 10**6])
    failures: list[str] = []
    turns = [Turns(reader, busy, failures) for reader in ("consumer", "ranges")]
    processes = [
        world.start(consume, servers, limits, keys, turns[0], name="shares of a consumer"),
        world.start(read_ranges, servers, limits, busy, turns[1], name="shares of ranges"),
    ]
    world.wait_until(lambda: failures or all(reader.complete for reader in turns), 120, "all backlogs are read")
    for process in processes:
        process.kill()
    assert not failures, failures[:3]


def consume(servers: str, limits: dict[str, object], keys: list[TopicPartition], turns: Turns) -> None:
    """Read all partitions, also those without records."""
    consumer = KafkaConsumer({"bootstrap.servers": servers, **limits})
    consumer.assign(keys)
    for key in keys:
        consumer.seek(key, 0)
    while True:
        for key, batches in consumer.poll(300).items():
            for batch in batches:
                turns.read(key, batch)


def read_ranges(servers: str, limits: dict[str, object], keys: list[TopicPartition], turns: Turns) -> None:
    """Read a range of each partition."""
    config = parse_consumer({name: str(limit) for name, limit in limits.items()})
    ranges = [Range(*key, 0, RECORDS) for key in keys]
    with Client({"bootstrap.servers": servers}) as client:
        for planned, batch in BoundedReader(client, config, ranges):
            turns.read((planned.topic, planned.partition), batch)
