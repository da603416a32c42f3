"""Sticky: as balanced as possible, then as few partitions as possible move.

An eager assignor: members own nothing while they join. So each member sends its last assignment as user data.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from protocol.errors import ProtocolError
from protocol.group.assignors.assignor import Assignor, GroupAssignment, Members, Subscription, Topics
from protocol.group.assignors.balance import balanced
from protocol.group.assignors.ownership import Ownership
from protocol.group.assignors.partitions_by_topic import flat, partitions_by_topic
from protocol.kafka_terms import TopicPartition
from protocol.wire.codec import decoder, encoder
from protocol.wire.consumer_metadata import TOPIC_PARTITION
from protocol.wire.primitives import Reader, Writer
from protocol.wire.schema import Array, Field, Struct

_STICKY_USER_DATA = Struct(
    Field("previous_assignment", Array(TOPIC_PARTITION)),
    Field("generation", "int32", since=1, default=-1),
)
"""The version is not part of the bytes."""


def _sticky_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    writer = Writer()
    value = {"previous_assignment": partitions_by_topic(owned), "generation": generation}
    encoder(_STICKY_USER_DATA, 1, False)(writer, value)
    return b"".join(writer.parts())


def _sticky_ownership(member: Subscription) -> Ownership:
    """Return the ownership in a member's user data; empty if invalid, since that must not fail the leader."""
    for version in (1, 0):
        with suppress(ProtocolError):
            value = decoder(_STICKY_USER_DATA, version, False)(Reader(member.user_data or b""))
            return Ownership(flat(value["previous_assignment"]), value["generation"])
    return Ownership()


def _assign_sticky(members: Members, topics: Topics) -> GroupAssignment:
    return balanced(members, topics, {name: _sticky_ownership(member) for name, member in members.items()})


STICKY = Assignor(
    "sticky", "org.apache.kafka.clients.consumer.StickyAssignor", _assign_sticky, user_data=_sticky_user_data
)
