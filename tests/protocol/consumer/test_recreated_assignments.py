"""Recreated topics in the consumer protocol: a new topic is read by the member to which the group has assigned it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from protocol.cluster.client import Client
from protocol.consumer.consumer_group import ConsumerGroup
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.kafka_terms import TopicPartition
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.protocol.consumer.conftest import KIP_848
from tests.protocol.consumer.members import ReadingHandler, consumer_of, group_of
from tests.protocol.fetch.consuming import client_of
from tests.support.background import background
from tests.support.internals import membership_of, partitions_of
from tests.support.small_cluster import SmallCluster, recreate_topic
from tests.support.wait_until import wait_until

GROUP, FIRST, SECOND = "etl", ("orders", 0), ("orders", 1)


class DelayedHeartbeats:
    """Delays the heartbeats of one member at the broker until `release`."""

    def __init__(self, fake: SmallCluster, member: KafkaConsumer | ConsumerGroup) -> None:
        self._member_id = membership_of(member).member.member_id
        self._released = threading.Event()
        fake.before[CONSUMER_GROUP_HEARTBEAT] = self._delay

    def _delay(self, body: dict[str, Any]) -> None:
        if body["member_id"] == self._member_id:
            assert self._released.wait(20)

    def release(self) -> None:
        self._released.set()


def owner_of_orders(client: Client, **properties: object) -> KafkaConsumer:
    consumer = consumer_of(client, KIP_848, **properties)
    consumer.subscribe(["orders"])
    return consumer


def poll_until(consumer: KafkaConsumer, condition: Callable[[], object]) -> Counter[TopicPartition]:
    """Poll until the condition is true; return the number of rows by partition."""
    rows = Counter[TopicPartition]()

    def poll() -> bool:
        rows.update({key: sum(batch.num_rows for batch in batches) for key, batches in consumer.poll(20).items()})
        return bool(condition())

    wait_until(poll)
    return rows


def read_old_records(consumer: KafkaConsumer) -> None:
    """Read all records of the topic that is deleted afterwards."""
    poll_until(consumer, lambda: [at.offset for at in consumer.positions().values()] == [10, 10])


def await_loss(consumer: KafkaConsumer, *keys: TopicPartition) -> Counter[TopicPartition]:
    """Poll until the consumer knows that these partitions are of a deleted topic; return the rows read meanwhile."""
    return poll_until(consumer, lambda: partitions_of(consumer).recreated >= set(keys))


def test_recreated_topic_is_read_only_by_the_member_to_which_it_is_assigned(
    fake: SmallCluster, fake_client: Client
) -> None:
    """The former owner would read it twice, and its last commit would set the offset of the new owner back."""
    with client_of(fake.bootstrap_servers) as another, owner_of_orders(fake_client) as consumer:
        read_old_records(consumer)
        heartbeats = DelayedHeartbeats(fake, consumer)
        recreate_topic(fake, "orders", 2, 5)
        rows = await_loss(consumer, FIRST, SECOND)
        with owner_of_orders(another) as new_owner:
            rows += poll_until(new_owner, lambda: new_owner.positions().keys() == {SECOND})
            rows += poll_until(new_owner, lambda: new_owner.position(SECOND) == 5)
            new_owner.commit_sync()
            assert not consumer.poll(200)
            assert (consumer.positions(), consumer.recreations) == ({}, {})
            with pytest.raises(CommitFailed, match="deleted and created again"):
                consumer.commit_sync({SECOND: 1})
            heartbeats.release()
            rows += poll_until(
                consumer, lambda: {key: at.offset for key, at in consumer.positions().items()} == {FIRST: 5}
            )
            consumer.commit_sync()
            assert fake.committed_offsets(GROUP) == {FIRST: 5, SECOND: 5}
    assert rows == {FIRST: 5, SECOND: 5}


def test_seek_to_a_position_in_a_topic_that_is_not_assigned_reads_no_record_of_it(
    fake: SmallCluster, fake_client: Client
) -> None:
    """The consumer does not know yet that the topic was recreated; `committed`, for example, returns such positions."""
    with owner_of_orders(fake_client) as consumer:
        read_old_records(consumer)
        heartbeats = DelayedHeartbeats(fake, consumer)
        consumer.pause([FIRST, SECOND])
        recreate_topic(fake, "orders", 2, 5)
        consumer.seek(FIRST, CommittedOffset(2, topic_id=fake.controller.topic("orders").topic_id))
        consumer.resume([FIRST, SECOND])
        assert not await_loss(consumer, FIRST, SECOND)
        heartbeats.release()
        assert poll_until(consumer, lambda: consumer.positions().keys() == {FIRST, SECOND})[FIRST] in (0, 5)


@pytest.mark.parametrize("seek", ["seek", "seek_to_beginning"])
def test_seek_in_a_recreated_topic_that_is_not_assigned_yet_is_ignored(
    fake: SmallCluster, fake_client: Client, caplog: pytest.LogCaptureFixture, seek: str
) -> None:
    with owner_of_orders(fake_client) as consumer:
        read_old_records(consumer)
        heartbeats = DelayedHeartbeats(fake, consumer)
        recreate_topic(fake, "orders", 2, 5)
        await_loss(consumer, FIRST, SECOND)
        if seek == "seek":
            consumer.seek(FIRST, 3)
        else:
            consumer.seek_to_beginning([FIRST])
        assert not consumer.poll(200)
        heartbeats.release()
        rows = poll_until(consumer, lambda: sum(at.offset for at in consumer.positions().values()) == 10)
    assert rows == {FIRST: 5, SECOND: 5}
    assert "seek of orders-0 to offset" in caplog.text
    assert caplog.text.count("this member waits until the group assigns the new topic") == 2


def test_claim_of_a_recreated_topic_ends_without_records_of_the_new_one(
    fake: SmallCluster, fake_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    handler, group = ReadingHandler(), group_of(fake_client, KIP_848)

    def consume() -> None:
        while not group.closed:
            group.consume(["orders"], handler)

    with background(consume), group:
        wait_until(lambda: handler.rows["orders"] == 20)
        heartbeats = DelayedHeartbeats(fake, group)
        with caplog.at_level(logging.WARNING):
            recreate_topic(fake, "orders", 2, 5)
            wait_until(lambda: caplog.text.count("this member waits until the group assigns the new topic") == 2)
        assert handler.rows["orders"] == 20
        heartbeats.release()
        wait_until(lambda: handler.rows["orders"] == 30)
    assert handler.cleanups == 2


def test_poll_of_a_claim_in_a_recreated_topic_ends_at_its_timeout(fake: SmallCluster, fake_client: Client) -> None:
    waits_s: list[float] = []

    class Handler(ReadingHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            while not claim.revoked:
                since_s = time.monotonic()
                batch = claim.poll(100)
                waits_s.append(time.monotonic() - since_s)
                self.rows[claim.topic] += 0 if batch is None else batch.num_rows

    handler, group = Handler(), group_of(fake_client, KIP_848)
    with background(lambda: group.consume(["orders"], handler)), group:
        wait_until(lambda: handler.rows["orders"] == 20)
        heartbeats, waits_s[:] = DelayedHeartbeats(fake, group), []
        recreate_topic(fake, "orders", 2, 5)
        wait_until(lambda: len(waits_s) > 10)
        heartbeats.release()
    assert max(waits_s) < 1.5
