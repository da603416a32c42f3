"""What both sticky assignors have in common: two algorithms, as members have subscribed alike or not."""

from __future__ import annotations

from protocol.group.assignors.assignor import Assignment, Members, Topics
from protocol.group.assignors.claims import Claims
from protocol.group.assignors.equal_shares import equal_shares
from protocol.group.assignors.least_loaded import least_loaded


def balanced(members: Members, topics: Topics, claims: Claims) -> Assignment:
    """Balanced first, then sticky to `claims`, what members had before."""
    alike = len({member.topics for member in members.values()}) == 1
    place = equal_shares if alike else least_loaded
    return place(members, topics, claims)
