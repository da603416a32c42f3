"""Committed offsets, also of open transactions: OffsetCommit, OffsetFetch, TxnOffsetCommit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.kafka_terms import TopicPartition
from protocol.testing.fake_kafka.broker import Broker, named
from protocol.testing.fake_kafka.controller import TopicImage
from protocol.testing.fake_kafka.groups import Groups
from protocol.testing.fake_kafka.requests import Body, Refused, Request, row_of
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import GROUP

_NOTHING = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


@dataclass(frozen=True)
class Committed:
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str

    @classmethod
    def of(cls, part: Body) -> Committed:
        """Return the offset of a partition's row of OffsetCommit or TxnOffsetCommit."""
        return cls(part["committed_offset"], part["committed_leader_epoch"], part["committed_metadata"] or "")

    def row(self) -> Body:
        """Return the fields of OffsetFetch."""
        return {
            "committed_offset": self.offset,
            "committed_leader_epoch": self.leader_epoch,
            "metadata": self.metadata,
        }


class Offsets:
    """`committed` offsets by group; `pending` ones by producer id and group, until the transaction ends."""

    def __init__(self, groups: Groups, settings: Mapping[str, str]) -> None:
        self.committed: dict[str, dict[TopicPartition, Committed]] = {}
        self.pending: dict[int, dict[str, dict[TopicPartition, Committed]]] = {}
        self._groups = groups
        self._max_metadata = int(settings["offset.metadata.max.bytes"])

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commit or drop the offsets of a producer's transaction."""
        for group_id, offsets in self.pending.pop(producer_id, {}).items():
            if commit:
                self.committed.setdefault(group_id, {}).update(offsets)

    def delete_topic(self, name: str) -> None:
        """Drop the offsets of a deleted topic."""
        for offsets in (*self.committed.values(), *(by for each in self.pending.values() for by in each.values())):
            for key in [key for key in offsets if key[0] == name]:
                del offsets[key]

    # -- OffsetCommit, TxnOffsetCommit ----------------------------------------------------------

    def commit(self, broker: Broker, request: Request, now_s: float) -> Body:
        """Handle OffsetCommit."""
        body = request.body

        def check() -> None:
            generation, member_id = body["generation_id_or_member_epoch"], body["member_id"]
            self._check(body, generation, in_transaction=False)
            if body["group_id"] in self._groups.consumer_groups:
                return
            group = self._groups.create(body["group_id"])
            if member_id in group.members:
                member = group.members[member_id]
                member.expires_s = now_s + member.session_timeout_ms / 1000

        return self._commit(broker, request, check, self.committed.setdefault(body["group_id"], {}))

    def commit_in_transaction(self, broker: Broker, request: Request) -> Body:
        """Commit in a transaction; the caller has checked the producer."""
        body = request.body
        by_group = self.pending.setdefault(body["producer_id"], {})

        def check() -> None:
            self._check(body, body["generation_id"], in_transaction=True)
            self._groups.create(body["group_id"])

        return self._commit(broker, request, check, by_group.setdefault(body["group_id"], {}))

    def _check(self, body: Body, generation: int, *, in_transaction: bool) -> None:
        who = body["member_id"], body["group_instance_id"], generation
        self._groups.check_commit(body["group_id"], *who, in_transaction=in_transaction)

    def _commit(
        self, broker: Broker, request: Request, check: Callable[[], None], into: dict[TopicPartition, Committed]
    ) -> Body:
        """Refuse unknown topics first; then check the sender once for all rows."""
        refusal = _refusal_of(check)

        def commit(topic: TopicImage, part: Body) -> Body:
            if part["partition_index"] >= len(topic.partitions):
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if refusal is not None:
                raise refusal
            if len(part["committed_metadata"] or "") > self._max_metadata:
                raise Refused(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            into[topic.name, part["partition_index"]] = Committed.of(part)
            return {}

        return {"topics": broker.rows(request.api, request.body["topics"], commit)}

    # -- OffsetFetch --------------------------------------------------------------------------

    def fetch(self, broker: Broker, request: Request) -> Body:
        """Handle OffsetFetch."""
        stable = request.body["require_stable"]
        return {"groups": [self._group(broker, asked, stable) for asked in request.body["groups"]]}

    def _group(self, broker: Broker, asked: Body, stable: bool) -> Body:
        group_id = asked["group_id"]
        try:
            broker.cluster.authorizer.require(OFFSET_FETCH, "Group", group_id)
            broker.cluster.require_coordinator(broker, GROUP, group_id)
        except Refused as refusal:
            return {"group_id": group_id, "topics": [], "error_code": refusal.code}
        topics = asked["topics"] if asked["topics"] is not None else self._all(broker, group_id)
        rows = [{**named(each), "partitions": self._rows(broker, group_id, each, stable)} for each in topics]
        return {"group_id": group_id, "topics": rows, "error_code": ErrorCode.NONE}

    def _rows(self, broker: Broker, group_id: str, asked: Body, stable: bool) -> list[Body]:
        def offset(number: int) -> Body:
            # A request by topic name succeeds for a deleted topic.
            key = (asked.get("name") or broker.topic(asked).name, number)
            broker.cluster.authorizer.require(OFFSET_FETCH, "Topic", key[0])
            if stable and self._is_pending(group_id, key):
                raise Refused(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            known = self.committed.get(group_id, {}).get(key)
            return known.row() if known else _NOTHING

        numbers = asked["partition_indexes"]
        return [{**_NOTHING, **row_of(partial(offset, each), partition_index=each)} for each in numbers]

    def _all(self, broker: Broker, group_id: str) -> list[Body]:
        by_topic: dict[str, list[int]] = {}
        for name, number in sorted(self.committed.get(group_id, {})):
            by_topic.setdefault(name, []).append(number)
        return [
            {"name": name, "topic_id": broker.image.topics[name].topic_id, "partition_indexes": numbers}
            for name, numbers in by_topic.items()
            if name in broker.image.topics and broker.cluster.authorizer.may(OFFSET_FETCH, "Topic", name)
        ]

    def _is_pending(self, group_id: str, key: TopicPartition) -> bool:
        return any(key in by_group.get(group_id, {}) for by_group in self.pending.values())


def _refusal_of(check: Callable[[], None]) -> Refused | None:
    try:
        check()
    except Refused as refusal:
        return refusal
    return None
