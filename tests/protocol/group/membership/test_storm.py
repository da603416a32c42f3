"""Members join and leave all the time: no partition has two owners, no offset decreases, and finally all are owned.

`make soak` runs each case for a minute.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping

import pytest

from protocol.broker_errors import ErrorCode, GroupEffect, error_row
from protocol.cluster.client import Client
from protocol.config import parse_consumer
from protocol.errors import BrokerError
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.group.membership.assignment import Revocation, TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.support.chaos import Actor, Chaos, Move
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

PARTITIONS, MEMBERS, STORM_S = 7, 4, 60 if SOAK else 4
KINDS = {
    "eager": {"group.protocol": "classic", "heartbeat.interval.ms": "100"},
    "cooperative": {
        "group.protocol": "classic",
        "heartbeat.interval.ms": "100",
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "consumer": {"group.protocol": "consumer"},
}


class Ledger:
    """Owners of partitions and committed offsets; it records violations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owners: dict[TopicPartition, Worker] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.faults: list[str] = []
        self.handed_over = 0

    def assign(self, worker: Worker, result: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            for key, offset in result.items():
                if self.owners.setdefault(key, worker) is not worker:
                    self.faults.append(f"{key} has two owners")
                if offset < self.committed.get(key, 0):
                    self.faults.append(f"{key} begins at {offset}, but {self.committed[key]} was committed")
                self.handed_over += 1

    def release(self, worker: Worker, partitions: frozenset[TopicPartition]) -> None:
        with self._lock:
            for key in partitions:
                if self.owners.pop(key, None) is not worker:
                    self.faults.append(f"{key} is released by a worker without it")

    def note_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            self.committed.update(offsets)


class Worker(threading.Thread):
    """An owner: handles pending rebalances, works a little, and commits the next offset of all owned partitions."""

    def __init__(self, client: Client, ledger: Ledger, topic: str, options: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.client, self.ledger, self.group = client, ledger, options["group.id"]
        self.membership = Membership(client, parse_consumer(options), TopicSubscription(frozenset({topic})))
        self.offsets: dict[TopicPartition, int] = {}
        self.ending = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                if self.membership.rebalance_pending or not self.offsets:
                    self.poll_rebalance()
                time.sleep(random.random() / 20)
                self.commit()
            self.ledger.release(self, frozenset(self.offsets))
            self.membership.close()
        except BaseException as fault:
            self.ledger.faults.append(repr(fault))
            raise

    def poll_rebalance(self) -> None:
        assignment = self.membership.poll_rebalance(self.client.deadline(500), self.before_revoke)
        added = dict.fromkeys(assignment.added, 0)
        offsets = fetch_offsets(self.client, self.group, added, self.client.deadline()) if added else {}
        added |= {key: offset.offset for key, offset in offsets.items()}
        self.ledger.assign(self, added)
        self.offsets |= added
        if self.offsets.keys() != assignment.owned:
            self.ledger.faults.append(f"{self.offsets.keys()} is not {assignment.owned}")

    def before_revoke(self, revocation: Revocation) -> None:
        if not revocation.lost:
            self.commit()
        self.ledger.release(self, revocation.partitions & self.offsets.keys())
        self.offsets = {key: offset for key, offset in self.offsets.items() if key not in revocation.partitions}

    def commit(self) -> None:
        """A generation of the classic protocol may be completing or superseded: then no offset is committed."""
        newer = {key: offset + 1 for key, offset in self.offsets.items()}
        offsets = {key: CommittedOffset(offset) for key, offset in newer.items()}
        try:
            commit_offsets(self.client, self.group, offsets, self.client.deadline(), self.membership.member)
        except BrokerError as error:
            expected = error.code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH)
            if not expected and error_row(error.code).group_effect is not GroupEffect.ASSIGNMENT_LOST:
                raise
        else:
            self.offsets = newer
            self.ledger.note_commit(newer)


class Member(Actor):
    """A worker, each time another one."""

    def __init__(self, new: Callable[[], Worker]) -> None:
        self._new = new

    def start(self) -> None:
        self._worker = self._new()

    def stop(self) -> None:
        self._worker.ending.set()
        self._worker.join(20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(STORM_S + 60)
def test_members_join_and_leave_without_shared_ownership(
    kafka1: LocalKafka, topic1: TopicFactory, group: str, kind: str
) -> None:
    if kind == "consumer" and version_numbers(KAFKA_VERSION) < (4, 0):
        pytest.skip("the consumer protocol begins with Kafka 4.0")
    ledger, name = Ledger(), topic1(PARTITIONS)
    with client_of(kafka1) as client:

        def new() -> Worker:
            return Worker(client, ledger, name, {"group.id": group, **KINDS[kind]})

        chaos = Chaos([Member(new) for _ in range(MEMBERS)], random.Random(), {Move.STOP: 1}, 1)
        chaos.start_all()
        storm_ends = client.deadline(STORM_S * 1_000)
        while not storm_ends.passed and not ledger.faults:
            time.sleep(random.random() / 2)
            chaos.step()
        chaos.start_all()
        settled_by = client.deadline(10_000)
        while len(ledger.owners) < PARTITIONS and not settled_by.passed and not ledger.faults:
            time.sleep(0.05)
        assert (ledger.faults, len(ledger.owners)) == ([], PARTITIONS)
        chaos.end_all()
        assert (ledger.faults, ledger.owners) == ([], {})
        assert ledger.handed_over > PARTITIONS
