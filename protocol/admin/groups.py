"""List, describe and delete consumer groups.

Runs in the caller's thread. Sends requests to a group's coordinator, or to every broker, in the shared retry loop.
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
"""Kafka's names of group types: the classic protocol (JoinGroup) and the consumer protocol (KIP-848)."""

_NOT_SUCH_A_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
# "consumer": members share partitions; "": a group only commits and never joins. Connect, for example, has its own.
_PROTOCOL_TYPES_OF_CONSUMERS = ("consumer", "")


@dataclass(frozen=True)
class ListedGroup:
    """A consumer group as its coordinator lists it.

    `type` is `CLASSIC` or `CONSUMER`. `state` is as in `GroupDescription`, "" before Kafka 2.6.
    """

    group: str
    type: str
    state: str


@dataclass(frozen=True)
class Member:
    """A live member, as the coordinator describes it.

    Attributes
    ----------
    assignment
        Empty during a rebalance of a classic group.
    target
        Target assignment, reached when other members have revoked its partitions (KIP-848); in a classic group equal
        to `assignment`.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: frozenset[TopicPartition]
    target: frozenset[TopicPartition]


@dataclass(frozen=True)
class GroupDescription:
    """State and members of a group.

    Attributes
    ----------
    type
        `CLASSIC` or `CONSUMER`.
    state
        Kafka's name: "Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead", …
    assignor
        Name of the assignor in use; "" without members.
    """

    group: str
    type: str
    state: str
    assignor: str
    members: tuple[Member, ...]


def list_groups(client: Client, deadline: Deadline | None = None) -> list[ListedGroup]:
    """Return the consumer groups of all brokers, sorted by name; raise `DeadlineExceeded` or `BrokerError`."""
    deadline = deadline or client.deadline()
    rows = [
        row
        for broker in client.metadata([], deadline).brokers.values()
        for row in call(client, LIST_GROUPS, {}, deadline, to=broker)["groups"]
        if row["protocol_type"] in _PROTOCOL_TYPES_OF_CONSUMERS
    ]
    # A broker that returns no types has classic groups only. Share groups and Kafka Streams groups are left out.
    found = (ListedGroup(row["group_id"], row["group_type"].lower() or CLASSIC, row["group_state"]) for row in rows)
    return sorted((each for each in found if each.type in (CLASSIC, CONSUMER)), key=lambda each: each.group)


def describe_group(client: Client, group: str, deadline: Deadline | None = None) -> GroupDescription:
    """Return state and members of a group; "Dead" without members if the group is unknown.

    Raises
    ------
    DeadlineExceeded
        No broker answered in time.
    BrokerError
        The coordinator refused.

    Notes
    -----
    Groups of the consumer protocol (KIP-848) are described by ConsumerGroupDescribe only, all others by DescribeGroups.
    """
    deadline = deadline or client.deadline()
    for api, groups in ((DESCRIBE_GROUPS, "groups"), (CONSUMER_GROUP_DESCRIBE, "group_ids")):
        with suppress(UnsupportedVersion):
            (row,) = call(client, api, {groups: [group]}, deadline, accept=_NOT_SUCH_A_GROUP)["groups"]
            # Before version 6, DescribeGroups has no error code for a group that does not exist.
            is_none = row["group_state"] == "Dead" and row.get("protocol_type") == ""
            if row["error_code"] == ErrorCode.NONE and not is_none:
                return _classic(row) if api is DESCRIBE_GROUPS else _consumer(row)
    return GroupDescription(group, CLASSIC, "Dead", "", ())


def delete_group(client: Client, group: str, deadline: Deadline | None = None) -> None:
    """Delete a group and its offsets; raise `BrokerError` (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …)."""
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
    """Return the leader's assignment; empty if invalid, since brokers do not check it and members matter more."""
    with suppress(ProtocolError):
        if group["protocol_type"] == "consumer":
            return decode_assignment(member["member_assignment"])
    return frozenset()


def _partitions(assignment: Mapping[str, Any]) -> frozenset[TopicPartition]:
    topics = assignment["topic_partitions"]
    return frozenset((topic["topic_name"], partition) for topic in topics for partition in topic["partitions"])
