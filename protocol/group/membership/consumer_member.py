"""A member by the consumer protocol (KIP-848): ConsumerGroupHeartbeat for everything, as a pure state machine.

The coordinator assigns, and an epoch takes the place of the generation. A member hears what it may have from now on,
and says what it has: what it gives up goes to others only when it has said so, and nobody else has to wait for that.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Metadata
from protocol.config import ClientConfig, ConsumerConfig
from protocol.errors import BrokerError, KafkaError
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import EndReason, TopicSubscription
from protocol.group.membership.machine import NO_PARTITIONS, MemberMachine
from protocol.group.membership.member_state import CONSUMER_TRANSITIONS, MemberState, SendRequest, Step
from protocol.kafka_terms import TopicPartition
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT, FIRST_WITH_REGEX

# Epochs that say something else than how far a member has come.
_JOIN, _LEAVE, _LEAVE_FOR_A_WHILE = 0, -1, -2
_REMEDIES: dict[int, tuple[str, str]] = {
    ErrorCode.UNSUPPORTED_ASSIGNOR: ("group.remote.assignor", "brokers list theirs in group.consumer.assignors"),
    ErrorCode.INVALID_REGULAR_EXPRESSION: ("the pattern", "brokers take RE2's syntax, without look-around"),
    ErrorCode.GROUP_MAX_SIZE_REACHED: ("group.id", "stop a member, or use another group"),
    ErrorCode.FENCED_INSTANCE_ID: ("group.instance.id", "give each member one of its own"),
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "group.instance.id",
        "give each member one of its own; one that was killed has held it until its session was over",
    ),
    ErrorCode.UNSUPPORTED_VERSION: ("group.protocol", "brokers speak it since Kafka 4.0; use classic"),
    ErrorCode.GROUP_ID_NOT_FOUND: (
        "group.protocol",
        "the group has members of the classic protocol, and brokers do not convert it "
        "(group.consumer.migration.policy); stop them, or use classic",
    ),
}
# So long may a static member that was killed hold its instance id: the session that brokers give it, and some more.
_RELEASED_IN_S = 60.0
# A coordinator that asks for more is not believed.
_LEAST_INTERVAL_MS = 50


class ConsumerMember(MemberMachine):
    """Names itself: `member_id` is its own, for as long as it lives."""

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
        # When its instance id must be free: from the first time that it was not.
        self._released_s = math.inf
        # What was said in the last request, and what the coordinator has answered to: the rest is said again.
        self._sent_fields: dict[str, Any] = {}
        self._acknowledged_fields: dict[str, Any] = {}
        # Whether it has answered since it was told what the owner has: what it was not told of, it gives to others.
        self._ownership_acknowledged = True
        # Partitions by topic id, as assigned; then those of topics whose names are known, with their topic's id.
        self._target: dict[bytes, list[int]] = {}
        self._names: dict[bytes, str] = {}
        self._ids: dict[TopicPartition, bytes] = {}
        self._owned_ids: dict[TopicPartition, bytes] = {}

    @property
    def member(self) -> GroupMember:
        epoch = self._epoch if self._epoch > _JOIN else -1
        instance_id = self.config.group_instance_id
        return GroupMember(
            self._member_id, member_epoch=epoch, group_instance_id=instance_id, assigned_since=self._assigned_since
        )

    # -- what is sent -------------------------------------------------------------------------

    def _next_step(self, now_s: float) -> Step:
        due = self._epoch == _JOIN or self.state is MemberState.ACKNOWLEDGING or now_s >= self._heartbeat_s
        return self._heartbeat() if due or self._subscribed() != self._subscribed_before else self._watch_topics(now_s)

    def _heartbeat(self) -> SendRequest:
        self._sent_fields = {
            **self._subscribed(),
            "rack_id": self.config.client_rack or None,
            "rebalance_timeout_ms": self.config.max_poll_interval_ms,
            "server_assignor": self.config.group_remote_assignor,
            "topic_partitions": self._owned_rows(),
        }
        news = {
            field: value for field, value in self._sent_fields.items() if self._acknowledged_fields.get(field) != value
        }
        self._ownership_acknowledged = self._ownership_acknowledged and "topic_partitions" not in news
        at_least = FIRST_WITH_REGEX if news.get("subscribed_topic_regex") is not None else 0
        return self._request(self._epoch, news, at_least)

    def _subscribed(self) -> dict[str, Any]:
        regex = None if self._matches_in_client else self.subscription.re2
        # The empty one takes back what was said before.
        said = self._acknowledged_fields.get("subscribed_topic_regex")
        return {"subscribed_topic_names": sorted(self._topics or ()), "subscribed_topic_regex": regex or (said and "")}

    @property
    def _subscribed_before(self) -> dict[str, Any]:
        return {
            field: self._acknowledged_fields.get(field)
            for field in ("subscribed_topic_names", "subscribed_topic_regex")
        }

    def _owned_rows(self) -> list[dict[str, Any]]:
        by_id: dict[bytes, list[int]] = {}
        for key in sorted(self.owned):
            by_id.setdefault(self._owned_ids[key], []).append(key[1])
        return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_id.items()]

    def _leave_request(self, for_good: bool | None) -> SendRequest | None:
        # Who is asking to be let in may be, by an answer that it does not wait for.
        is_known = self._assigned_since is not None or self._in_flight is not None
        if not is_known or for_good is False:
            return None
        static = self.config.group_instance_id is not None and for_good is None
        return self._request(_LEAVE_FOR_A_WHILE if static else _LEAVE, {}, 0)

    def _request(self, epoch: int, fields: dict[str, Any], at_least: int) -> SendRequest:
        who = {"group_id": self.group, "member_id": self._member_id, "instance_id": self.config.group_instance_id}
        body = {**who, "member_epoch": epoch, **fields}
        return SendRequest(CONSUMER_GROUP_HEARTBEAT, body, self._heartbeat_timeout_ms, at_least)

    # -- what is answered ---------------------------------------------------------------------

    def on_failure(self, request: SendRequest, error: KafkaError, now_s: float) -> None:
        """Who is started again after it was killed waits until the member that it was has lost the instance id."""
        unreleased = isinstance(error, BrokerError) and error.code == ErrorCode.UNRELEASED_INSTANCE_ID
        if unreleased and request is self._in_flight:
            self._released_s = min(self._released_s, now_s + _RELEASED_IN_S)
            if now_s < self._released_s:
                return self._retry_after_backoff(error, now_s)
        super().on_failure(request, error, now_s)

    def _on_response(self, request: SendRequest, reply: Mapping[str, Any], now_s: float) -> None:
        self._acknowledged_fields, self._ownership_acknowledged, self._released_s = self._sent_fields, True, math.inf
        self._heartbeat_s = now_s + max(_LEAST_INTERVAL_MS, reply["heartbeat_interval_ms"]) / 1000
        self._epoch = reply["member_epoch"]
        if self._assigned_since is None:
            self._assigned_since = self._epoch
        if reply["assignment"] is not None:
            self._assign(reply["assignment"]["topic_partitions"])
        self._reconcile()
        if self._has_unnamed_topics:
            self._refresh_s = min(self._refresh_s, now_s)

    def _assign(self, rows: list[dict[str, Any]]) -> None:
        """Another assignment is to be acknowledged, also by who has just that: one in between may not be known here."""
        target = {bytes(row["topic_id"]): row["partitions"] for row in rows}
        if target != self._target:
            self._target, self._acknowledged_fields = target, {**self._acknowledged_fields, "topic_partitions": None}

    def _on_metadata(self, cluster: Metadata, now_s: float) -> None:
        self._names.update((topic.topic_id, name) for name, topic in cluster.topics.items())
        self._reconcile()
        if self._has_unnamed_topics:
            self._refresh_s = now_s + self._backoff.next_s()

    def _reconcile(self) -> None:
        """Compares what is assigned with what the owner has, and that with what the coordinator knows of it."""
        self._ids = {
            (self._names[topic_id], number): topic_id
            for topic_id, numbers in self._target.items()
            if topic_id in self._names
            for number in numbers
        }
        if self._epoch == _JOIN:
            return
        if self._ids != {key: self._owned_ids[key] for key in self.owned}:
            state = MemberState.RECONCILING
        elif self.state is MemberState.JOINING and self._has_unnamed_topics:
            return  # not that it has nothing: it is not known what it has
        elif self._acknowledged_fields.get("topic_partitions") != self._owned_rows():
            state = MemberState.ACKNOWLEDGING
        else:
            state = MemberState.STABLE
        if state is not self.state:
            self._life.transition(state, EndReason(f"epoch {self._epoch} has assigned {len(self._ids)} partitions"))

    # -- what the owner has -------------------------------------------------------------------

    @property
    def _assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._ids)

    def _to_revoke(self) -> frozenset[TopicPartition]:
        return self.owned - self._assigned if self.state is MemberState.RECONCILING else NO_PARTITIONS

    @property
    def _may_accept(self) -> bool:
        return self._ownership_acknowledged

    def _accepted(self) -> None:
        self._owned_ids = dict(self._ids)
        self._life.transition(MemberState.ACKNOWLEDGING, self.reason)

    # -- what is looked up ----------------------------------------------------------------------

    @property
    def _has_unnamed_topics(self) -> bool:
        """Whether it is assigned a topic that metadata have not told the name of."""
        return any(topic_id not in self._names for topic_id in self._target)

    @property
    def _watches_topics(self) -> bool:
        return self._matches_in_client or self._has_unnamed_topics

    @property
    def _watched_topics(self) -> frozenset[str] | None:
        return self._topics if self.subscription.pattern is None else None

    # -- ends ---------------------------------------------------------------------------------

    def _loses_assignment(self, error: BrokerError) -> bool:
        """Who joins makes a group that is not there: if that is not found, it is one of the other protocol."""
        return super()._loses_assignment(error) and (error.code != ErrorCode.GROUP_ID_NOT_FOUND or self._epoch != _JOIN)

    def _on_fenced(self, error: BrokerError) -> None:
        pass  # joins again under the same id

    def _on_unknown_outcome(self) -> None:
        self._acknowledged_fields = {}

    def _end_session(self) -> None:
        self._epoch, self._assigned_since = _JOIN, None
        self._acknowledged_fields, self._target, self._ids, self._owned_ids = {}, {}, {}, {}
