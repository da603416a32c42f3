"""Requests to a transaction coordinator: producer ids, and the partitions and offsets of a transaction.

Each function takes an explicit `TransactionalIdentity`, so another process than the producer's may call it. All run in
the retry loop and raise `BrokerError` for non-retriable errors, and `DeadlineExceeded`. `end_transaction` commits and
aborts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.call import Row, call, call_partitions
from protocol.cluster.client import COORDINATOR, Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import BrokerError, KafkaError, TopicRecreated
from protocol.group.commits.committed_offsets import CommittedOffset, offset_rows, topic_id_check
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.transaction.states import TransactionalIdentity
from protocol.wire.messages import m28_txn_offset_commit
from protocol.wire.messages.m22_init_producer_id import FIRST_WITH_EXPECTED_IDENTITY, INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT

FEATURE = "transaction.version"
"""The finalized feature with the version of a cluster's transaction protocol: 2 since KIP-890."""


def speaks_v2(client: Client, transactional_id: str, deadline: Deadline) -> bool:
    """Return True if the cluster uses version 2 of the transaction protocol (KIP-890).

    Brokers then add partitions and groups to transactions themselves, and each transaction has its own epoch. Read from
    the coordinator's ApiVersions reply, without another request.
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
    identity: TransactionalIdentity | None = None,
) -> TransactionalIdentity:
    """Initialize a transactional id, and return its next identity.

    `transaction_timeout_ms`: the coordinator aborts transactions that are open for longer.
    `identity`: None fences all older producers, and waits until their open transaction is aborted. Otherwise the
    caller's identity: its epoch is bumped, but only if no other producer was initialized after it. It must have no open
    transaction (KIP-360).
    After epoch 32766 the new identity has another producer id.
    """
    body = {"transactional_id": transactional_id, "transaction_timeout_ms": transaction_timeout_ms}
    at_least = 0
    if identity is not None:
        body, at_least = {**body, **identity.fields}, FIRST_WITH_EXPECTED_IDENTITY
    reply = call(client, INIT_PRODUCER_ID, body, deadline, at_least=at_least)
    return TransactionalIdentity(transactional_id, reply["producer_id"], reply["producer_epoch"])


def add_partitions(
    client: Client, identity: TransactionalIdentity, partitions: Collection[TopicPartition], deadline: Deadline
) -> None:
    """Add partitions to the transaction, all or none, before their first record. Not needed if `speaks_v2`."""
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
        # The code of valid partitions in a request with a refused one.
        accept=(ErrorCode.OPERATION_NOT_ATTEMPTED,),
        complete=partitions,
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
    """Add a group's offsets to the transaction, which commits them.

    Sends AddOffsetsToTxn, unless `v2`, and then TxnOffsetCommit.

    `member`: the group refuses the offsets of a member that it has removed or fenced.
    `v2`: result of `speaks_v2`; None: call it.
    Raises `TopicRecreated`: an offset belongs to a deleted topic, and a new topic has its name.
    """
    if v2 is None:
        v2 = speaks_v2(client, identity.transactional_id, deadline)
    if not v2:
        call(client, ADD_OFFSETS_TO_TXN, {**identity.fields, "group_id": group}, deadline)
    request_fields = {
        **identity.fields,
        "group_id": group,
        "member_id": member.member_id,
        "generation_id_or_member_epoch": member.generation_id_or_member_epoch,
        "group_instance_id": member.group_instance_id,
    }
    at_most = None if v2 else m28_txn_offset_commit.LAST_BEFORE_TRANSACTION_V2
    compare, options = topic_id_check(client, TXN_OFFSET_COMMIT, offsets, deadline, at_most=at_most)
    ids: dict[str, set[bytes]] = {}

    def check(broker: Broker, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerError]:
        """Return errors of partitions that are not sent, which `handle` gets as well. Called before each try."""
        ids.clear()
        return compare(broker, partitions)

    def handle(key: TopicPartition, row: Row, broker: Broker, error: BrokerError | None) -> KafkaError | None:
        """Return the error of a partition, which is retried if retriable: a broker may not know the new topic yet.

        None: the offset is accepted.
        UNKNOWN_TOPIC_ID becomes `TopicRecreated`, or the error of an unknown topic.
        """
        if error is None or error.code != ErrorCode.UNKNOWN_TOPIC_ID:
            return error
        topic = key[0]
        if topic not in ids:
            ids.update(client.ids_at_brokers([topic], deadline))
        if ids[topic] == {NO_TOPIC_ID}:
            context = {name: value for name, value in error.context.items() if name != "code"}
            return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(error), **context)
        if ids[topic] and offsets[key].topic_id not in ids[topic]:
            return TopicRecreated(
                f"commit of {topic}-{key[1]}: the offset belongs to a deleted topic of that name. After the consumer "
                "has moved to the new topic, call its group_metadata() again",
                **error.context,
            )
        return error

    call_partitions(
        client,
        TXN_OFFSET_COMMIT,
        request_fields,
        offset_rows(offsets),
        deadline,
        handle=handle,
        check=check,
        **options,
    )
