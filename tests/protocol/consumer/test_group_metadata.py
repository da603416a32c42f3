"""The member identity with which a consumer sends offsets to a transaction: the one that fetched the records
(KIP-447)."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from protocol import Client, TransactionalProducer
from protocol.consumer.session import ConsumerGroupSession
from protocol.errors import BrokerError, CommitFailed
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.group.member import ConsumerGroupMetadata, GroupMember
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.protocol.consumer.conftest import COOPERATIVE, PROTOCOLS
from tests.protocol.consumer.members import Listener, ReadingHandler, consumer_of, group_of, remove_member, subscribed
from tests.protocol.transaction.producing import started
from tests.support.background import background
from tests.support.internals import membership_of
from tests.support.small_cluster import END, SmallCluster
from tests.support.wait_until import wait_until

GROUP, FIRST = "etl", ("orders", 0)


def send_offsets(producer: TransactionalProducer, metadata: ConsumerGroupMetadata) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction({FIRST: CommittedOffset(END)}, metadata)
    producer.commit_transaction()


@PROTOCOLS
@pytest.mark.parametrize("has_polled", [False, True], ids=["at once", "after the next poll"])
def test_offsets_of_a_removed_member_in_an_empty_group_are_refused(
    fake: SmallCluster, fake_client: Client, protocol: dict[str, object], has_polled: bool
) -> None:
    producer = started(fake_client, "etl-0")
    with subscribed(fake_client, protocol) as consumer:
        fetched_as = consumer.group_metadata().member
        assert fetched_as.is_in_group
        fake.before[JOIN_GROUP] = lambda body: fake.lose_requests(JOIN_GROUP)
        fake.before[CONSUMER_GROUP_HEARTBEAT] = lambda body: (
            fake.lose_requests(CONSUMER_GROUP_HEARTBEAT) if body["member_epoch"] == 0 else None
        )
        remove_member(fake_client, GROUP, fetched_as)
        membership = membership_of(consumer)
        wait_until(lambda: not membership.member.is_in_group)
        if has_polled:
            wait_until(lambda: consumer.poll(0) or not consumer.assignment)
        with pytest.raises(BrokerError, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
            send_offsets(producer, consumer.group_metadata())
        producer.abort_transaction()
        with pytest.raises(CommitFailed, match="assignment under which they were read has ended"):
            consumer.commit_sync({FIRST: CommittedOffset(END)})
        assert fetch_offsets(fake_client, GROUP, [FIRST], fake_client.deadline()) == {}


@pytest.mark.parametrize("ends_by", ["removal", "another one with its instance id"])
def test_member_without_a_reply_to_its_join_learns_its_end_from_a_commit(
    fake: SmallCluster, fake_client: Client, ends_by: str
) -> None:
    """It would wait for `max.poll.interval.ms`, and own partitions that others have."""
    replaced, listener, dropped = ends_by != "removal", Listener(), threading.Event()
    static: dict[str, object] = {"group.instance.id": "a"} if replaced else {}
    fake.create_topic("more")
    with subscribed(fake_client, {**COOPERATIVE, **static}, listener) as consumer:
        member = consumer.group_metadata().member
        fake.edit_replies(JOIN_GROUP, lambda body: dropped.set(), 1)
        consumer.subscribe(["orders", "more"], listener)
        wait_until(lambda: consumer.poll(20) or dropped.is_set())
        if replaced:
            fake.refuse("OffsetCommit", "FENCED_INSTANCE_ID", times=1)
        else:
            remove_member(fake_client, GROUP, member)
        assert len(consumer.assignment) == 2
        with pytest.raises(CommitFailed):
            consumer.commit_sync()
        if replaced:
            with pytest.raises(BrokerError, match=r"FENCED_INSTANCE_ID.*use a different one for each member"):
                wait_until(lambda: consumer.poll(20))
        else:
            wait_until(lambda: consumer.poll(20) or "lost" in listener.calls)
            assert listener.numbers[listener.calls.index("lost")] == [0, 1]
            wait_until(lambda: consumer.poll(20) or len(consumer.assignment) == 4)


@PROTOCOLS
def test_session_of_a_removed_member_keeps_its_generation(fake_client: Client, protocol: dict[str, object]) -> None:
    producer, refusals = started(fake_client, "etl-0"), []

    class Handler(ReadingHandler):
        def cleanup(self, session: ConsumerGroupSession) -> None:
            assert not membership_of(session).member.keeps_assignment_of(members[0])
            assert session.generation_id == members[0].generation_id_or_member_epoch >= 0
            with pytest.raises(BrokerError, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION") as refused:
                send_offsets(producer, ConsumerGroupMetadata(GROUP, session.member))
            refusals.append(refused.value)

    group, handler, members = group_of(fake_client, protocol), Handler(), list[GroupMember]()
    with background(lambda: group.consume(["orders"], handler)), group:
        wait_until(lambda: handler.sessions)
        members.append(handler.sessions[0].member)
        remove_member(fake_client, GROUP, members[0])
        wait_until(lambda: refusals)


def test_offset_in_an_open_transaction_delays_its_own_partition_only(fake_client: Client) -> None:
    producer = started(fake_client, "copy")
    with consumer_of(fake_client) as consumer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({FIRST: CommittedOffset(3)}, ConsumerGroupMetadata(GROUP))
        consumer.assign([FIRST, ("orders", 1)])
        counts: Counter[int] = Counter()

        def read_more() -> None:
            begin_s = time.monotonic()
            for (_, partition), batches in consumer.poll(50).items():
                counts[partition] += sum(batch.num_rows for batch in batches)
            assert time.monotonic() - begin_s < 5

        wait_until(lambda: read_more() or counts[1] == END)
        read_more()
        assert counts == {1: END}
        producer.commit_transaction()
        wait_until(lambda: read_more() or counts[0] == END - 3)
