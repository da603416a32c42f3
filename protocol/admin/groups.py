"""Consumer groups from outside: their state and live members.

Runs wherever its caller does. Asks the group's coordinator, in the one retry loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.errors import UnsupportedVersion
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from protocol.wire.schema import Api

_NOT_SUCH_A_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


@dataclass(frozen=True)
class Member:
    """One live member, as the coordinator knows it."""

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

    classic = _describe(client, DESCRIBE_GROUPS, {"groups": [group]}, deadline)
    if classic is not None and (classic["group_state"] != "Dead" or classic.get("protocol_type") != ""):
        return _description(group, classic)
    try:
        modern = _describe(client, CONSUMER_GROUP_DESCRIBE, {"group_ids": [group]}, deadline)
    except UnsupportedVersion:
        modern = None
    return _description(group, modern) if modern is not None else GroupDescription(group, "Dead", ())


def _describe(client: Client, api: Api, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any] | None:
    row: Mapping[str, Any] = call(client, api, body, deadline, accept=_NOT_SUCH_A_GROUP)["groups"][0]
    return None if row["error_code"] in _NOT_SUCH_A_GROUP else row


def _description(group: str, row: Mapping[str, Any]) -> GroupDescription:
    members = tuple(Member(each["client_id"], each["client_host"]) for each in row["members"])
    return GroupDescription(group, row["group_state"], members)
