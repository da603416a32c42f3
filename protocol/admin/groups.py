"""Consumer groups from outside: which there are, their state and live members, and their end.

Runs wherever its caller does. Asks a group's coordinator, or every broker for its groups, in the one retry loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.errors import ProtocolError, UnsupportedVersion
from protocol.group.assignors.consumer_protocol import decode_assignment
from protocol.kafka_terms import TopicPartition
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m16_list_groups import LIST_GROUPS
from protocol.wire.messages.m42_delete_groups import DELETE_GROUPS
from protocol.wire.messages.m69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE

CLASSIC, CONSUMER = "classic", "consumer"
"""Kafka's words for the type of a group: that of JoinGroup, and that of KIP-848."""

_NOT_SUCH_A_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
# Of those who share partitions, and of those who commit and never join. Connect, for one, has a type of its own.
_PROTOCOL_TYPES_OF_CONSUMERS = ("consumer", "")


@dataclass(frozen=True)
class ListedGroup:
    """`type` is `CLASSIC` or `CONSUMER`; `state` as of `GroupDescription`, "" before Kafka 2.6."""

    group: str
    type: str
    state: str


@dataclass(frozen=True)
class Member:
    """One live member, as the coordinator knows it. `assignment` is empty during a rebalance of a classic group.

    `target`: what it will have when others have given that up (KIP-848); of a classic group the assignment.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: frozenset[TopicPartition]
    target: frozenset[TopicPartition]


@dataclass(frozen=True)
class GroupDescription:
    """`state` is Kafka's word: "Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead", …

    `type` is `CLASSIC` or `CONSUMER`; `assignor` the name of the one in use, "" without members.
    """

    group: str
    type: str
    state: str
    assignor: str
    members: tuple[Member, ...]


def list_groups(client: Client, deadline: Deadline | None = None) -> list[ListedGroup]:
    """The consumer groups of all brokers, by name. Raises `DeadlineExceeded` or `BrokerError`."""
    deadline = deadline or client.deadline()
    rows = [
        row
        for broker in client.metadata([], deadline).brokers.values()
        for row in call(client, LIST_GROUPS, {}, deadline, to=broker)["groups"]
        if row["protocol_type"] in _PROTOCOL_TYPES_OF_CONSUMERS
    ]
    # A broker that tells no types has no others. Share groups and those of Kafka Streams are no consumer groups.
    found = (ListedGroup(row["group_id"], row["group_type"].lower() or CLASSIC, row["group_state"]) for row in rows)
    return sorted((each for each in found if each.type in (CLASSIC, CONSUMER)), key=lambda each: each.group)


def describe_group(client: Client, group: str, deadline: Deadline | None = None) -> GroupDescription:
    """State and members; a group nobody has heard of is "Dead" with no members.

    Groups of the consumer protocol (KIP-848) answer to ConsumerGroupDescribe only, all others to DescribeGroups.
    Raises `DeadlineExceeded` or `BrokerError`.
    """
    deadline = deadline or client.deadline()
    for api, groups in ((DESCRIBE_GROUPS, "groups"), (CONSUMER_GROUP_DESCRIBE, "group_ids")):
        with suppress(UnsupportedVersion):
            (row,) = call(client, api, {groups: [group]}, deadline, accept=_NOT_SUCH_A_GROUP)["groups"]
            # Before version 6 DescribeGroups knows no code for a group that is not there.
            is_none = row["group_state"] == "Dead" and row.get("protocol_type") == ""
            if row["error_code"] == ErrorCode.NONE and not is_none:
                return _classic(row) if api is DESCRIBE_GROUPS else _consumer(row)
    return GroupDescription(group, CLASSIC, "Dead", "", ())


def delete_group(client: Client, group: str, deadline: Deadline | None = None) -> None:
    """Deletes it with its offsets. Raises `BrokerError` (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …)."""
    call(client, DELETE_GROUPS, {"groups_names": [group]}, deadline or client.deadline())


def _classic(row: Mapping[str, Any]) -> GroupDescription:
    members = []
    for each in row["members"]:
        assignment = _embedded(row, each)
        members.append(_member(each, each["group_instance_id"], assignment, assignment))
    return GroupDescription(row["group_id"], CLASSIC, row["group_state"], row["protocol_data"], tuple(members))


def _consumer(row: Mapping[str, Any]) -> GroupDescription:
    members = (
        _member(each, each["instance_id"], _partitions(each["assignment"]), _partitions(each["target_assignment"]))
        for each in row["members"]
    )
    return GroupDescription(row["group_id"], CONSUMER, row["group_state"], row["assignor_name"], tuple(members))


def _member(row: Mapping[str, Any], group_instance_id: str | None, *partitions: frozenset[TopicPartition]) -> Member:
    return Member(row["member_id"], group_instance_id, row["client_id"], row["client_host"], *partitions)


def _embedded(group: Mapping[str, Any], member: Mapping[str, Any]) -> frozenset[TopicPartition]:
    """What the leader wrote. Nobody checks that: it may be no assignment at all, and who is there counts more."""
    with suppress(ProtocolError):
        if group["protocol_type"] == "consumer":
            return decode_assignment(member["member_assignment"])
    return frozenset()


def _partitions(assignment: Mapping[str, Any]) -> frozenset[TopicPartition]:
    topics = assignment["topic_partitions"]
    return frozenset((topic["topic_name"], partition) for topic in topics for partition in topic["partitions"])
