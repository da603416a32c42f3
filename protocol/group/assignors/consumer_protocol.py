"""The bytes that members send each other by way of the coordinator, as values: a subscription, and an assignment.

A member writes its subscription into JoinGroup, once for each of its assignors, whose user data differ. The leader
reads all members' from the reply, and writes an assignment for each into SyncGroup.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.group.assignors.assignor import Subscription
from protocol.group.assignors.partitions_by_topic import flat, partitions_by_topic
from protocol.kafka_terms import TopicPartition
from protocol.wire.consumer_protocol import ASSIGNMENT, LAST_VERSION, SUBSCRIPTION, decode_versioned, encode_versioned
from protocol.wire.primitives import BytesLike


def encode_subscription(subscription: Subscription, version: int = LAST_VERSION) -> bytes:
    value = {
        "topics": sorted(subscription.topics),
        "user_data": subscription.user_data,
        "owned_partitions": partitions_by_topic(subscription.owned),
        "generation_id": subscription.generation,
        "rack_id": subscription.rack,
    }
    return encode_versioned(SUBSCRIPTION, version, value)


def decode_subscription(data: BytesLike, instance_id: str | None = None) -> Subscription:
    """Of any version. Raises `Truncated` or `Corrupt`."""
    _, value = decode_versioned(SUBSCRIPTION, LAST_VERSION, data)
    user_data = value["user_data"]
    return Subscription(
        topics=frozenset(value["topics"]),
        owned=flat(value["owned_partitions"]),
        generation=value["generation_id"],
        rack=value["rack_id"] or None,
        user_data=None if user_data is None else bytes(user_data),
        instance_id=instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], version: int = LAST_VERSION) -> bytes:
    return encode_versioned(ASSIGNMENT, version, {"assigned_partitions": partitions_by_topic(partitions)})


def decode_assignment(data: BytesLike) -> frozenset[TopicPartition]:
    """Of any version; no bytes at all, as a leader may leave out a member, are no partitions.

    Raises `Truncated` or `Corrupt`.
    """
    return flat(decode_versioned(ASSIGNMENT, LAST_VERSION, data)[1]["assigned_partitions"]) if data else frozenset()
