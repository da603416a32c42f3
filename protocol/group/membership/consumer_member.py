"""A member of the consumer protocol (KIP-848) as a sans-IO state machine: ConsumerGroupHeartbeat only.

The coordinator assigns partitions; an epoch replaces the generation. The member reports its owned partitions. A revoked
partition is assigned to another member when its owner no longer reports it; other members continue meanwhile.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Metadata
from protocol.config import ClientConfig, ConsumerConfig
from protocol.errors import BrokerError, ConnectFailed, KafkaError
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import EndReason, Revocation, TopicSubscription
from protocol.group.membership.machine import NO_PARTITIONS, MemberMachine
from protocol.group.membership.member_state import CONSUMER_TRANSITIONS, RECONCILED, MemberState, SendRequest, Step
from protocol.kafka_terms import NO_TOPIC_IDS, TopicIds, TopicPartition
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT, FIRST_WITH_REGEX

# Special values of the epoch.
_JOIN, _LEAVE, _LEAVE_FOR_A_WHILE = 0, -1, -2
_REMEDIES: dict[int, tuple[str, str]] = {
    ErrorCode.UNSUPPORTED_ASSIGNOR: ("group.remote.assignor", "brokers support those in group.consumer.assignors"),
    ErrorCode.INVALID_REGULAR_EXPRESSION: ("the pattern", "brokers use RE2 syntax, without look-around"),
    ErrorCode.GROUP_MAX_SIZE_REACHED: ("group.id", "stop a member, or use another group"),
    ErrorCode.FENCED_INSTANCE_ID: ("group.instance.id", "use a different one for each member"),
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "group.instance.id",
        "use a different one for each member; a killed member holds it until its session timeout",
    ),
    ErrorCode.UNSUPPORTED_VERSION: ("group.protocol", "the consumer protocol needs Kafka 4.0 or later; use classic"),
    ErrorCode.GROUP_ID_NOT_FOUND: (
        "group.protocol",
        "the group has members of the classic protocol, and brokers do not convert it "
        "(group.consumer.migration.policy); stop them, or use classic",
    ),
}
# Maximum time for which a killed static member may hold its instance id: longer than the brokers' default session
# timeout of 45 s.
_RELEASED_IN_S = 60.0
_REGEX = "subscribed_topic_regex"
# Lower limit of the interval that a coordinator may request.
_LEAST_INTERVAL_MS = 50


class ConsumerMember(MemberMachine):
    """A member of the consumer protocol; it creates its `member_id`, which does not change."""

    transitions = CONSUMER_TRANSITIONS
    remedies = _REMEDIES
    broker_matches_patterns = True

    def __init__(
        self, client: ClientConfig, config: ConsumerConfig, subscription: TopicSubscription, now_s: float
    ) -> None:
        super().__init__(client, config, subscription, now_s)
        self._member_id = str(uuid.uuid4())
        self._epoch = _JOIN
        self._assigned_since: int | None = None
        # True if the coordinator may still have this member although the client has no session: a join request had no
        # response, or only this client has noticed the end of the session.
        self._may_have_joined = False
        # Time limit for the release of the instance id, from the first refusal on.
        self._release_deadline_s = math.inf
        # Fields of the last request, and those that the coordinator has acknowledged; others are sent again.
        self._sent_fields: dict[str, Any] = {}
        self._acknowledged_fields: dict[str, Any] = {}
        # True if the coordinator may have a pattern: of an earlier session, or of a former static member (KIP-345).
        self._may_have_regex = config.group_instance_id is not None
        # True if the coordinator has acknowledged the owned partitions; it assigns unreported partitions to others.
        self._ownership_acknowledged = True
        # Assigned partitions by topic id, and names of topics. `_reconcile`, called after each response and metadata,
        # makes `_ids` of both: assigned partitions of topics whose names are known.
        self._target: dict[bytes, list[int]] = {}
        self._names: dict[bytes, str] = {}
        self._ids: dict[TopicPartition, bytes] = {}
        # `_ids` when the owner accepted them; has all of `owned`, except lost partitions. Replaced, never changed.
        self.owned_topic_ids: TopicIds = NO_TOPIC_IDS
        # True from a change of the subscription until the coordinator has assigned partitions for it.
        self._outdated = False

    @property
    def member(self) -> GroupMember:
        """Return the member; without an epoch outside a session."""
        epoch = self._epoch if self._epoch > _JOIN else -1
        instance_id = self.config.group_instance_id
        return GroupMember(
            self._member_id, member_epoch=epoch, group_instance_id=instance_id, assigned_since=self._assigned_since
        )

    @property
    def is_becoming_known(self) -> bool:
        """Return True while the first heartbeat is in flight: after an earlier leave request it would join again."""
        return self._awaited is not None and self._assigned_since is None

    def subscribe(self, subscription: TopicSubscription, now_s: float) -> None:
        """Change the subscription, and report it at once."""
        self._outdated |= subscription != self.subscription
        super().subscribe(subscription, now_s)
        self._heartbeat_s = now_s

    # -- requests -----------------------------------------------------------------------------

    def _next_step(self, now_s: float) -> Step:
        due = self._epoch == _JOIN or self.state is MemberState.ACKNOWLEDGING or now_s >= self._heartbeat_s
        return (
            self._heartbeat()
            if due or self._subscribed() != self._acknowledged_subscription
            else self._watch_topics(now_s)
        )

    def _heartbeat(self) -> SendRequest:
        self._sent_fields = {
            **self._subscribed(),
            "rack_id": self.config.client_rack or None,
            "rebalance_timeout_ms": self.config.max_poll_interval_ms,
            "server_assignor": self.config.group_remote_assignor,
            "topic_partitions": self._owned_rows(),
        }
        changed_fields = {
            field: value for field, value in self._sent_fields.items() if self._acknowledged_fields.get(field) != value
        }
        self._ownership_acknowledged = self._ownership_acknowledged and "topic_partitions" not in changed_fields
        self._may_have_regex |= bool(changed_fields.get(_REGEX))
        return self._request(self._epoch, changed_fields, FIRST_WITH_REGEX if changed_fields.get(_REGEX) else 0)

    def _subscribed(self) -> dict[str, Any]:
        regex = None if self._matches_in_client else self.subscription.re2
        return {
            "subscribed_topic_names": sorted(self._topics or ()),
            # An empty pattern removes the former one.
            _REGEX: regex or ("" if self._may_have_regex else None),
        }

    @property
    def _acknowledged_subscription(self) -> dict[str, Any]:
        return {field: self._acknowledged_fields.get(field) for field in ("subscribed_topic_names", _REGEX)}

    def _owned_rows(self) -> list[dict[str, Any]]:
        by_id: dict[bytes, list[int]] = {}
        for key in sorted(self.owned):
            by_id.setdefault(self.owned_topic_ids[key], []).append(key[1])
        return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_id.items()]

    def _leave_request(self, for_good: bool | None) -> SendRequest | None:
        is_known = self._assigned_since is not None or self._awaited is not None or self._may_have_joined
        static = self.config.group_instance_id is not None and not for_good
        if not is_known or (for_good is False and not static):
            return None
        return self._request(_LEAVE_FOR_A_WHILE if static else _LEAVE, {}, 0)

    def _request(self, epoch: int, fields: dict[str, Any], at_least: int) -> SendRequest:
        identity = {"group_id": self.group, "member_id": self._member_id, "instance_id": self.config.group_instance_id}
        request_body = {**identity, "member_epoch": epoch, **fields}

        def without_regex(version: int) -> dict[str, Any]:
            """Return the body without the field that removes a pattern, which older brokers do not have."""
            return {
                name: value for name, value in request_body.items() if version >= FIRST_WITH_REGEX or name != _REGEX
            }

        body = without_regex if request_body.get(_REGEX) == "" else request_body
        return SendRequest(CONSUMER_GROUP_HEARTBEAT, body, self._heartbeat_timeout_ms, at_least)

    # -- responses ----------------------------------------------------------------------------

    def on_failure(self, request: SendRequest, error: KafkaError, now_s: float) -> None:
        """Process a failure; retry while the former member with this instance id exists.

        A member that was killed holds its instance id until its session timeout; its successor waits for that.
        """
        if request is self._awaited and not isinstance(error, (BrokerError, ConnectFailed)):
            self._may_have_joined = True
        unreleased = isinstance(error, BrokerError) and error.code == ErrorCode.UNRELEASED_INSTANCE_ID
        if unreleased and request is self._awaited:
            self._release_deadline_s = min(self._release_deadline_s, now_s + _RELEASED_IN_S)
            if now_s < self._release_deadline_s:
                return self._retry_after_backoff(error, now_s)
        super().on_failure(request, error, now_s)

    def _on_response(self, request: SendRequest, reply: Mapping[str, Any], now_s: float) -> None:
        self._acknowledged_fields, self._ownership_acknowledged, self._release_deadline_s = (
            self._sent_fields,
            True,
            math.inf,
        )
        self._heartbeat_s = now_s + max(_LEAST_INTERVAL_MS, reply["heartbeat_interval_ms"]) / 1000
        self._epoch = reply["member_epoch"]
        self._may_have_joined = False
        if self._assigned_since is None:
            self._assigned_since = self._epoch
        if reply["assignment"] is not None:
            self._assign(reply["assignment"]["topic_partitions"])
        self._reconcile()
        if self._has_unnamed_topics:
            self._refresh_s = min(self._refresh_s, now_s)

    def _assign(self, rows: list[dict[str, Any]]) -> None:
        """Store the assignment.

        A new assignment is always acknowledged, even if it equals the owned partitions: the coordinator may have sent
        another one in between, in a response that was lost.
        """
        target = {bytes(row["topic_id"]): row["partitions"] for row in rows}
        if target != self._target:
            self._target, self._acknowledged_fields = target, {**self._acknowledged_fields, "topic_partitions": None}

    def _on_metadata(self, cluster: Metadata, now_s: float) -> None:
        self._names.update((topic.topic_id, name) for name, topic in cluster.topics.items())
        self._reconcile()
        if self._has_unnamed_topics:
            self._refresh_s = now_s + self._backoff.next_s()

    def _reconcile(self) -> None:
        """Compare the assigned with the owned partitions, and these with those the coordinator knows."""
        self._ids = {
            (self._names[topic_id], number): topic_id
            for topic_id, numbers in self._target.items()
            if topic_id in self._names
            for number in numbers
        }
        if self._outdated and not self._pattern_pending and self._subscribed() == self._acknowledged_subscription:
            self._outdated = not self._assignment_fits
        if self._epoch == _JOIN:
            return
        if self._ids != {key: self.owned_topic_ids[key] for key in self.owned}:
            state = MemberState.RECONCILING
        elif self.state is MemberState.JOINING and self._has_unnamed_topics:
            return  # the names of the assigned topics are not known yet
        elif self._acknowledged_fields.get("topic_partitions") != self._owned_rows():
            state = MemberState.ACKNOWLEDGING
        else:
            state = MemberState.STABLE
        if state is not self.state:
            self._lifecycle.transition(
                state, EndReason(f"epoch {self._epoch} has assigned {len(self._ids)} partitions")
            )

    # -- owned partitions --------------------------------------------------------------------

    @property
    def _is_outdated(self) -> bool:
        return self._outdated

    @property
    def _assignment_fits(self) -> bool:
        """Return False if topics are assigned that are not subscribed: the coordinator will revoke them."""
        if self.subscription.pattern is not None and not self._matches_in_client:
            return True  # only brokers know which topics the pattern matches
        return {topic for topic, _ in self._ids} <= (self._topics or frozenset())

    @property
    def _assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._ids)

    def _to_revoke(self) -> frozenset[TopicPartition]:
        if self.state is not MemberState.RECONCILING:
            return NO_PARTITIONS
        return frozenset(key for key in self.owned if self._ids.get(key) != self.owned_topic_ids[key])

    def complete_revocation(self, revocation: Revocation, now_s: float) -> None:
        """Record that the owner has released the partitions; the coordinator may have assigned them again meanwhile."""
        super().complete_revocation(revocation, now_s)
        if self.state in RECONCILED:
            self._reconcile()

    @property
    def _may_accept(self) -> bool:
        return self._ownership_acknowledged

    def _accepted(self) -> None:
        self.owned_topic_ids = dict(self._ids)
        self._lifecycle.transition(MemberState.ACKNOWLEDGING, self.reason)

    # -- metadata ------------------------------------------------------------------------------

    @property
    def _has_unnamed_topics(self) -> bool:
        """Return True if the name of an assigned topic is not known yet."""
        return any(topic_id not in self._names for topic_id in self._target)

    @property
    def _watches_topics(self) -> bool:
        return self._matches_in_client or self._has_unnamed_topics

    @property
    def _watched_topics(self) -> frozenset[str] | None:
        return self._topics if self.subscription.pattern is None else None

    # -- end of the session ---------------------------------------------------------------------------------

    def _loses_assignment(self, error: BrokerError) -> bool:
        """Return True if the error ends the session.

        A join creates a missing group, so GROUP_ID_NOT_FOUND in the response to a join means a group of the classic
        protocol.
        """
        return super()._loses_assignment(error) and (error.code != ErrorCode.GROUP_ID_NOT_FOUND or self._epoch != _JOIN)

    def _on_fenced(self, error: BrokerError) -> None:
        pass  # it rejoins with the same id

    def _on_unknown_outcome(self) -> None:
        self._acknowledged_fields = {}

    def _end_session(self) -> None:
        self._may_have_joined |= self._assigned_since is not None
        self._epoch, self._assigned_since = _JOIN, None
        self._acknowledged_fields, self._target, self._ids, self.owned_topic_ids = {}, {}, {}, NO_TOPIC_IDS
