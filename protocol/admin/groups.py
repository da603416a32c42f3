"""Consumer groups from outside: their state and live members, and deleting their offsets.

Runs wherever its caller does. Asks the group's coordinator, in the one retry loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import GROUP, Client
from protocol.errors import UnsupportedVersion
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from protocol.wire.schema import Api


@dataclass(frozen=True)
class Member:
    """One live member, as the coordinator knows it."""

    member_id: str
    client_id: str
    client_host: str


@dataclass(frozen=True)
class GroupDescription:
    """`state` is Kafka's word: "Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead", …"""

    group: str
    state: str
    members: tuple[Member, ...]


def describe_group(client: Client, group: str, deadline: Deadline | None = None) -> GroupDescription:
    """State and members; a group nobody has heard of is "Dead" with no members.

    Groups of the consumer protocol (KIP-848) answer to ConsumerGroupDescribe only, all others to DescribeGroups.
    Raises `DeadlineExceeded` or `BrokerError`.
    """
    deadline = deadline or client.deadline()

    def attempt() -> GroupDescription:
        classic = _ask(client, DESCRIBE_GROUPS, {"groups": [group]}, group, deadline)
        if classic is not None and (classic["group_state"] != "Dead" or classic.get("protocol_type") != ""):
            return _description(group, classic["group_state"], classic["members"])
        try:
            modern = _ask(client, CONSUMER_GROUP_DESCRIBE, {"group_ids": [group]}, group, deadline)
        except UnsupportedVersion:
            modern = None
        if modern is not None:
            return _description(group, modern["group_state"], modern["members"])
        return GroupDescription(group, "Dead", ())

    return client.retrying(f"DescribeGroups of {group}", attempt, deadline, coordinator_of=group)


def _ask(client: Client, api: Api, body: dict[str, Any], group: str, deadline: Deadline) -> Mapping[str, Any] | None:
    broker = client.coordinator(group, deadline)
    reply = client.ask(broker, api, body, deadline, purpose=GROUP)
    row: Mapping[str, Any] = reply["groups"][0]
    if row["error_code"] in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    if row["error_code"] != ErrorCode.NONE:
        raise broker_error(row["error_code"], f"{api.name} of {group} at {broker}", group=group)
    return row


def _description(group: str, state: str, rows: list[dict[str, Any]]) -> GroupDescription:
    members = tuple(Member(row["member_id"], row["client_id"], row["client_host"]) for row in rows)
    return GroupDescription(group, state, members)
