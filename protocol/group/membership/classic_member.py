"""A member of the classic protocol as a sans-IO state machine: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A rebalance is a new generation that all members join; its leader assigns the partitions. With an eager assignor a
member revokes all partitions before it joins. With cooperative assignors only (KIP-429) it keeps them, joins at once,
revokes those that were assigned to others, and joins again. Static members: KIP-345, KIP-814.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Metadata
from protocol.config import ClientConfig, ConsumerConfig
from protocol.errors import BrokerError, Corrupt, ProtocolError
from protocol.group.assignors.assignor import Assignor, MemberAssignment, Subscription, Topics
from protocol.group.assignors.strategies import parse_strategy
from protocol.group.assignors.subscription_codec import (
    decode_member_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from protocol.group.member import ConsumerGroupMetadata, GroupMember
from protocol.group.membership.assignment import EndReason, Revocation, TopicSubscription, available_topics
from protocol.group.membership.machine import NO_PARTITIONS, MemberMachine
from protocol.group.membership.member_state import (
    CLASSIC_TRANSITIONS,
    REJOINS_ON_NEW_TOPICS,
    CallAssignor,
    MemberState,
    SendRequest,
    Step,
)
from protocol.kafka_terms import TopicPartition
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m14_sync_group import SYNC_GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.schema import Api

log = logging.getLogger(__name__)

_PROTOCOL_TYPE = "consumer"
_NO_GENERATION = -1
# As in Java: time for the response of a coordinator that has waited for other members until the rebalance timeout.
_HELD_LONGER_MS = 5_000
# First versions with a group instance id.
_FIRST_STATIC = {JOIN_GROUP: 5, SYNC_GROUP: 3, HEARTBEAT: 3, LEAVE_GROUP: 3}
_ACCEPTED_CODES = frozenset({ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS})
_RESUBSCRIBED = EndReason("the assignment is for the former subscription of this static member")
_REMEDIES: dict[int, tuple[str, str]] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "partition.assignment.strategy",
        "use a strategy that all members have, or another group",
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms",
        "brokers allow group.min.session.timeout.ms to group.max.session.timeout.ms",
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: ("group.id", "stop a member, or use another group"),
    ErrorCode.UNSUPPORTED_VERSION: ("group.instance.id", "static members need Kafka 2.3 or later; omit it"),
    ErrorCode.FENCED_INSTANCE_ID: ("group.instance.id", "use a different one for each member"),
}


class ClassicMember(MemberMachine):
    """A member of the classic protocol; the coordinator assigns `member_id` and `generation_id`.

    After `_end_session`, other fields keep values of the last generation: `_joined` replaces `_assignor_name`,
    `_kept_former_assignment` and `_assignments`, `_synced` replaces `_must_rejoin`.
    """

    transitions = CLASSIC_TRANSITIONS
    remedies = _REMEDIES

    def __init__(
        self, client: ClientConfig, config: ConsumerConfig, subscription: TopicSubscription, now_s: float
    ) -> None:
        super().__init__(client, config, subscription, now_s)
        self._assignors = {assignor.name: assignor for assignor in parse_strategy(config.partition_assignment_strategy)}
        self._cooperative = all(assignor.cooperative for assignor in self._assignors.values())
        self._member_id = ""
        self._generation_id = _NO_GENERATION
        self._assigned_since: int | None = None
        self._assignment = NO_PARTITIONS
        # Partitions that the owner is releasing: its commits for them need the present generation, so it must not end
        # yet.
        self._revoked = NO_PARTITIONS
        # Partitions revoked from this member are assigned to others in the next generation (KIP-429).
        self._must_rejoin = False
        # The last assignment and its generation, for sticky leaders.
        self._last_assignment: tuple[frozenset[TopicPartition], int] = NO_PARTITIONS, _NO_GENERATION
        self._joined_topics: frozenset[str] = frozenset()
        # True if the reply to a JoinGroup was lost or is ignored, and no later one has arrived.
        self._join_reply_lost = False
        self._assignor_name = ""
        self._leader: GroupLeader | None = None
        # True until the first assignment of a session.
        self._joined_as_new = False
        # True for a static leader that has kept its assignment (KIP-814), until it has compared all members'
        # assignments with the topics. The Java client does not, and leaves new partitions unread until a rebalance.
        self._kept_former_assignment = False
        # User data by assignor for the next JoinGroup; None until the assignors have returned it.
        self._user_data: dict[str, bytes | None] | None = None
        # The assignments for SyncGroup; None if this member leads and has not assigned yet.
        self._assignments: dict[str, bytes] | None = None
        # The assignment that SyncGroup has returned, until `on_assignment` has run.
        self._received: MemberAssignment | None = None

    @property
    def member(self) -> GroupMember:
        """Return the member; without a generation outside a session."""
        instance_id = self.config.group_instance_id
        return GroupMember(
            self._member_id, self._generation_id, group_instance_id=instance_id, assigned_since=self._assigned_since
        )

    @property
    def is_becoming_known(self) -> bool:
        """Return True while the first JoinGroup is in flight, which assigns the member id.

        From its response on, the coordinator and all members wait for the new member until its session timeout
        (KIP-394).
        """
        in_flight = isinstance(self._awaited, SendRequest)
        return in_flight and not self._member_id and self.config.group_instance_id is None

    def revocation(self, now_s: float) -> Revocation | None:
        """Return the partitions that the owner must release now."""
        revocation = super().revocation(now_s)
        self._revoked = NO_PARTITIONS if revocation is None else revocation.partitions
        return revocation

    # -- requests -----------------------------------------------------------------------------

    def _next_step(self, now_s: float) -> Step:
        if self.state in REJOINS_ON_NEW_TOPICS and self._topics != self._joined_topics:
            self._rebalance(EndReason("the subscribed topics have changed"))
        if self.state is MemberState.JOINING:
            return self._call_user_data() if self._user_data is None else self._join_group(self._user_data)
        if self.state is MemberState.SYNCING:
            if self._received is not None:
                return self._call_on_assignment(self._received)
            return self._call_assign(now_s) if self._assignments is None else self._sync_group(self._assignments)
        if now_s >= self._heartbeat_s:
            return self._heartbeat()
        compares = self._kept_former_assignment and self._leader is not None and self._leader.knows_partitions
        return self._describe_group() if compares else self._watch_topics(now_s)

    def _join_group(self, user_data: Mapping[str, bytes | None]) -> SendRequest:
        self._user_data = None  # another JoinGroup has its own
        config = self.config
        body = {
            "session_timeout_ms": config.session_timeout_ms,
            "rebalance_timeout_ms": config.max_poll_interval_ms,
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [
                {"name": name, "metadata": encode_subscription(self._subscription(data))}
                for name, data in user_data.items()
            ],
            "reason": str(self.reason)[:255],
        }
        timeout_ms = max(self._request_timeout_ms, config.max_poll_interval_ms + _HELD_LONGER_MS)
        return self._request(JOIN_GROUP, body, held=True, timeout_ms=timeout_ms)

    def _subscription(self, user_data: bytes | None) -> Subscription:
        rack = self.config.client_rack or None
        owned = self.owned if self._cooperative else NO_PARTITIONS
        return Subscription(self._joined_topics, owned, self._last_assignment[1], rack, user_data)

    def _sync_group(self, assignments: Mapping[str, bytes]) -> SendRequest:
        body = {
            "generation_id": self._generation_id,
            "protocol_type": _PROTOCOL_TYPE,
            "protocol_name": self._assignor_name,
            "assignments": [{"member_id": name, "assignment": assignment} for name, assignment in assignments.items()],
        }
        # Since Kafka 3.7 a stable group responds without restarting the session timeout. If the leader needs longer,
        # the request is repeated: a reply that will never come must not be awaited for `max.poll.interval.ms`.
        return self._request(SYNC_GROUP, body, held=True, renews=False, timeout_ms=self._request_timeout_ms)

    def _heartbeat(self) -> SendRequest:
        return self._request(HEARTBEAT, {"generation_id": self._generation_id}, timeout_ms=self._heartbeat_timeout_ms)

    def _describe_group(self) -> SendRequest:
        body = {"groups": [self.group], "include_authorized_operations": False}
        accept = frozenset({ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_ID_NOT_FOUND})
        timeout_ms = self._heartbeat_timeout_ms
        return SendRequest(DESCRIBE_GROUPS, body, timeout_ms, renews=False, accept=accept, row_of="groups")

    def _leave_request(self, for_good: bool | None) -> SendRequest | None:
        instance_id = self.config.group_instance_id
        # A static member that must still revoke partitions leaves: the group would wait for its next join, which a
        # restarted static member does not send (KIP-814).
        leaves = instance_id is None or self._must_rejoin if for_good is None else for_good
        if not leaves or not self._member_id:
            return None
        identity = {"member_id": self._member_id, "group_instance_id": instance_id, "reason": "the member was closed"}

        def body(version: int) -> dict[str, Any]:
            several = version >= _FIRST_STATIC[LEAVE_GROUP]
            return {
                "group_id": self.group,
                **({"members": [identity]} if several else {"member_id": identity["member_id"]}),
            }

        at_least = 0 if instance_id is None else _FIRST_STATIC[LEAVE_GROUP]
        return SendRequest(LEAVE_GROUP, body, self._heartbeat_timeout_ms, at_least)

    def _request(self, api: Api, fields: dict[str, Any], **options: Any) -> SendRequest:
        instance_id = self.config.group_instance_id
        identity = {"group_id": self.group, "member_id": self._member_id, "group_instance_id": instance_id}
        at_least = 0 if instance_id is None else _FIRST_STATIC[api]
        return SendRequest(api, {**identity, **fields}, at_least=at_least, accept=_ACCEPTED_CODES, **options)

    # -- calls of the assignor ----------------------------------------------------------------

    def _call_user_data(self) -> CallAssignor:
        assert self._topics is not None
        topics = self._joined_topics = self._topics
        assignors, last = self._assignors, self._last_assignment

        def user_data() -> dict[str, bytes | None]:
            return {name: assignor.join_data(topics, *last) for name, assignor in assignors.items()}

        def process(data: dict[str, bytes | None]) -> None:
            self._user_data = data

        return CallAssignor(user_data, process)

    def _call_assign(self, now_s: float) -> Step:
        def process(assignments: dict[str, bytes]) -> None:
            self._assignments = assignments

        assert self._leader is not None
        knows_partitions = self._leader.knows_partitions
        return CallAssignor(self._leader.assign, process) if knows_partitions else self._refresh_metadata(now_s)

    def _call_on_assignment(self, received: MemberAssignment) -> CallAssignor:
        name, metadata = self._assignor_name, ConsumerGroupMetadata(self.group, self.member)
        assignor = self._assignors[name]

        def on_assignment() -> None:
            try:
                assignor.on_assignment(received, metadata)
            except Exception as error:  # of the user's assignor
                log.error("assignor %s: on_assignment has failed: %r", name, error, exc_info=error)

        return CallAssignor(on_assignment, lambda _: self._synced(frozenset(received.partitions)))

    # -- responses ----------------------------------------------------------------------------

    def on_response(self, request: SendRequest, reply: Mapping[str, Any], since_s: float, now_s: float) -> None:
        """Process a response. A member that was out for too long joins without its former id, as a new one."""
        if request is self._pending_leave and self.state is not MemberState.LEAVING:
            self._member_id = ""
        super().on_response(request, reply, since_s, now_s)

    def _on_response(self, request: SendRequest, reply: Mapping[str, Any], now_s: float) -> None:
        if request.api is DESCRIBE_GROUPS:
            return self._described(reply)
        self._heartbeat_s = now_s + self.config.heartbeat_interval_ms / 1000
        if reply["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS:
            self._rebalance(EndReason("the group rebalances: members join, leave, or change their subscriptions"))
            if request.api is JOIN_GROUP:
                self._retry_s = now_s + self._backoff.next_s()
        elif request.api is JOIN_GROUP and self.state is MemberState.JOINING:
            self._joined(reply)
            if self._join_reply_lost and reply["error_code"] == ErrorCode.NONE:
                # The coordinator repeats the lost reply, and has not restarted the session timeout since.
                self._join_reply_lost = False
                self.suspect_lost(EndReason("an earlier reply to JoinGroup was lost"), now_s)
        elif request.api is SYNC_GROUP and self.state is MemberState.SYNCING:
            self._received = decode_member_assignment(reply["assignment"])

    def _joined(self, reply: Mapping[str, Any]) -> None:
        self._member_id = reply["member_id"]
        if reply["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            return  # KIP-394: it joins again with the assigned id
        if reply["protocol_name"] not in self._assignors:
            raise Corrupt(f"JoinGroup of group {self.group}: {reply['protocol_name']!r} was not offered")
        self._joined_as_new |= self._generation_id == _NO_GENERATION
        self._assignor_name, self._generation_id = reply["protocol_name"], reply["generation_id"]
        if self._assigned_since is None or not self._cooperative:
            self._assigned_since = self._generation_id
        leads = reply["leader"] == self._member_id
        # KIP-814: a returning static leader keeps the former assignment.
        assigns = leads and not reply["skip_assignment"]
        self._leader = GroupLeader(self._assignors[reply["protocol_name"]], reply["members"]) if leads else None
        self._kept_former_assignment = leads and not assigns
        self._assignments = None if assigns else {}
        self._refresh_s = -math.inf if leads else self._refresh_s
        self._lifecycle.transition(MemberState.SYNCING, EndReason(f"generation {self._generation_id} begins"))

    def _on_metadata(self, cluster: Metadata, now_s: float) -> None:
        if self._leader is None:
            return
        if self.state is MemberState.SYNCING:
            self._leader.set_partitions(cluster)
        elif topic := self._leader.changed_topic(cluster):
            self._rebalance(EndReason(f"the number of partitions of topic {topic} has changed"))

    def _described(self, reply: Mapping[str, Any]) -> None:
        """Rebalance if no member has a partition: topics or subscriptions have changed while this leader was away."""
        self._kept_former_assignment = False
        if self._leader is not None and reply["group_state"] == "Stable":
            assigned = [decode_member_assignment(row["member_assignment"]).partitions for row in reply["members"]]
            if unassigned := self._leader.partitions.difference(*assigned):
                topic, partition = min(unassigned)
                self._rebalance(EndReason(f"no member has {topic}-{partition}"))

    def _synced(self, assignment: frozenset[TopicPartition]) -> None:
        self._received = None
        self._must_rejoin = bool(self.owned - assignment)
        joined_as_new, self._joined_as_new = self._joined_as_new, False
        self._assignment, self._last_assignment = assignment, (assignment, self._generation_id)
        if joined_as_new and {topic for topic, _ in assignment} - self._joined_topics:
            # A static member gets the assignment of its former subscription (KIP-345).
            return self._join(_RESUBSCRIBED)
        reason = EndReason(f"generation {self._generation_id} has assigned {len(assignment)} partitions")
        self._lifecycle.transition(MemberState.STABLE if assignment == self.owned else MemberState.RECONCILING, reason)

    # -- rebalances ---------------------------------------------------------------------------

    @property
    def _is_outdated(self) -> bool:
        return self._pattern_pending or self._topics != self._joined_topics

    @property
    def _assigned(self) -> frozenset[TopicPartition]:
        return self._assignment

    def _to_revoke(self) -> frozenset[TopicPartition]:
        if self.state is MemberState.RECONCILING:
            return self.owned - self._assignment
        return self._to_revoke_before_join() if self.state is MemberState.REBALANCING else NO_PARTITIONS

    def _to_revoke_before_join(self) -> frozenset[TopicPartition]:
        if not self._cooperative:
            return self.owned
        dropped = {key for key in self.owned if self._topics is not None and key[0] not in self._topics}
        return frozenset(dropped | (self._revoked & self.owned))

    @property
    def _may_accept(self) -> bool:
        return self._suspicion is None

    def _accepted(self) -> None:
        if self._must_rejoin:
            self._join(EndReason("revoked partitions can be assigned to other members"))
        else:
            self._lifecycle.transition(MemberState.STABLE, self.reason)

    def _rebalance(self, reason: EndReason) -> None:
        if self.state not in (MemberState.JOINING, MemberState.REBALANCING):
            if self._to_revoke_before_join():
                self._lifecycle.transition(MemberState.REBALANCING, reason)
            else:
                self._join(reason)

    @property
    def _watches_topics(self) -> bool:
        """Return True for the leader, which detects changed partitions for all members, and with a pattern."""
        return self._leader is not None or self._matches_in_client

    @property
    def _watched_topics(self) -> frozenset[str] | None:
        return None if self._matches_in_client or self._leader is None else self._leader.topics

    def _on_fenced(self, error: BrokerError) -> None:
        if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""

    def _on_unknown_outcome(self) -> None:
        self._join_reply_lost |= self.state is MemberState.JOINING

    def _forget_session(self) -> None:
        self._join_reply_lost |= isinstance(self._awaited, SendRequest) and self._awaited.api is JOIN_GROUP
        super()._forget_session()

    def _end_session(self) -> None:
        self._generation_id, self._assigned_since, self._assignment = _NO_GENERATION, None, NO_PARTITIONS
        self._leader = self._user_data = self._received = None


class GroupLeader:
    """The leader of a classic group: assigns partitions, and detects changed topics.

    Exists from the JoinGroup response that elects the member until it joins again. `assignor` is the one that the
    coordinator has selected, `members` the rows of that response; raises `Corrupt` or `Truncated` if the metadata of a
    member are invalid.
    """

    def __init__(self, assignor: Assignor, members: list[dict[str, Any]]) -> None:
        self._assignor = assignor
        self._members = {row["member_id"]: _decode_member(row) for row in members}
        self._partitions: Topics | None = None

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics of all members."""
        return frozenset[str]().union(*(member.topics for member in self._members.values()))

    @property
    def knows_partitions(self) -> bool:
        """Return True after `set_partitions`, or the first `changed_topic`."""
        return self._partitions is not None

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions that `changed_topic` compares."""
        return frozenset(
            (name, number) for name, racks in (self._partitions or {}).items() for number in range(len(racks))
        )

    def set_partitions(self, cluster: Metadata) -> None:
        """Store the partitions to assign."""
        self._partitions = self._partitions_in(cluster)

    def assign(self) -> dict[str, bytes]:
        """Return the encoded assignment of each member, for SyncGroup. Called without a lock."""
        assigned = self._assignor.assign_with_data(self._members, self._partitions or {})
        return {
            name: encode_assignment(assignment.partitions, user_data=assignment.user_data)
            for name, assignment in assigned.items()
        }

    def changed_topic(self, cluster: Metadata) -> str | None:
        """Return a topic whose partition count differs from that at the assignment; None if there is none.

        For a leader that has not assigned (KIP-814), the first call stores the counts to compare with.
        """
        before, now = self._partitions, self._partitions_in(cluster)
        if before is None:
            self._partitions = before = now
        return next((name for name in sorted(self.topics) if len(before.get(name, ())) != len(now.get(name, ()))), None)

    def _partitions_in(self, cluster: Metadata) -> Topics:
        racks = {node_id: broker.rack for node_id, broker in cluster.brokers.items()}
        return {
            name: [
                frozenset(rack for node_id in partition.replicas if (rack := racks.get(node_id)))
                for partition in cluster.topics[name].partitions.values()
            ]
            for name in self.topics & available_topics(cluster)
        }


def _decode_member(row: dict[str, Any]) -> Subscription:
    try:
        return decode_subscription(row["metadata"], row["group_instance_id"])
    except ProtocolError as error:
        raise type(error)(f"invalid subscription of member {row['member_id']}: {error}") from error
