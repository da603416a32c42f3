"""Killed or unreachable coordinators, paused members: partitions are kept, or lost before other members get them."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.cluster.client import Client
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.protocol.group.membership.conftest import NewMember, rebalance
from tests.support.consumer_groups import coordinator_of
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

PARTITIONS = [0, 1, 2, 3]


@pytest.fixture
def client(kafka: LocalKafka) -> Iterator[Client]:
    with client_of(kafka) as client:
        yield client


@pytest.mark.parametrize(
    ("protocol", "how"),
    [("classic", "killed"), ("consumer", "dark"), *([("classic", "dark"), ("consumer", "killed")] if SOAK else [])],
    indirect=["protocol"],
)
def test_member_survives_a_killed_coordinator(
    client: Client, kafka: LocalKafka, topic: TopicFactory, group: str, new_member: NewMember, how: str
) -> None:
    """Slow: the group's new coordinator is elected and loads its partition; a dark one is noticed by a time-out."""
    name = topic(len(PARTITIONS), replication_factor=3)
    owner, two = new_member(client, name), new_member(client, name)
    owner.poll_rebalance(20_000)
    rebalance(owner, two, until=lambda: len(owner.numbers) == len(two.numbers) == 2)
    broker = coordinator_of(kafka, group)
    (kafka.kill if how == "killed" else kafka.pause)(broker)
    try:
        commit_as_member(client, group, name, owner.numbers[0], owner)
        rebalance(owner, two, until=lambda: sorted(owner.numbers + two.numbers) == PARTITIONS)
        assert not any(revocation.lost for revocation in owner.revoked + two.revoked)
    finally:
        (kafka.start if how == "killed" else kafka.resume)(broker)


def commit_as_member(client: Client, group: str, topic: str, number: int, owner: Any) -> None:
    member = owner.membership.member
    commit_offsets(client, group, {(topic, number): CommittedOffset(7)}, client.deadline(25_000), member)
    assert fetch_offsets(client, group, None, client.deadline())[topic, number].offset == 7


class MemberProcess:
    """Runs `member_process` as a subprocess."""

    def __init__(self, kafka: LocalKafka, topic: str, properties: dict[str, Any]) -> None:
        module = "tests.protocol.group.membership.member_process"
        command = [sys.executable, "-m", module, kafka.bootstrap_servers, topic, json.dumps(properties)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))

    def says(self, label: str, timeout_s: float = 30) -> Any:
        """Return the next value of this kind that the process prints."""
        while True:
            output = self._said.get(timeout=timeout_s)
            if label in output:
                return output[label]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", "consumer"], indirect=True)
def test_paused_member_loses_its_partitions_and_rewinds_no_offset(
    client: Client, kafka: LocalKafka, topic: TopicFactory, group: str, new_member: NewMember, protocol: str
) -> None:
    """In the consumer protocol the brokers set the session timeout: it expires before the client's own one."""
    name = topic(len(PARTITIONS))
    quick = {"session_timeout_ms": "2000", "heartbeat_interval_ms": "200"} if protocol == "classic" else {}
    properties = {name.replace("_", "."): value for name, value in quick.items()}
    zombie = MemberProcess(kafka, name, {"group.id": group, "group.protocol": protocol, **properties})
    try:
        while zombie.says("owned") != PARTITIONS:
            pass
        zombie.process.send_signal(signal.SIGSTOP)
        owner = new_member(client, name, **quick)
        rebalance(owner, until=lambda: owner.numbers == PARTITIONS, timeout_ms=90_000)
        commit_as_member(client, group, name, 0, owner)
        zombie.process.send_signal(signal.SIGCONT)
        assert re.search("ILLEGAL_GENERATION|UNKNOWN_MEMBER_ID|FENCED", zombie.says("committed"))
        assert ("session.timeout.ms" if protocol == "classic" else "UNKNOWN_MEMBER_ID") in zombie.says("lost")
        rebalance(owner, until=lambda: len(owner.numbers) == 2)
        while len(zombie.says("owned")) != 2:
            pass
        assert fetch_offsets(client, group, None, client.deadline())[name, 0].offset == 7
    finally:
        zombie.process.kill()
        zombie.process.wait()
