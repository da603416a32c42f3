"""What the leader of a classic group does for all: it assigns, and sees when topics have other partitions than then.

Pure. Part of a `ClassicMember`, from the JoinGroup that made it the leader until it joins again.
"""

from __future__ import annotations

from typing import Any

from protocol.cluster.metadata import Metadata
from protocol.errors import ProtocolError
from protocol.group.assignors.assignor import Assignor, Subscription, Topics
from protocol.group.assignors.subscription_codec import decode_subscription, encode_assignment
from protocol.group.membership.topic_subscription import available_topics


class GroupLeader:
    """`members`: the rows of the reply to JoinGroup. Raises `Corrupt` or `Truncated` for what one of them has sent."""

    def __init__(self, assignor: Assignor, members: list[dict[str, Any]]) -> None:
        self._assignor = assignor
        self._members = {row["member_id"]: _subscription(row) for row in members}
        self._partitions: Topics | None = None

    @property
    def topics(self) -> frozenset[str]:
        """All that a member subscribes to."""
        return frozenset[str]().union(*(member.topics for member in self._members.values()))

    def assign(self, cluster: Metadata) -> dict[str, bytes]:
        """What each member gets, as it stands in SyncGroup."""
        self._partitions = self._partitions_in(cluster)
        assigned = self._assignor.assign(self._members, self._partitions)
        return {name: encode_assignment(partitions) for name, partitions in assigned.items()}

    def changed(self, cluster: Metadata) -> str | None:
        """A topic that has other partitions than when they were assigned, by whichever leader."""
        before, now = self._partitions, self._partitions_in(cluster)
        if before is None:
            self._partitions = before = now
        return next((name for name in sorted(self.topics) if len(before.get(name, ())) != len(now.get(name, ()))), None)

    def _partitions_in(self, cluster: Metadata) -> Topics:
        racks = {node_id: broker.rack for node_id, broker in cluster.brokers.items()}
        return {
            name: [
                frozenset(rack for node_id in partition.replicas if (rack := racks.get(node_id)))
                for partition in cluster.topics[name].partitions.values()
            ]
            for name in self.topics & available_topics(cluster)
        }


def _subscription(row: dict[str, Any]) -> Subscription:
    try:
        return decode_subscription(row["metadata"], row["group_instance_id"])
    except ProtocolError as error:
        raise type(error)(f"what member {row['member_id']} says of its subscription: {error}") from error
