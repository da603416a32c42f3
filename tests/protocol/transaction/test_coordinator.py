"""Requests to the coordinator before the end of a transaction."""

from __future__ import annotations

import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import BrokerError, DeadlineExceeded
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.group.member import GroupMember
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.coordinator import add_offsets, add_partitions, init_producer_id, speaks_v2
from protocol.transaction.end_transaction import TransactionOutcome, end_transaction
from protocol.transaction.states import TransactionalIdentity
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN


def init(client: Client, pending: TransactionalIdentity | None = None) -> TransactionalIdentity:
    return init_producer_id(client, "etl-0", 10_000, client.deadline(), identity=pending)


def test_cluster_reports_its_transaction_version(client: Client, transaction_version: str) -> None:
    assert speaks_v2(client, "etl-0", client.deadline()) is (transaction_version == "2")


def test_lost_init_reply_keeps_the_identity(fake: FakeKafka, client: Client) -> None:
    identity = init(client)
    fake.lose_replies(INIT_PRODUCER_ID)
    assert init(client, identity).producer_epoch == identity.producer_epoch + 1


def test_init_waits_for_the_abort_of_an_open_transaction(fake: FakeKafka, client: Client) -> None:
    old = init(client)
    add_partitions(client, old, [("orders", 0)], client.deadline())
    fake.hold_markers()
    requested = iter(range(10))
    fake.before[INIT_PRODUCER_ID] = lambda _: fake.hold_markers(next(requested) < 3)
    new = init(client)
    assert new.producer_epoch > old.producer_epoch + 1, "the abort bumped the epoch once"
    assert end_transaction(client, old, commit=True, deadline=client.deadline()).outcome is TransactionOutcome.FENCED


def test_partitions_are_added_in_one_request(fake: FakeKafka, client: Client) -> None:
    identity = init(client)
    fake.create_topic("bills", 2)
    partitions = {("orders", 0), ("orders", 2), ("bills", 1)}
    add_partitions(client, identity, partitions, client.deadline())
    assert fake.transactions.transactions["etl-0"].partitions == partitions
    assert len(fake.request_bodies(ADD_PARTITIONS_TO_TXN)) == 1


def test_unknown_partition_is_added_again(fake: FakeKafka, client: Client) -> None:
    identity = init(client)
    requested = iter(range(10))
    fake.before[ADD_PARTITIONS_TO_TXN] = lambda _: next(requested) == 2 and fake.create_topic("bills")
    add_partitions(client, identity, [("orders", 0), ("bills", 0)], client.deadline())
    assert fake.transactions.transactions["etl-0"].partitions == {("orders", 0), ("bills", 0)}


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_refused_partitions_are_an_error(fake: FakeKafka, client: Client, code: ErrorCode) -> None:
    identity = init(client)
    fake.refuse(ADD_PARTITIONS_TO_TXN, code)
    with pytest.raises(BrokerError, match=code.name):
        add_partitions(client, identity, [("orders", 0)], client.deadline())


def test_offsets_become_visible_when_the_transaction_commits(
    fake: FakeKafka, client: Client, transaction_version: str
) -> None:
    identity = init(client)
    offsets = {("orders", 0): CommittedOffset(7, metadata="task 0 of 3"), ("orders", 1): CommittedOffset(8)}
    add_offsets(client, identity, "etl", offsets, client.deadline())
    assert len(fake.request_bodies(ADD_OFFSETS_TO_TXN)) == (1 if transaction_version == "1" else 0)
    assert fetch_offsets(client, "etl", None, client.deadline(), require_stable=False) == {}
    end_transaction(client, identity, commit=True, deadline=client.deadline())
    assert fetch_offsets(client, "etl", None, client.deadline()) == offsets


def test_offsets_of_an_unknown_member_are_refused(client: Client) -> None:
    stranger = GroupMember("nobody", generation_id=3)
    with pytest.raises(BrokerError) as refused:
        add_offsets(
            client, init(client), "etl", {("orders", 0): CommittedOffset(7)}, client.deadline(), member=stranger
        )
    assert refused.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


def test_offset_of_a_deleted_topic_is_retried_until_the_deadline(fake: FakeKafka, client: Client) -> None:
    identity = init(client)
    offsets = {("bills", 0): CommittedOffset(7, topic_id=fake.create_topic("bills").topic_id)}
    client.metadata({"bills"}, client.deadline())
    fake.delete_topic("bills")
    with pytest.raises(DeadlineExceeded, match="UNKNOWN_TOPIC_OR_PARTITION"):
        add_offsets(client, identity, "etl", offsets, Deadline.after_ms(1_000, client.clock))
