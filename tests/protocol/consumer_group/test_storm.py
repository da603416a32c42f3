"""Members join and leave during production: no record is lost or handled twice, and no offset decreases."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from confluent_kafka import Producer

from protocol.cluster.client import Client
from protocol.consumer_group.group_consumer_config import parse_group_consumer
from protocol.consumer_group.kafka_consumer import KafkaConsumer
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer_group.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.consumer_group.members import Member, Polling, Watch
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

PARTITIONS, MOST = 7, 4
STEPS = 60 if SOAK else 8
PROTOCOLS = {"cooperative": COOPERATIVE, **({"eager": EAGER, "kip848": KIP_848} if SOAK else {})}
COMMITS = {"auto.offset.reset": "earliest", "enable.auto.commit": True, "auto.commit.interval.ms": 50}


class Source:
    """Writes numbers to all partitions in turn, until it is closed."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.count = 0
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "log_level": 0})
        self._topic = topic
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(0.01):
            for _ in range(PARTITIONS):
                self._producer.produce(self._topic, b"%09d." % self.count, partition=self.count % PARTITIONS)
                self.count += 1
            self._producer.poll(0)

    def close(self) -> int:
        """Return the number of records written."""
        self._closing.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.count


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_records_are_handled_once_while_members_join_and_leave(
    kafka1: LocalKafka, client: Client, topic1: TopicFactory, group: str, protocol: dict[str, object]
) -> None:
    name, rng = topic1(PARTITIONS), random.Random(4)
    watch, source = Watch(kafka1, client, group), Source(kafka1, name)
    members: list[Member | Polling] = []
    gone: list[Member | Polling] = []

    def add_member(handles: bool) -> None:
        given = {**COMMITS, **protocol}
        if handles:
            members.append(Member(client, group, name, **given))
        else:
            config = parse_group_consumer({"group.id": group, **given})
            members.append(Polling(KafkaConsumer(client, config), name))

    def handled() -> Counter[bytes]:
        return Counter(value for member in [*members, *gone] for value in member.values)

    def wait_for_more(count: int) -> None:
        enough = handled().total() + count
        wait_until(lambda: watch.owned() and handled().total() >= enough)

    try:
        add_member(True)
        for step in range(STEPS):
            wait_for_more(50)
            if len(members) == 1 or (len(members) < MOST and rng.random() < 0.6):
                add_member(step % 2 == 0)
            else:
                gone.append(members.pop(rng.randrange(len(members))))
                gone[-1].close()
        written = source.close()
        wait_until(lambda: watch.owned() and watch.committed == written, lambda: (watch.committed, written))
    finally:
        source.close()
        for member in members:
            member.close()
    assert handled() == Counter(b"%09d." % number for number in range(written))
    assert [member.errors for member in [*members, *gone] if isinstance(member, Member) and member.errors] == []
