"""Roundrobin: partitions are dealt one by one, each to the next member that has subscribed to its topic."""

from __future__ import annotations

from collections import defaultdict, deque

from protocol.group.assignors.assignor import Assignor, GroupAssignment, Members, Topics, in_order


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
