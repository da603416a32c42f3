"""Members join and leave during production: no record is lost or handled twice, and no offset decreases."""

from __future__ import annotations

import random

import pytest

from protocol.cluster.client import Client
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.consumer.members import Member, Polling, Watch
from tests.support.number_source import NumberSource
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

PARTITIONS, MOST = 7, 4
STEPS = 60 if SOAK else 8
PROTOCOLS = {"cooperative": COOPERATIVE, **({"eager": EAGER, "kip848": KIP_848} if SOAK else {})}
COMMITS = {"auto.offset.reset": "earliest", "enable.auto.commit": True, "auto.commit.interval.ms": 50}


def record(number: int) -> dict[str, object]:
    """Return a number, for all partitions in turn."""
    return {"value": b"%09d." % number, "partition": number % PARTITIONS}


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_records_are_handled_once_and_in_order_while_members_join_and_leave(
    kafka1: LocalKafka, client: Client, topic1: TopicFactory, group: str, protocol: dict[str, object]
) -> None:
    name, rng = topic1(PARTITIONS), random.Random(4)
    watch, source = Watch(kafka1, client, group), NumberSource(kafka1, name, record, PARTITIONS)
    members: list[Member | Polling] = []
    ended: list[Member | Polling] = []
    handled: list[bytes] = []  # by all members

    def add_member(handles: bool) -> None:
        properties = {**COMMITS, **protocol}
        if handles:
            members.append(Member(client, group, name, handled, **properties))
        else:
            config = parse_group_consumer({"group.id": group, **properties})
            members.append(Polling(KafkaConsumer(client, config), name, handled))

    def wait_for_more(count: int) -> None:
        enough = len(handled) + count
        wait_until(lambda: watch.owned() and len(handled) >= enough)

    try:
        add_member(True)
        for step in range(STEPS):
            wait_for_more(50)
            if len(members) == 1 or (len(members) < MOST and rng.random() < 0.6):
                add_member(step % 2 == 0)
            else:
                ended.append(members.pop(rng.randrange(len(members))))
                ended[-1].close()
        written = source.close()
        wait_until(lambda: watch.owned() and watch.committed == written, lambda: (watch.committed, written))
    finally:
        source.close()
        for member in members:
            member.close()
    for partition in range(PARTITIONS):
        in_partition = [value for value in handled if int(value[:-1]) % PARTITIONS == partition]
        assert in_partition == [b"%09d." % number for number in range(partition, written, PARTITIONS)]
    assert [member.errors for member in [*members, *ended] if isinstance(member, Member) and member.errors] == []
