"""Encode and decode subscriptions and assignments, which members exchange through the coordinator.

A member sends its subscription in JoinGroup, once per assignor, since user data differs. The leader receives all
subscriptions in the response, and sends an assignment for each member in SyncGroup.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from protocol.errors import Corrupt
from protocol.group.assignors.assignor import MemberAssignment, Subscription
from protocol.kafka_terms import TopicPartition
from protocol.wire.consumer_metadata import ASSIGNMENT, LAST_VERSION, SUBSCRIPTION, decode_versioned, encode_versioned
from protocol.wire.primitives import BytesLike


def encode_subscription(subscription: Subscription, version: int = LAST_VERSION) -> bytes:
    """Encode a subscription as consumer protocol metadata."""
    value = {
        "topics": sorted(subscription.topics),
        "user_data": subscription.user_data,
        "owned_partitions": partitions_by_topic(subscription.owned),
        "generation_id": subscription.generation,
        "rack_id": subscription.rack,
    }
    return encode_versioned(SUBSCRIPTION, version, value)


def decode_subscription(data: BytesLike, instance_id: str | None = None) -> Subscription:
    """Decode a subscription of any version; raise `Truncated` or `Corrupt`."""
    _, value = decode_versioned(SUBSCRIPTION, LAST_VERSION, data)
    user_data = value["user_data"]
    return Subscription(
        topics=frozenset(value["topics"]),
        owned=partitions_of_rows(value["owned_partitions"]),
        generation=value["generation_id"],
        rack=value["rack_id"] or None,
        user_data=None if user_data is None else bytes(user_data),
        instance_id=instance_id,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], version: int = LAST_VERSION, user_data: bytes | None = None
) -> bytes:
    """Encode an assignment."""
    value = {"assigned_partitions": partitions_by_topic(partitions), "user_data": user_data}
    return encode_versioned(ASSIGNMENT, version, value)


def decode_assignment(data: BytesLike) -> frozenset[TopicPartition]:
    """Decode the partitions of an assignment of any version; raise `Truncated` or `Corrupt`.

    Empty bytes mean no partitions: a leader may leave out a member.
    """
    return frozenset(decode_member_assignment(data).partitions)


def decode_member_assignment(data: BytesLike) -> MemberAssignment:
    """Decode an assignment with its user data, as `decode_assignment`."""
    if not data:
        return MemberAssignment(frozenset())
    _, value = decode_versioned(ASSIGNMENT, LAST_VERSION, data)
    user_data = value["user_data"]
    return MemberAssignment(
        partitions_of_rows(value["assigned_partitions"]), None if user_data is None else bytes(user_data)
    )


MAX_PARTITIONS = 1_000_000
"""Maximum per member. A partition has four bytes in a frame, and up to 200 bytes in memory."""


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Return rows of `TOPIC_PARTITION`, sorted."""
    numbers = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    return [{"topic": topic, "partitions": topic_numbers} for topic, topic_numbers in numbers.items()]


def partitions_of_rows(rows: list[dict[str, Any]]) -> frozenset[TopicPartition]:
    """Return the partitions of rows of `TOPIC_PARTITION`; raise `Corrupt` for more than `MAX_PARTITIONS`."""
    count = sum(len(row["partitions"]) for row in rows)
    if count > MAX_PARTITIONS:
        raise Corrupt(f"{count} partitions of one member; at most {MAX_PARTITIONS} are allowed")
    return frozenset((row["topic"], number) for row in rows for number in row["partitions"])
