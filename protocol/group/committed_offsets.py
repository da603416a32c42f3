"""OffsetCommit and OffsetFetch of one group, as two calls.

One request each, to the group's coordinator, inside the one retry loop. `offset_manager` decides when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.call import Handle, Row, call, call_partitions
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import BrokerError, KafkaError
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import NO_LEADER_EPOCH, TopicPartition
from protocol.wire.messages import m08_offset_commit, m09_offset_fetch
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.parts import error_parts

_REFUSED_FOR_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH)


@dataclass(frozen=True)
class CommittedOffset:
    """`offset` is the next one to read; `leader_epoch` is -1 where unknown; `metadata` is free text."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


def offset_rows(offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, dict[str, Any]]:
    """As OffsetCommit and TxnOffsetCommit have them."""
    return {
        key: {
            "committed_offset": entry.offset,
            "committed_leader_epoch": entry.leader_epoch,
            "committed_metadata": entry.metadata,
        }
        for key, entry in offsets.items()
    }


def commit_offsets(
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
    member: GroupMember = NO_MEMBER,
    handle: Handle | None = None,
) -> None:
    """Commits all of `offsets` or raises: `DeadlineExceeded`, or `BrokerError` for what no retry can mend.

    `handle` hears each answer, as of `call_partitions`.
    """
    who = {
        "group_id": group,
        "member_id": member.member_id,
        "generation_id_or_member_epoch": member.generation_id_or_member_epoch,
        "group_instance_id": member.group_instance_id,
    }
    # The names of topics are what is known here, and not their ids.
    at_most = m08_offset_commit.LAST_WITH_TOPIC_NAMES

    def explained(key: TopicPartition, row: Row, broker: Broker, error: BrokerError | None) -> KafkaError | None:
        if error is not None and member == NO_MEMBER and error.code in _REFUSED_FOR_MEMBERS:
            what = f"{error}; the group has live members: use another group.id, or stop them"
            error = BrokerError(what, **error.context, settings=("group.id",))
        return error if handle is None else handle(key, row, broker, error)

    call_partitions(client, OFFSET_COMMIT, who, offset_rows(offsets), deadline, handle=explained, at_most=at_most)


def fetch_offsets(
    client: Client,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    deadline: Deadline,
    *,
    require_stable: bool = True,
) -> dict[TopicPartition, CommittedOffset]:
    """What the group has committed for `partitions`, None: for all; those without a committed offset are left out.

    Unless `require_stable` is false, waits for open transactions that hold offsets of the group (KIP-447). Raises
    `DeadlineExceeded` or `BrokerError`.
    """
    by_topic: dict[str, list[int]] = {}
    asked_for = tuple(partitions or ())
    for topic, partition in asked_for:
        by_topic.setdefault(topic, []).append(partition)
    named = [{"name": name, "partition_indexes": indexes} for name, indexes in by_topic.items()]
    topics = None if partitions is None else named

    def body(version: int) -> dict[str, Any]:
        # KIP-709: from version 8 on, several groups in one request.
        asked: dict[str, Any] = {"group_id": group, "topics": topics}
        if version >= 8:
            return {"groups": [asked], "require_stable": require_stable}
        return {**asked, "require_stable": require_stable} if version >= 7 else asked

    to, at_most = group_coordinator(group), m09_offset_fetch.LAST_WITH_TOPIC_NAMES
    # Versions before 2 cannot be asked for all partitions. What is left out is not to be taken for one that nothing is
    # committed for.
    reply = call(client, OFFSET_FETCH, body, deadline, to=to, complete=asked_for, at_least=2, at_most=at_most)
    answers = {part.partition: part.fields for part in error_parts(OFFSET_FETCH, reply) if part.partition is not None}
    return {
        key: CommittedOffset(row["committed_offset"], row["committed_leader_epoch"], row["metadata"] or "")
        for key, row in answers.items()
        if row["committed_offset"] >= 0
    }
