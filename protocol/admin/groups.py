"""Consumer groups from outside: their state and live members.

Runs wherever its caller does. Asks the group's coordinator, in the one retry loop.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.errors import UnsupportedVersion
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE

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
    for api, groups in ((DESCRIBE_GROUPS, "groups"), (CONSUMER_GROUP_DESCRIBE, "group_ids")):
        with suppress(UnsupportedVersion):
            (row,) = call(client, api, {groups: [group]}, deadline, accept=_NOT_SUCH_A_GROUP)["groups"]
            # Before version 6 DescribeGroups knows no code for a group that is not there.
            is_none = row["group_state"] == "Dead" and row.get("protocol_type") == ""
            if row["error_code"] == ErrorCode.NONE and not is_none:
                members = tuple(Member(each["client_id"], each["client_host"]) for each in row["members"])
                return GroupDescription(group, row["group_state"], members)
    return GroupDescription(group, "Dead", ())
