"""Assignors of the user's own: Java's `ConsumerPartitionAssignor`, sarama's `BalanceStrategy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from protocol.base.listing import listed
from protocol.errors import ConfigurationError, UsageError
from protocol.group.assignors.assignor import Assignor, MemberAssignment, Members, Topics
from protocol.group.member import ConsumerGroupMetadata
from protocol.kafka_terms import TopicPartition

T = TypeVar("T")

_SETTING = "partition.assignment.strategy"


class PartitionAssignor:
    """An assignor of the classic protocol for `partition.assignment.strategy`; subclass it and override `assign`.

    All methods are called in a thread of the member, one at a time, without a lock. The member sends no heartbeats
    until they return: they must do so within `session.timeout.ms`. A call of the consumer is refused while another
    thread is in one, except `metrics` and `wakeup`. An exception of `user_data` or `assign` is raised by `poll`, and
    the next `poll` joins again. One of `on_assignment` is logged.

    Attributes
    ----------
    name : str
        Name in JoinGroup. All members of the group need an assignor with this name, or another one in common.
    cooperative : bool
        Members keep their partitions while they join (KIP-429), if all of their assignors are cooperative. `assign`
        must not assign a partition that another member still owns: its owner revokes it, and joins again.
    """

    name: str = ""
    cooperative: bool = False

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        """Return bytes of this member for the leader, with each join: `Subscription.user_data` in `assign`."""
        return None

    def assign(
        self, topics: Topics, subscriptions: Members
    ) -> Mapping[str, MemberAssignment | Iterable[TopicPartition]]:
        """Return each member's partitions. Called in the leader only.

        Parameters
        ----------
        topics : mapping of str to sequence of frozenset of str
            Subscribed topics that exist: for each partition, from 0 on, the racks of its replicas.
        subscriptions : mapping of str to Subscription
            By member id: `topics`, `owned`, `generation`, `rack`, `user_data`, `instance_id`.

        Returns
        -------
        mapping of str to MemberAssignment or iterable of (str, int)
            By member id. Members may be left out.
        """
        raise NotImplementedError

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Handle the assignment of this member in a new generation, before the consumer gets it."""


@dataclass(frozen=True)
class OwnAssignor(Assignor):
    """Adapts a `PartitionAssignor`."""

    own: PartitionAssignor | None = None

    @classmethod
    def of(cls, own: object) -> OwnAssignor:
        """Return the adapter of a user's assignor; raise `ConfigurationError` if it is none or has no name."""
        if not isinstance(own, PartitionAssignor) or not own.name or not isinstance(own.name, str):
            raise ConfigurationError(
                f"{_SETTING}: {own!r} is not an assignor; give names, or PartitionAssignor objects with a name.",
                settings=(_SETTING,),
            )
        return cls(own.name, own.name, lambda members, topics: {}, own.cooperative, own=own)

    def join_data(self, topics: frozenset[str], last: Iterable[TopicPartition], generation: int) -> bytes | None:
        """Return the user data for JoinGroup; raise `UsageError` if the user's method fails."""
        assert self.own is not None
        own = self.own
        data = self._call("user_data", lambda: own.user_data(topics))
        if not isinstance(data, bytes | None):
            raise UsageError(f"assignor {self.name}: user_data returned {type(data).__name__}; it must return bytes")
        return data

    def assign_with_data(self, members: Members, topics: Topics) -> dict[str, MemberAssignment]:
        """Return the assignment of each member; raise `UsageError` if the user's method fails."""
        assert self.own is not None
        own = self.own
        assignments = self._call("assign", lambda: own.assign(topics, members))
        return self._call("the result of assign", lambda: _checked(assignments, members))

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Pass the assignment of this member to the user's assignor."""
        assert self.own is not None
        self.own.on_assignment(assignment, metadata)

    def _call(self, method: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise UsageError(f"assignor {self.name}: {method} has failed: {error!r}", settings=(_SETTING,)) from error


def _checked(
    assignments: Mapping[str, MemberAssignment | Iterable[TopicPartition]], members: Members
) -> dict[str, MemberAssignment]:
    if unknown := assignments.keys() - members.keys():
        raise ValueError(f"the group has no members {listed(sorted(unknown))}")
    checked: dict[str, MemberAssignment] = {}
    for member in members:
        assigned = assignments.get(member, ())
        partitions, data = assigned if isinstance(assigned, MemberAssignment) else (assigned, None)
        checked[member] = MemberAssignment(sorted((str(topic), int(number)) for topic, number in partitions), data)
    return checked
