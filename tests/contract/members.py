"""A member of a classic group that sends raw requests. Each has its own connection: a delayed reply delays no other."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.net.connection import Reply
from protocol.wire.consumer_metadata import SUBSCRIPTION, encode_versioned
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m14_sync_group import SYNC_GROUP
from protocol.wire.schema import Api
from tests.contract.raw_requests import Row
from tests.support.wait_until import wait_until

_numbers = itertools.count()


def subscription(*topics: str) -> bytes:
    """Return a consumer's protocol metadata, which the coordinator reads, too."""
    return encode_versioned(SUBSCRIPTION, 1, {"topics": topics})


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


def ask_coordinator(client: Client, group: str, api: Api, body: Row, version: int | None = None) -> Row:
    return send_to_coordinator(client, group, api, body, version=version).result(client.deadline())


def send_to_coordinator(
    client: Client, group: str, api: Api, body: Row, *, purpose: str = "group", version: int | None = None
) -> Reply:
    deadline = client.deadline()
    broker = client.retrying("coordinator", lambda: client.coordinator(group_coordinator(group), deadline), deadline)
    options: dict[str, Any] = {} if version is None else {"at_least": version, "at_most": version}
    return client.send(broker, api, body, deadline, purpose=purpose, **options)


@dataclass
class GroupMember:
    """A member; `joined` is the successful JoinGroup reply."""

    client: Client
    group: str
    instance_id: str | None = None
    protocols: Mapping[str, bytes] = field(default_factory=lambda: {"range": subscription("orders")})
    session_timeout_ms: int = 60_000
    rebalance_timeout_ms: int = 60_000
    member_id: str = ""
    joined: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._purpose = f"member {next(_numbers)}"

    @property
    def generation(self) -> int:
        return int(self.joined["generation_id"])

    @property
    def leads(self) -> bool:
        return bool(self.joined["leader"] == self.member_id)

    def send(self, api: Api, **fields: Any) -> Reply:
        identity = {"group_id": self.group, "member_id": self.member_id, "group_instance_id": self.instance_id}
        body = {**identity, **fields}
        if api in (HEARTBEAT, SYNC_GROUP):
            body = {"generation_id": self.generation, **body}
        return send_to_coordinator(self.client, self.group, api, body, purpose=self._purpose)

    def ask(self, api: Api, **fields: Any) -> Row:
        return self.send(api, **fields).result(self.client.deadline())

    # -- joining and syncing ---------------------------------------------------------------------

    def send_join(self, **fields: Any) -> Reply:
        rows = [{"name": name, "metadata": metadata} for name, metadata in self.protocols.items()]
        timeouts = {"session_timeout_ms": self.session_timeout_ms, "rebalance_timeout_ms": self.rebalance_timeout_ms}
        return self.send(JOIN_GROUP, **{**timeouts, "protocol_type": "consumer", "protocols": rows, **fields})

    def begin(self) -> Reply:
        """Send the first JoinGroup; a dynamic member obtains its member id before."""
        if self.instance_id is None and not self.member_id:
            row = self.send_join().result(self.client.deadline())
            assert row["error_code"] == ErrorCode.MEMBER_ID_REQUIRED, row
            self.member_id = row["member_id"]
        return self.send_join()

    def end(self, reply: Reply) -> GroupMember:
        """Await the JoinGroup reply, which must succeed."""
        self.joined = reply.result(self.client.deadline())
        assert self.joined["error_code"] == 0, self.joined
        self.member_id = self.joined["member_id"]
        return self

    def sync(self, assignments: Mapping[str, bytes] | None = None, **fields: Any) -> Reply:
        rows = [
            {"member_id": member_id, "assignment": assignment} for member_id, assignment in (assignments or {}).items()
        ]
        protocol = {"protocol_type": "consumer", "protocol_name": self.joined.get("protocol_name", "range")}
        return self.send(SYNC_GROUP, **{**protocol, "assignments": rows, **fields})

    def join_code(self, **fields: Any) -> int:
        """Return the error code of a JoinGroup."""
        return int(self.send_join(**fields).result(self.client.deadline())["error_code"])

    def sync_code(self, **fields: Any) -> int:
        return int(self.sync(**fields).result(self.client.deadline())["error_code"])

    def heartbeat(self, **fields: Any) -> int:
        return int(self.ask(HEARTBEAT, **fields)["error_code"])

    def await_rebalance(self) -> None:
        """Wait until the coordinator has received JoinGroup from another member, on another connection."""

        def rebalances() -> bool:
            code = self.heartbeat()
            assert code in (0, ErrorCode.REBALANCE_IN_PROGRESS)
            return code != 0

        wait_until(rebalances, every_s=0.01)

    def leave(self) -> int:
        body = {"group_id": self.group, "members": [{"member_id": self.member_id, "group_instance_id": None}]}
        row = ask_coordinator(self.client, self.group, LEAVE_GROUP, body)
        assert row["error_code"] == 0
        return int(row["members"][0]["error_code"])


def stable(client: Client, group: str, count: int = 1, **options: Any) -> list[GroupMember]:
    """Return a stable group of `count` members, each with its member id as its assignment."""
    members = [GroupMember(client, group, **options)]
    members[0].end(members[0].begin())
    while len(members) < count:
        members.append(admit(GroupMember(client, group, **options), *members))
    sync_all(members)
    return members


def admit(joining: GroupMember, *members: GroupMember) -> GroupMember:
    """Let a member join, and all others rejoin; return it."""
    waiting = joining.begin()
    members[0].await_rebalance()
    replies = [member.send_join() for member in members]
    for member, reply in zip((*members, joining), (*replies, waiting), strict=True):
        member.end(reply)
    return joining


def sync_all(members: Iterable[GroupMember]) -> dict[str, bytes]:
    """Sync all members; return the assignment of each."""
    everybody = list(members)
    plan = {member.member_id: member.member_id.encode() for member in everybody}
    replies = {member.member_id: member.sync(plan if member.leads else None) for member in everybody}
    values_by_key = {}
    for member in everybody:
        row = replies[member.member_id].result(member.client.deadline())
        assert row["error_code"] == 0, row
        values_by_key[member.member_id] = bytes(row["assignment"])
    return values_by_key


# -- offsets ------------------------------------------------------------------------------------


def commit_body(group: str, topic_id: bytes, offset: int, partition: int = 0, **fields: Any) -> Row:
    rows = [{"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 0}]
    rows[0]["committed_metadata"] = fields.pop("metadata", "")
    return {"group_id": group, "topics": [{"topic_id": topic_id, "partitions": rows}], **fields}


def commit(client: Client, group: str, topic: str, offset: int, **fields: Any) -> int:
    """Return the error code."""
    body = commit_body(group, client.topic(topic).topic_id, offset, **fields)
    row = ask_coordinator(client, group, OFFSET_COMMIT, body)["topics"][0]["partitions"][0]
    return int(row["error_code"])


def committed(client: Client, group: str, topic: str, partition: int = 0, *, stable: bool = False) -> tuple[int, int]:
    """Return (error code, offset)."""
    topics = [{"topic_id": client.topic(topic).topic_id, "partition_indexes": [partition]}]
    body = {"groups": [{"group_id": group, "topics": topics}], "require_stable": stable}
    (row,) = ask_coordinator(client, group, OFFSET_FETCH, body)["groups"]
    assert row["error_code"] == 0
    part = row["topics"][0]["partitions"][0]
    return part["error_code"], part["committed_offset"]
