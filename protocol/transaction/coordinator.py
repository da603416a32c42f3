"""What the coordinator of a transaction is asked: who a producer is, and what belongs to its transaction.

Each call is for an explicit `TransactionalIdentity`, so another process than the producer's may make it. One call, in
the one retry loop; how a transaction ends is `end_transaction`. All raise `BrokerError` for what no retry can mend, and
`DeadlineExceeded`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.call import call, call_partitions
from protocol.cluster.client import COORDINATOR, Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.group.offsets import CommittedOffset, offset_rows
from protocol.kafka_terms import TopicPartition
from protocol.transaction.identity import TransactionalIdentity
from protocol.wire.messages import m24_add_partitions_to_txn, m28_txn_offset_commit
from protocol.wire.messages.m22_init_producer_id import FIRST_WITH_EXPECTED_IDENTITY, INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT

FEATURE = "transaction.version"
"""The finalized feature that says which protocol a cluster's transactions follow: 2 since KIP-890."""


def speaks_v2(client: Client, transactional_id: str, deadline: Deadline) -> bool:
    """Whether brokers add partitions and groups to transactions by themselves, and each gets an epoch of its own.

    As the coordinator said when its connection was opened: no request of its own.
    """
    key = transaction_coordinator(transactional_id)

    def look() -> bool:
        broker = client.coordinator(key, deadline)
        return client.connection(broker, COORDINATOR, deadline).features.get(FEATURE, 0) >= 2

    return client.retrying(f"{FEATURE} of the coordinator of {key}", look, deadline, coordinator_of=key)


def init_producer_id(
    client: Client,
    transactional_id: str,
    transaction_timeout_ms: int,
    deadline: Deadline,
    *,
    held: TransactionalIdentity | None = None,
) -> TransactionalIdentity:
    """The next identity of a transactional id.

    Without `held` every older producer is fenced, and what it left open is aborted, which this waits for. With it, only
    if no other producer has come since; its transaction must be over (KIP-360). After epoch 32766 comes another
    producer id.
    """
    body = {"transactional_id": transactional_id, "transaction_timeout_ms": transaction_timeout_ms}
    at_least = 0
    if held is not None:
        body, at_least = {**body, **held.fields}, FIRST_WITH_EXPECTED_IDENTITY
    reply = call(client, INIT_PRODUCER_ID, body, deadline, at_least=at_least)
    return TransactionalIdentity(transactional_id, reply["producer_id"], reply["producer_epoch"])


def add_partitions(
    client: Client, identity: TransactionalIdentity, partitions: Collection[TopicPartition], deadline: Deadline
) -> None:
    """Adds partitions, all or none, before the first record goes there. Only where brokers do not: `speaks_v2`."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    body: dict[str, Any] = {f"v3_and_below_{name}": value for name, value in identity.fields.items()}
    body["v3_and_below_topics"] = [{"name": name, "partitions": numbers} for name, numbers in by_topic.items()]
    call(
        client,
        ADD_PARTITIONS_TO_TXN,
        body,
        deadline,
        topics=by_topic,
        # Said of the others when one of them is refused.
        accept=(ErrorCode.OPERATION_NOT_ATTEMPTED,),
        complete=partitions,
        at_most=m24_add_partitions_to_txn.LAST_CLIENT_VERSION,
    )


def add_offsets(
    client: Client,
    identity: TransactionalIdentity,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
    *,
    member: GroupMember = NO_MEMBER,
    v2: bool | None = None,
) -> None:
    """A group's offsets, committed when the transaction is: TxnOffsetCommit, where needed after AddOffsetsToTxn.

    `member`: whose claims they come from; a group refuses those of a member that it does not count on any more.
    `v2`: as `speaks_v2` has said; None: asked now.
    """
    if v2 is None:
        v2 = speaks_v2(client, identity.transactional_id, deadline)
    if not v2:
        call(client, ADD_OFFSETS_TO_TXN, {**identity.fields, "group_id": group}, deadline)
    who = {
        **identity.fields,
        "group_id": group,
        "member_id": member.member_id,
        "generation_id": member.generation_id_or_member_epoch,
        "group_instance_id": member.group_instance_id,
    }
    at_most = None if v2 else m28_txn_offset_commit.LAST_BEFORE_TRANSACTION_V2
    call_partitions(client, TXN_OFFSET_COMMIT, who, offset_rows(offsets), deadline, at_most=at_most)
