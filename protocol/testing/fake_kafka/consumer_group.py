"""One group of the consumer protocol (KIP-848): members, epochs, and partitions that move one by one.

The rules are those of Kafka's `ConsumerGroup` and `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.requests import Body, Refused

SESSION_S = 45.0
HEARTBEAT_INTERVAL_MS = 5_000

Partition = tuple[bytes, int]
"""Topic id and partition number."""

# Kafka's LEAVE_GROUP_STATIC_MEMBER_EPOCH: a static member leaves, and will rejoin.
_LEFT_FOR_A_WHILE = -2


@dataclass
class ConsumerMember:
    """A member, the `joined_as`-th of its group.

    It must revoke the partitions `revoking` and owns `assigned`; no other member has either.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    joined_as: int = 0
    epoch: int = 0
    previous_epoch: int = 0
    rebalance_timeout_ms: int = -1
    names: tuple[str, ...] = ()
    regex: str | None = None
    assigned: set[Partition] = field(default_factory=set)
    revoking: set[Partition] = field(default_factory=set)
    expires_s: float = float("inf")
    revoked_by_s: float = float("inf")

    def wants(self, topic: str) -> bool:
        """Return True if the member subscribes to a topic."""
        return topic in self.names or bool(self.regex and re.fullmatch(self.regex, topic))


@dataclass
class ConsumerGroup:
    """A group. `epoch` changes with members and their subscriptions; `target` is that epoch's target assignment.

    None for the interval or the session timeout means Kafka's default.
    """

    group_id: str
    heartbeat_interval_ms: int | None = None
    session_s: float | None = None
    epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, set[Partition]] = field(default_factory=dict)
    _seen: Any = None
    _joined: int = 0

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        if not self.members:
            return "Empty"
        settled = all(member.epoch == self.epoch and not member.revoking for member in self.members.values())
        return "Stable" if settled else "Reconciling"

    # -- requests -----------------------------------------------------------------------------

    def heartbeat(self, body: Body, client_id: str, topics: Mapping[str, TopicImage], now_s: float) -> Body:
        """Handle ConsumerGroupHeartbeat: join, leave, or report and receive an assignment. Raises `Refused`."""
        if body["member_epoch"] < 0:
            return self._leave(body)
        joins = body["member_epoch"] == 0
        if joins and (body["rebalance_timeout_ms"] < 0 or body["topic_partitions"] != []):
            raise Refused(ErrorCode.INVALID_REQUEST)
        _check_regex(body["subscribed_topic_regex"])
        member = self._joining(body, client_id) if joins else self._known(body)
        owned = (
            None
            if body["topic_partitions"] is None
            else {(bytes(row["topic_id"]), number) for row in body["topic_partitions"] for number in row["partitions"]}
        )
        if not joins:
            _check_epoch(member, body["member_epoch"], owned)
        self._update(member, body)
        self.retarget(topics)
        before = set(member.assigned)
        self._reconcile(member, owned, now_s)
        member.expires_s = now_s + (self.session_s or SESSION_S)
        full = body["rebalance_timeout_ms"] >= 0 and owned is not None
        return {
            "member_id": member.member_id,
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": self.heartbeat_interval_ms or HEARTBEAT_INTERVAL_MS,
            "assignment": _rows(member.assigned) if joins or full or member.assigned != before else None,
        }

    def check_commit(self, member_id: str, epoch: int) -> None:
        """Raise `Refused` if the member may not commit."""
        if epoch < 0 and not self.members:
            return
        if member_id not in self.members:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != self.members[member_id].epoch:
            raise Refused(ErrorCode.STALE_MEMBER_EPOCH)

    # -- members ------------------------------------------------------------------------------

    def _static(self, instance_id: str | None) -> ConsumerMember | None:
        return next(
            (member for member in self.members.values() if instance_id and member.instance_id == instance_id), None
        )

    def _joining(self, body: Body, client_id: str) -> ConsumerMember:
        member_id, instance_id = body["member_id"], body["instance_id"]
        before = self._static(instance_id)
        if before is not None and before.member_id != member_id:
            if before.epoch != _LEFT_FOR_A_WHILE:
                raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID)
            # A static member that left temporarily rejoins with its assignment.
            self.target[member_id] = self.target.pop(before.member_id, set())
            del self.members[before.member_id]
            before.member_id, before.epoch, before.previous_epoch = member_id, 0, 0
            return self.members.setdefault(member_id, before)
        if member_id not in self.members:
            self._joined += 1
            self.members[member_id] = ConsumerMember(member_id, instance_id, client_id, joined_as=self._joined)
        return self.members[member_id]

    def _known(self, body: Body) -> ConsumerMember:
        static = self._static(body["instance_id"])
        if static is not None and static.member_id != body["member_id"]:
            raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        if body["member_id"] not in self.members:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[body["member_id"]]

    def _leave(self, body: Body) -> Body:
        member = self._known(body)
        if body["member_epoch"] == _LEFT_FOR_A_WHILE:
            member.epoch = _LEFT_FOR_A_WHILE
        else:
            self.remove(member.member_id)
        return {"member_id": body["member_id"], "member_epoch": body["member_epoch"]}

    def remove(self, member_id: str) -> None:
        """Remove a member; its partitions are free at once."""
        del self.members[member_id]
        self.target.pop(member_id, None)
        self._seen = None

    def _update(self, member: ConsumerMember, body: Body) -> None:
        member.names = member.names if body["subscribed_topic_names"] is None else tuple(body["subscribed_topic_names"])
        member.regex = member.regex if body["subscribed_topic_regex"] is None else body["subscribed_topic_regex"]
        if body["rebalance_timeout_ms"] >= 0:
            member.rebalance_timeout_ms = body["rebalance_timeout_ms"]

    # -- target and current assignment ----------------------------------------------------------

    def retarget(self, topics: Mapping[str, TopicImage]) -> None:
        """Start a new epoch, with a new target assignment, if members, subscriptions or topics have changed.

        The target of each subscriber of a topic is a range of its partitions.
        """
        # In the order of joining, so that older members keep the first of their partitions. A static member that
        # rejoins keeps its place.
        members = sorted(self.members.values(), key=lambda member: member.joined_as)
        wanting_members = {
            name: [member.member_id for member in members if member.wants(name)] for name in sorted(topics)
        }
        present = (
            [member.member_id for member in members],
            wanting_members,
            {n: (t.topic_id, len(t.partitions)) for n, t in topics.items()},
        )
        if present == self._seen:
            return
        self._seen, self.epoch = present, self.epoch + 1
        self.target = {member_id: set() for member_id in self.members}
        for name, subscribers in wanting_members.items():
            for number in range(len(topics[name].partitions) if subscribers else 0):
                place = number * len(subscribers) // len(topics[name].partitions)
                self.target[subscribers[place]].add((topics[name].topic_id, number))

    def _reconcile(self, member: ConsumerMember, owned: set[Partition] | None, now_s: float) -> None:
        """Take the member's next step to its target: revoke, or receive free partitions and the group's epoch.

        `owned` are the partitions that the member reports; None if it reports none in this heartbeat.
        """
        if member.revoking and (owned is None or owned & member.revoking):
            return
        member.revoking, member.revoked_by_s = set(), float("inf")
        target = self.target[member.member_id]
        retained = member.assigned & target
        revoking = member.assigned - target
        if revoking and (owned is None or owned & revoking):
            member.assigned, member.revoking = retained, revoking
            member.revoked_by_s = now_s + member.rebalance_timeout_ms / 1000
            return
        partitions = {
            partition
            for owner in self.members.values()
            if owner is not member
            for partition in owner.assigned | owner.revoking
        }
        member.assigned = retained | (target - partitions)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Remove members whose session or rebalance timeout has expired."""
        for member in list(self.members.values()):
            if now_s >= min(member.expires_s, member.revoked_by_s):
                self.remove(member.member_id)


def _check_epoch(member: ConsumerMember, epoch: int, owned: set[Partition] | None) -> None:
    """Raise `Refused` for another epoch, unless the reply with the newest one may have been lost."""
    lost_reply = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    if epoch != member.epoch and not lost_reply:
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH)


def _check_regex(pattern: str | None) -> None:
    """Raise `Refused` for an invalid pattern, or one with look-around, which RE2 does not support."""
    try:
        re.compile(pattern or "")
        valid = not re.search(r"\(\?(?:[=!]|<[=!])", pattern or "")
    except re.error:
        valid = False
    if not valid:
        message = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression of RE2"
        raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, error_message=message)


def _rows(partitions: set[Partition]) -> Body:
    by_id: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_id.setdefault(topic_id, []).append(number)
    return {"topic_partitions": [{"topic_id": key, "partitions": numbers} for key, numbers in by_id.items()]}
