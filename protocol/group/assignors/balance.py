"""The common part of both sticky assignors: it selects the algorithm by whether all subscriptions are equal."""

from __future__ import annotations

from protocol.group.assignors.assignor import GroupAssignment, Members, Topics
from protocol.group.assignors.equal_shares import equal_shares
from protocol.group.assignors.least_loaded import least_loaded
from protocol.group.assignors.ownership import Ownerships


def balanced(members: Members, topics: Topics, ownerships: Ownerships) -> GroupAssignment:
    """Return a balanced assignment that, with second priority, keeps the partitions in `ownerships`."""
    alike = len({member.topics for member in members.values()}) == 1
    place = equal_shares if alike else least_loaded
    return place(members, topics, ownerships)
