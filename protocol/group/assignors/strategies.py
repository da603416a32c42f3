"""Roundrobin, sticky and cooperative-sticky, and the parser of `partition.assignment.strategy`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from protocol.errors import ConfigurationError, ProtocolError, Truncated
from protocol.group.assignors.assignor import (
    NO_GENERATION,
    Assignor,
    GroupAssignment,
    Members,
    Subscription,
    Topics,
    in_order,
)
from protocol.group.assignors.partition_assignor import OwnAssignor
from protocol.group.assignors.range_assignor import RANGE
from protocol.group.assignors.sticky_balance import Ownership, balanced, current_owners
from protocol.group.assignors.subscription_codec import partitions_by_topic, partitions_of_rows
from protocol.kafka_terms import TopicPartition
from protocol.wire.codec import decoder, encoder
from protocol.wire.consumer_metadata import TOPIC_PARTITION
from protocol.wire.primitives import Reader, Writer
from protocol.wire.schema import Array, Field, Struct


def _assign_roundrobin(members: Members, topics: Topics) -> GroupAssignment:
    placed: GroupAssignment = defaultdict(list)
    turns = deque(in_order(members))
    for topic, partitions in topics.items():
        for number in range(len(partitions)):
            while topic not in members[turns[0]].topics:
                turns.rotate(-1)
            placed[turns[0]].append((topic, number))
            turns.rotate(-1)
    return placed


ROUNDROBIN = Assignor("roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor", _assign_roundrobin)
"""Partitions are dealt one by one, each to the next member that has subscribed to its topic."""


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
    """Return the ownership in a member's user data; empty if invalid, so that one member cannot fail the leader."""
    for version in (1, 0):
        with suppress(ProtocolError):
            value = decoder(_STICKY_USER_DATA, version, False)(Reader(member.user_data or b""))
            return Ownership(partitions_of_rows(value["previous_assignment"]), value["generation"])
    return Ownership()


def _assign_sticky(members: Members, topics: Topics) -> GroupAssignment:
    return balanced(members, topics, {name: _sticky_ownership(member) for name, member in members.items()})


STICKY = Assignor(
    "sticky", "org.apache.kafka.clients.consumer.StickyAssignor", _assign_sticky, user_data=_sticky_user_data
)
"""First as balanced as possible, then with as few moves of partitions as possible.

An eager assignor: members own nothing while they join. So each member sends its last assignment as user data.
"""


def _generation_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode the generation for leaders that cannot read it from the subscription (a field since version 2)."""
    writer = Writer()
    writer.int32(generation)
    return b"".join(writer.parts())


def _reported_ownership(member: Subscription) -> Ownership:
    generation = member.generation
    if generation == NO_GENERATION:
        with suppress(Truncated):
            generation = Reader(member.user_data or b"").int32()
    return Ownership(member.owned, generation)


def _assign_cooperative(members: Members, topics: Topics) -> GroupAssignment:
    ownerships = {name: _reported_ownership(member) for name, member in members.items()}
    owner = current_owners(ownerships, topics)
    return {
        member: [partition for partition in partitions if owner.get(partition, member) == member]
        for member, partitions in balanced(members, topics, ownerships).items()
    }


COOPERATIVE_STICKY = Assignor(
    "cooperative-sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    _assign_cooperative,
    cooperative=True,
    user_data=_generation_user_data,
)
"""Sticky, but a partition that another member still owns is not assigned (KIP-429).

Members keep their partitions while they join. So a partition that moves is left out of this assignment: its owner
revokes it and rejoins, and the next assignment gives it to the new owner.
"""


ASSIGNORS = {assignor.name: assignor for assignor in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)}
"""Assignors by their name in JoinGroup."""

_SETTING = "partition.assignment.strategy"
_NAMES = ASSIGNORS | {assignor.java_class: assignor for assignor in ASSIGNORS.values()}


def parse_strategy(strategy: str | Sequence[object]) -> tuple[Assignor, ...]:
    """Parse `partition.assignment.strategy`: assignors in the order of preference.

    `strategy`: names of assignors or of their Java classes, separated by commas; in a sequence also assignors of the
    user.
    Raises `ConfigurationError`: a name is unknown or listed twice, the list is empty, or an object is not an assignor.
    """
    if isinstance(strategy, str):
        return _parse_names(strategy)
    if not strategy:
        raise ConfigurationError(f"{_SETTING} is an empty list; give an assignor.", settings=(_SETTING,))
    assignors: list[Assignor] = []
    for names_or_own in strategy:
        assignors += _parse_names(names_or_own) if isinstance(names_or_own, str) else [OwnAssignor.of(names_or_own)]
    names = [assignor.name for assignor in assignors]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{_SETTING}: a name is listed twice: {', '.join(names)}.", settings=(_SETTING,))
    return tuple(assignors)


def _parse_names(text: str) -> tuple[Assignor, ...]:
    assignors: list[Assignor] = []
    for name in text.split(","):
        assignor = _NAMES.get(name.strip())
        if assignor is None or assignor in assignors:
            wrong = "is not known" if assignor is None else "is listed twice"
            raise ConfigurationError(
                f"{_SETTING} is {text!r}: {name.strip()!r} {wrong}; allowed: some of "
                f"{', '.join(ASSIGNORS)}, or the names of Java's classes ({STICKY.java_class}), separated by commas.",
                settings=(_SETTING,),
            )
        assignors.append(assignor)
    return tuple(assignors)
