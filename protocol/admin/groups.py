"""List, describe and delete consumer groups.

Runs in the caller's thread. Sends requests to a group's coordinator, or to every broker, in the shared retry loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from protocol.admin.resources import Operations, ask_each, by_topic, results_of_each, rows_of_partitions
from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.errors import ProtocolError, UnsupportedVersion
from protocol.group.assignors.subscription_codec import decode_assignment
from protocol.group.commits.committed_offsets import (
    CallerOffsets,
    CommittedOffset,
    as_committed_offsets,
    commit_offsets,
    fetch_offsets,
)
from protocol.kafka_terms import TopicPartition
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m16_list_groups import LIST_GROUPS
from protocol.wire.messages.m42_delete_groups import DELETE_GROUPS
from protocol.wire.messages.m47_offset_delete import OFFSET_DELETE
from protocol.wire.messages.m69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from protocol.wire.schema import Body

CLASSIC, CONSUMER = "classic", "consumer"
"""Kafka's names of group types: the classic protocol (JoinGroup) and the consumer protocol (KIP-848)."""

_UNKNOWN_GROUP_CODES = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
# "consumer": members share partitions; "": a group only commits and never joins. Other clients, such as Connect
# ("connect"), have other types.
_PROTOCOL_TYPES_OF_CONSUMERS = ("consumer", "")


@dataclass(frozen=True)
class ListedGroup:
    """A group as its coordinator lists it.

    `type` is Kafka's name in lower case: "classic", "consumer", "share" or "streams". `state` is as in
    `GroupDescription`, "" before Kafka 2.6.
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
    groups = _all_groups(client, deadline or client.deadline(), frozenset(_PROTOCOL_TYPES_OF_CONSUMERS))
    return [group for group in groups if group.type in (CLASSIC, CONSUMER)]


def _all_groups(client: Client, deadline: Deadline, protocol_types: Collection[str]) -> list[ListedGroup]:
    # By id: two brokers may list a group while its coordinator moves.
    rows = {
        row["group_id"]: row
        for broker in client.metadata([], deadline).brokers.values()
        for row in call(client, LIST_GROUPS, {}, deadline, to=broker)["groups"]
        if row["protocol_type"] in protocol_types
    }
    # A broker that returns no types has classic groups only.
    return [
        ListedGroup(group, row["group_type"].lower() or CLASSIC, row["group_state"])
        for group, row in sorted(rows.items())
    ]


def describe_group(client: Client, group: str, deadline: Deadline | None = None) -> GroupDescription:
    """Return state and members of a group; "Dead" without members if the group is unknown.

    Groups of the consumer protocol (KIP-848) are described by ConsumerGroupDescribe only, all others by DescribeGroups.
    Raises `DeadlineExceeded` if no broker answered in time, `BrokerError` if the coordinator refused.
    """
    deadline = deadline or client.deadline()
    for api, groups in ((DESCRIBE_GROUPS, "groups"), (CONSUMER_GROUP_DESCRIBE, "group_ids")):
        with suppress(UnsupportedVersion):
            (row,) = call(client, api, {groups: [group]}, deadline, accept=_UNKNOWN_GROUP_CODES)["groups"]
            # Before version 6, DescribeGroups has no error code for a group that does not exist.
            is_unknown = row["group_state"] == "Dead" and row.get("protocol_type") == ""
            if row["error_code"] == ErrorCode.NONE and not is_unknown:
                return _classic(row) if api is DESCRIBE_GROUPS else _consumer(row)
    return GroupDescription(group, CLASSIC, "Dead", "", ())


def delete_group(client: Client, group: str, deadline: Deadline | None = None) -> None:
    """Delete a group and its offsets; raise `BrokerError` (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …)."""
    call(client, DELETE_GROUPS, {"groups_names": [group]}, deadline or client.deadline())


def _classic(row: Mapping[str, Any]) -> GroupDescription:
    members = []
    for member in row["members"]:
        assignment = _embedded(row, member)
        members.append(_member(member, member["group_instance_id"], assignment, assignment))
    return GroupDescription(row["group_id"], CLASSIC, row["group_state"], row["protocol_data"], tuple(members))


def _consumer(row: Mapping[str, Any]) -> GroupDescription:
    members = (
        _member(
            member, member["instance_id"], _partitions(member["assignment"]), _partitions(member["target_assignment"])
        )
        for member in row["members"]
    )
    return GroupDescription(row["group_id"], CONSUMER, row["group_state"], row["assignor_name"], tuple(members))


def _member(row: Mapping[str, Any], group_instance_id: str | None, *partitions: frozenset[TopicPartition]) -> Member:
    return Member(row["member_id"], group_instance_id, row["client_id"], row["client_host"], *partitions)


def _embedded(group: Mapping[str, Any], member: Mapping[str, Any]) -> frozenset[TopicPartition]:
    """Return the assignment that the group's leader encoded for a member.

    Empty if invalid: brokers do not check these bytes, and the rest of the description is still useful.
    """
    with suppress(ProtocolError):
        if group["protocol_type"] == "consumer":
            return decode_assignment(member["member_assignment"])
    return frozenset()


def _partitions(assignment: Mapping[str, Any]) -> frozenset[TopicPartition]:
    topics = assignment["topic_partitions"]
    return frozenset((topic["topic_name"], partition) for topic in topics for partition in topic["partitions"])


class GroupOperations(Operations):
    """Consumer groups of a cluster.

    `timeout_ms` limits the time of a method; by default `default.api.timeout.ms`.
    """

    def list_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        protocol_types: Iterable[str] | None = None,
        timeout_ms: float | None = None,
    ) -> list[ListedGroup]:
        """Return the groups of all brokers that match all three filters, sorted by name.

        Parameters
        ----------
        states
            States to include, by Kafka's names in any case; empty for all.
        types
            Types to include: "classic", "consumer", "share", "streams"; empty for classic and consumer.
        protocol_types
            Protocol types to include: "consumer", "connect", "share", …; "" is a group that only commits. None: groups
            of consumers ("consumer" and ""), and the protocol types of the same names as `types`.

        Raises
        ------
        DeadlineExceeded
            A broker did not answer in time.
        """
        wanted_states = {state.lower() for state in states}
        wanted_types = {name.lower() for name in types} or {CLASSIC, CONSUMER}
        wanted_protocols = {*_PROTOCOL_TYPES_OF_CONSUMERS, *wanted_types} if protocol_types is None else protocol_types
        groups = _all_groups(self._client, self._deadline(timeout_ms), frozenset(wanted_protocols))
        return [
            group
            for group in groups
            if group.type in wanted_types and (not wanted_states or group.state.lower() in wanted_states)
        ]

    def describe_groups(self, groups: Iterable[str], *, timeout_ms: float | None = None) -> dict[str, GroupDescription]:
        """Return state, members and assignments of groups of both protocols; unknown groups are "Dead".

        Raises
        ------
        AdminFailed
            Some groups could not be described (GROUP_AUTHORIZATION_FAILED, …).
        """
        deadline = self._deadline(timeout_ms)
        return results_of_each("DescribeGroups", groups, deadline, partial(describe_group, self._client))

    def delete_groups(self, groups: Iterable[str], *, timeout_ms: float | None = None) -> None:
        """Delete groups and their committed offsets.

        Raises
        ------
        AdminFailed
            Some groups were not deleted (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …).
        """
        deadline = self._deadline(timeout_ms)
        results_of_each("DeleteGroups", groups, deadline, partial(delete_group, self._client))

    def list_consumer_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; partitions without one are left out.

        Parameters
        ----------
        partitions
            `(topic, partition)` pairs; None for all partitions with a committed offset.
        require_stable
            Wait for open transactions that commit offsets of the group (KIP-447).

        Raises
        ------
        DeadlineExceeded
            The coordinator did not respond in time, or transactions are still open.
        BrokerError
            The coordinator refused.
        """
        deadline = self._deadline(timeout_ms)
        return fetch_offsets(self._client, group, partitions, deadline, require_stable=require_stable)

    def alter_consumer_group_offsets(
        self, group: str, offsets: CallerOffsets, *, timeout_ms: float | None = None
    ) -> None:
        """Commit offsets for a group without members.

        Raises
        ------
        UsageError
            An offset is negative, or Kafka cannot store it.
        BrokerError
            The group has live members (UNKNOWN_MEMBER_ID), or a partition is unknown.
        """
        commit_offsets(self._client, group, as_committed_offsets(offsets), self._deadline(timeout_ms))

    def delete_consumer_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
    ) -> None:
        """Delete the committed offsets of a group for some partitions (KIP-496).

        Raises
        ------
        AdminFailed
            Some offsets were not deleted (GROUP_SUBSCRIBED_TO_TOPIC, …).
        BrokerError
            The group does not exist (GROUP_ID_NOT_FOUND).
        """

        def body(pending: list[TopicPartition]) -> Body:
            topics = by_topic(pending)
            rows = [
                {"name": name, "partitions": [{"partition_index": number} for number in numbers]}
                for name, numbers in topics.items()
            ]
            return {"group_id": group, "topics": rows}

        batch = ask_each(
            self._client,
            OFFSET_DELETE,
            partitions,
            body,
            lambda reply, _: rows_of_partitions(reply["topics"], "name"),
            self._deadline(timeout_ms),
            to=group_coordinator(group),
            error_context=lambda key: {"group": group, "topic": key[0], "partition": key[1]},
        )
        batch.results("OffsetDelete", lambda key, row: None)

    def remove_members(
        self,
        group: str,
        group_instance_ids: Iterable[str] | None = None,
        *,
        reason: str = "removed by an administrator",
        timeout_ms: float | None = None,
    ) -> None:
        """Remove members of a classic group (KIP-345).

        Parameters
        ----------
        group_instance_ids
            Static members to remove by `group.instance.id`; None for all members, dynamic ones included.
        reason
            Text for the coordinator's log.

        Raises
        ------
        AdminFailed
            Some members were not removed (UNKNOWN_MEMBER_ID, …).
        """
        deadline = self._deadline(timeout_ms)
        if group_instance_ids is None:
            members_now = describe_group(self._client, group, deadline).members
            members = {member.member_id: {"member_id": member.member_id} for member in members_now}
        else:
            members = {
                instance_id: {"member_id": "", "group_instance_id": instance_id} for instance_id in group_instance_ids
            }
        batch = ask_each(
            self._client,
            LEAVE_GROUP,
            members,
            lambda pending: (
                lambda version: {
                    "group_id": group,
                    "members": [{**members[key], **({"reason": reason} if version >= 5 else {})} for key in pending],
                }
            ),
            lambda reply, keys: (
                (row["member_id"] if row["member_id"] in members else row["group_instance_id"] or "", row)
                for row in reply["members"]
            ),
            deadline,
            to=group_coordinator(group),
            error_context=lambda key: {"group": group, "member": key},
            at_least=3,
        )
        batch.results("LeaveGroup", lambda key, row: None)
