"""OffsetCommit and OffsetFetch of one group, as two calls.

One request each, to the group's coordinator, inside the one retry loop. `offset_manager` decides when.
Without membership (generation -1, no member id) a commit is only taken while the group has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import GROUP, Client
from protocol.errors import BrokerError, Corrupt, KafkaError
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class CommittedOffset:
    """`offset` is the next one to read; `leader_epoch` is -1 where unknown; `metadata` is free text."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def commit_offsets(
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
    *,
    max_attempts: int | None = None,
) -> None:
    """Commits all of `offsets` or raises: `DeadlineExceeded`, or `BrokerError` for what no retry can mend."""
    left = dict(offsets)

    def attempt() -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), entry in left.items():
            row = {
                "partition_index": partition,
                "committed_offset": entry.offset,
                "committed_leader_epoch": entry.leader_epoch,
                "committed_metadata": entry.metadata,
            }
            topics.setdefault(topic, []).append(row)
        body = {
            "group_id": group,
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        }
        broker = client.coordinator(group, deadline)
        # Versions from 10 on name topics by id only (KIP-848); the names are what is known here.
        reply = client.ask(broker, OFFSET_COMMIT, body, deadline, purpose=GROUP, at_most=9)
        failure: KafkaError | None = None
        for topic_row in reply["topics"]:
            for row in topic_row["partitions"]:
                key = (topic_row["name"], row["partition_index"])
                if row["error_code"] == ErrorCode.NONE:
                    left.pop(key, None)
                else:
                    failure = broker_error(
                        row["error_code"],
                        f"OffsetCommit of {key[0]}-{key[1]} for group {group} at {broker}",
                        group=group,
                    )
        if failure is not None:
            raise failure
        if left:
            raise _left_out(f"OffsetCommit for group {group} at {broker}", left)

    client.retrying(
        f"OffsetCommit for group {group}", attempt, deadline, coordinator_of=group, max_attempts=max_attempts
    )


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

    def attempt() -> dict[TopicPartition, CommittedOffset]:
        broker = client.coordinator(group, deadline)
        # Versions before 2 cannot be asked for all partitions.
        reply = client.ask(broker, OFFSET_FETCH, body, deadline, purpose=GROUP, at_least=2, at_most=9)
        answer = reply["groups"][0] if reply["groups"] else reply
        where = f"OffsetFetch for group {group} at {broker}"
        if answer["error_code"] != ErrorCode.NONE:
            raise broker_error(answer["error_code"], where, group=group)
        found: dict[TopicPartition, CommittedOffset] = {}
        left = set(asked_for)
        for topic_row in answer["topics"]:
            for row in topic_row["partitions"]:
                left.discard((topic_row["name"], row["partition_index"]))
                if row["error_code"] != ErrorCode.NONE:
                    raise broker_error(row["error_code"], where, group=group)
                if row["committed_offset"] >= 0:
                    found[topic_row["name"], row["partition_index"]] = CommittedOffset(
                        row["committed_offset"], row["committed_leader_epoch"], row["metadata"] or ""
                    )
        if left:
            # Not to be taken for partitions that nothing is committed for.
            raise _left_out(where, left)
        return found

    return client.retrying(f"OffsetFetch for group {group}", attempt, deadline, coordinator_of=group)


def is_refused_for_members(error: KafkaError) -> bool:
    """Whether a commit without membership was refused because the group has live members."""
    return isinstance(error, BrokerError) and error.code in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
    )


def _left_out(where: str, partitions: Iterable[TopicPartition]) -> Corrupt:
    topic, partition = min(partitions)
    return Corrupt(f"{where}: the reply leaves out {topic}-{partition}", topic=topic, partition=partition)
