"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and DescribeGroups of classic groups, and ConsumerGroupHeartbeat.

The rules are those of Kafka's `GroupMetadataManager`. `cluster` chooses the coordinator of a group.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.consumer_group import ConsumerGroup
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.group import Group, Member, State, Waiting
from protocol.testing.fake_kafka.requests import Body, Pending, Refused, Request
from protocol.wire.consumer_metadata import LAST_VERSION, SUBSCRIPTION, decode_versioned

_FIRST_WITH_MEMBER_ID_REQUIRED = 4  # of JoinGroup
_FIRST_WITH_PROTOCOL_NAME = 5  # of SyncGroup


class Groups:
    """All groups: `groups` of the classic protocol, and `consumer_groups` of the consumer protocol."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.groups: dict[str, Group] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self._settings = settings

    def tick(self, now_s: float) -> None:
        """Apply timeouts of all groups."""
        for classic in self.groups.values():
            classic.tick(now_s)
        for group in self.consumer_groups.values():
            group.tick(now_s)

    def get(self, group_id: str) -> Group:
        """Return a group; raise `Refused` if it is unknown."""
        if group_id not in self.groups:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.groups[group_id]

    def create(self, group_id: str) -> Group:
        """Return a group, created if necessary."""
        delay_s = int(self._settings["group.initial.rebalance.delay.ms"]) / 1000
        return self.groups.setdefault(group_id, Group(group_id, delay_s))

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, in_transaction: bool
    ) -> None:
        """Raise `Refused` if the sender may not commit offsets."""
        if group_id in self.consumer_groups:
            self.consumer_groups[group_id].check_commit(member_id, generation)
        elif group_id in self.groups:
            self.groups[group_id].check_commit(member_id, instance_id, generation, in_transaction=in_transaction)
        elif generation >= 0:
            raise Refused(ErrorCode.ILLEGAL_GENERATION if in_transaction else ErrorCode.GROUP_ID_NOT_FOUND)

    def subscribed_topics(self, group_id: str, topics: Iterable[str]) -> set[str]:
        """Return the topics that members of a group subscribe to. Raises `Refused` for an unknown group."""
        if group_id in self.consumer_groups:
            members = self.consumer_groups[group_id].members.values()
            return {topic for topic in topics if any(member.wants(topic) for member in members)}
        if group_id not in self.groups:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        group, subscribed = self.groups[group_id], set()
        for member in group.members.values() if group.protocol_type == "consumer" else ():
            _, subscription = decode_versioned(SUBSCRIPTION, LAST_VERSION, member.metadata(group.protocol))
            subscribed.update(subscription["topics"])
        return subscribed

    # -- ConsumerGroupHeartbeat ---------------------------------------------------------------

    def consumer_heartbeat(self, request: Request, now_s: float, topics: Mapping[str, TopicImage]) -> Body:
        """Handle ConsumerGroupHeartbeat."""
        body = request.body
        if (body["server_assignor"] or "range") not in ("range", "uniform"):
            raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR)
        if body["member_epoch"] and body["group_id"] not in self.consumer_groups:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        group = self.consumer_groups.setdefault(body["group_id"], self._new_consumer_group(body["group_id"]))
        return group.heartbeat(body, request.client_id, topics, now_s)

    def _new_consumer_group(self, group_id: str) -> ConsumerGroup:
        interval_ms = self._settings.get("group.consumer.heartbeat.interval.ms")
        session_ms = self._settings.get("group.consumer.session.timeout.ms")
        return ConsumerGroup(
            group_id,
            None if interval_ms is None else int(interval_ms),
            None if session_ms is None else int(session_ms) / 1000,
        )

    # -- JoinGroup ----------------------------------------------------------------------------

    def join(self, request: Request, now_s: float) -> Body | Pending:
        """Handle JoinGroup."""
        body = request.body
        shortest, longest = (int(self._settings[f"group.{edge}.session.timeout.ms"]) for edge in ("min", "max"))
        if not body["group_id"]:
            raise Refused(ErrorCode.INVALID_GROUP_ID, member_id=body["member_id"])
        if not shortest <= body["session_timeout_ms"] <= longest:
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT, member_id=body["member_id"])
        if body["member_id"] and body["group_id"] not in self.groups:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, member_id=body["member_id"])
        group = self.create(body["group_id"])
        protocols = {row["name"]: bytes(row["metadata"]) for row in body["protocols"]}
        others_fit = group.supports(body["protocol_type"], protocols)
        if not others_fit and not self._alone(group, body):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=body["member_id"])
        if not body["member_id"]:
            return self._join_new(group, request, now_s)
        if body["member_id"] in group.pending:
            del group.pending[body["member_id"]]
            return self._add(group, request, body["member_id"], now_s)
        try:
            member = group.member(body["member_id"], body["group_instance_id"])
        except Refused as refusal:
            raise Refused(refusal.code, member_id=body["member_id"]) from None
        return self._join_again(group, member, body, now_s)

    @staticmethod
    def _alone(group: Group, body: Body) -> bool:
        """Return True if the only member of a group joins again with changed assignors."""
        return bool(body["protocols"]) and group.members.keys() == {body["member_id"]}

    def _join_new(self, group: Group, request: Request, now_s: float) -> Body | Pending:
        body, instance_id = request.body, request.body["group_instance_id"]
        member_id = f"{instance_id or request.client_id}-{uuid.uuid4()}"
        if instance_id is None and request.version >= _FIRST_WITH_MEMBER_ID_REQUIRED:
            # KIP-394: assign an id first, so that a lost reply leaves no unknown member behind.
            group.pending[member_id] = now_s + body["session_timeout_ms"] / 1000
            raise Refused(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        before = group.static_member(instance_id) if instance_id is not None else None
        return (
            self._add(group, request, member_id, now_s)
            if before is None
            else self._replace(group, before, member_id, body, now_s)
        )

    def _add(self, group: Group, request: Request, member_id: str, now_s: float) -> Pending:
        body = request.body
        member = Member(
            member_id,
            body["group_instance_id"],
            request.client_id,
            body["session_timeout_ms"],
            _rebalance_timeout_ms(body),
            [(row["name"], bytes(row["metadata"])) for row in body["protocols"]],
            now_s + body["session_timeout_ms"] / 1000,
        )
        group.members[member_id] = member
        group.protocol_type = body["protocol_type"]
        return self._wait_for_round(group, member, now_s)

    def _replace(self, group: Group, before: Member, member_id: str, body: Body, now_s: float) -> Body | Pending:
        """Replace a restarted static member under a new member id (KIP-345)."""
        before.answer_join({"error_code": ErrorCode.FENCED_INSTANCE_ID, "member_id": before.member_id})
        before.answer_sync({"error_code": ErrorCode.FENCED_INSTANCE_ID}, now_s)
        del group.members[before.member_id]
        led = group.leader == before.member_id
        before.member_id, before.expires_s = member_id, now_s + body["session_timeout_ms"] / 1000
        group.members[member_id] = before
        group.leader = member_id if led else group.leader
        self._update(before, body)
        if group.state is State.STABLE and group.choose_protocol() == group.protocol:
            group.store()
            return group.joined(before, skip_assignment=led)
        return self._wait_for_round(group, before, now_s)

    def _join_again(self, group: Group, member: Member, body: Body, now_s: float) -> Body | Pending:
        unchanged = [(row["name"], bytes(row["metadata"])) for row in body["protocols"]] == member.protocols
        completing, stable = group.state is State.COMPLETING_REBALANCE, group.state is State.STABLE
        if unchanged and (completing or (stable and member.member_id != group.leader)):
            return group.joined(member)
        self._update(member, body)
        group.protocol_type = body["protocol_type"]
        return self._wait_for_round(group, member, now_s)

    @staticmethod
    def _update(member: Member, body: Body) -> None:
        member.protocols = [(row["name"], bytes(row["metadata"])) for row in body["protocols"]]
        member.session_timeout_ms = body["session_timeout_ms"]
        member.rebalance_timeout_ms = _rebalance_timeout_ms(body)

    @staticmethod
    def _wait_for_round(group: Group, member: Member, now_s: float) -> Pending:
        waiting = member.joining = Waiting()
        group.rebalance(now_s)
        return waiting

    # -- SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------------

    def sync(self, request: Request, now_s: float) -> Body | Pending:
        """Handle SyncGroup."""
        body = request.body
        protocol, named = (body["protocol_type"], body["protocol_name"]), request.version >= _FIRST_WITH_PROTOCOL_NAME
        if named and None in protocol:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self.get(body["group_id"])
        member = group.member(body["member_id"], body["group_instance_id"])
        if body["generation_id"] != group.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        if named and protocol != (group.protocol_type, group.protocol):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is State.PREPARING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        group.unsynced.discard(member.member_id)
        if group.state is State.STABLE:
            return group.synced(member)
        waiting = member.syncing = Waiting()
        if member.member_id == group.leader:
            group.assign({row["member_id"]: bytes(row["assignment"]) for row in body["assignments"]}, now_s)
        return waiting

    def heartbeat(self, request: Request, now_s: float) -> Body:
        """Handle Heartbeat."""
        body = request.body
        group = self.get(body["group_id"])
        member = group.member(body["member_id"], body["group_instance_id"])
        if body["generation_id"] != group.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        member.expires_s = now_s + member.session_timeout_ms / 1000
        if group.state is State.PREPARING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        return {}

    def leave(self, request: Request, now_s: float) -> Body:
        """Handle LeaveGroup."""
        group = self.get(request.body["group_id"])
        return {"members": [self._left(group, row, now_s) for row in request.body["members"]]}

    @staticmethod
    def _left(group: Group, row: Body, now_s: float) -> Body:
        identity = {"member_id": row["member_id"], "group_instance_id": row["group_instance_id"]}
        if group.pending.pop(row["member_id"], None) is not None:
            return {**identity, "error_code": ErrorCode.NONE}
        try:
            by_instance = group.static_member(row["group_instance_id"] or "") if not row["member_id"] else None
            member = by_instance or group.member(row["member_id"], row["group_instance_id"])
        except Refused as refusal:
            return {**identity, "error_code": refusal.code}
        group.remove(member, now_s)
        return {**identity, "error_code": ErrorCode.NONE}

    def describe(self, group_id: str) -> Body:
        """Return a classic group's row of DescribeGroups; raise `Refused` if it is unknown."""
        group = self.groups.get(group_id)
        if group is None:
            raise Refused(
                ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} not found.", group_state="Dead"
            )
        stable = group.state is State.STABLE
        members = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": "/127.0.0.1",
                "member_metadata": member.metadata(group.protocol) if stable else b"",
                "member_assignment": member.assignment if stable else b"",
            }
            for member in group.members.values()
        ]
        return {
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": (group.protocol or "") if stable else "",
            "members": members,
        }


def _rebalance_timeout_ms(body: Body) -> int:
    """Return the rebalance timeout; version 0 of JoinGroup has none but the session timeout."""
    timeout_ms: int = body["rebalance_timeout_ms"]
    return timeout_ms if timeout_ms >= 0 else int(body["session_timeout_ms"])
