"""One classic consumer group: its members, generations, and rounds of JoinGroup and SyncGroup.

The rules are those of Kafka's `ClassicGroup` and `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Body, Refused


class State(Enum):
    """Kafka's names of group states."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass
class Waiting:
    """A request that waits for its reply."""

    reply: Body | None = None

    def __call__(self) -> Body | None:
        """Return the reply, or None while it is pending."""
        return self.reply


@dataclass
class Member:
    """A member; `joining` and `syncing` are set while a reply to JoinGroup or SyncGroup is pending."""

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    expires_s: float
    assignment: bytes = b""
    joining: Waiting | None = None
    syncing: Waiting | None = None

    def answer_join(self, reply: Body) -> None:
        """Reply to the pending JoinGroup, if there is one."""
        if self.joining is not None:
            self.joining.reply, self.joining = reply, None

    def answer_sync(self, reply: Body, now_s: float) -> None:
        """Reply to SyncGroup. Restarts the session timeout, also with an error (Kafka's `propagateAssignment`)."""
        if self.syncing is not None:
            self.syncing.reply, self.syncing = reply, None
            self.expires_s = now_s + self.session_timeout_ms / 1000

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for an assignor."""
        return dict(self.protocols).get(protocol or "", b"")

    def stored(self, protocol: str | None) -> Member:
        """Return the member as Kafka stores it: with its metadata for the group's assignor only, no request pending."""
        protocols = [(protocol, self.metadata(protocol))] if protocol is not None else []
        return replace(self, protocols=protocols, joining=None, syncing=None)


@dataclass(frozen=True)
class GroupMetadata:
    """The newest `GroupMetadataValue` of a group in `__consumer_offsets`, which another coordinator loads."""

    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: tuple[Member, ...] = ()


@dataclass
class Group:
    """A group.

    `pending`: member ids without a JoinGroup yet, and the time of their expiry.
    `round_ends_s`: time at which members that have not joined (or synced) are removed.
    `stored`: the state that another coordinator loads: that after the newest SyncGroup of a leader.
    """

    group_id: str
    initial_delay_s: float = 0.0
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    round_ends_s: float = float("inf")
    first_round_until_s: float | None = None
    unsynced: set[str] = field(default_factory=set)
    stored: GroupMetadata = field(default_factory=GroupMetadata)

    # -- members ------------------------------------------------------------------------------

    def member(self, member_id: str, instance_id: str | None = None) -> Member:
        """Return a member; raise `Refused` if it is unknown or was replaced."""
        if instance_id is not None:
            member = self.static_member(instance_id)
            if member is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            if member.member_id != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[member_id]

    def static_member(self, instance_id: str) -> Member | None:
        """Return the member with a group instance id."""
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def supports(self, protocol_type: str, protocols: Mapping[str, bytes]) -> bool:
        """Return True if a client with these assignors has one in common with all members."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        common = set.intersection(*(set(dict(member.protocols)) for member in self.members.values()))
        return protocol_type == self.protocol_type and bool(common & protocols.keys())

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, *, in_transaction: bool) -> None:
        """Raise `Refused` if the sender may not commit offsets."""
        if generation < 0 and self.state is State.EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.member(member_id, instance_id)
            if generation != self.generation:
                raise Refused(ErrorCode.ILLEGAL_GENERATION)
        elif not in_transaction:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if not in_transaction and self.state is State.COMPLETING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)

    # -- rounds -------------------------------------------------------------------------------

    def rebalance(self, now_s: float) -> None:
        """Start a round unless one has started: all members must join again.

        The first round of an empty group waits for more members, and longer with each new member.
        """
        if self.state is State.PREPARING_REBALANCE:
            if self.first_round_until_s is None:
                self.complete_join(now_s, only_if_all=True)
            else:
                self.round_ends_s = min(now_s + self.initial_delay_s, self.first_round_until_s)
            return
        first = self.state is State.EMPTY and bool(self.members)
        for member in self.members.values():
            member.assignment = b""
            member.answer_sync({"error_code": ErrorCode.REBALANCE_IN_PROGRESS}, now_s)
        self.unsynced.clear()
        self.state = State.PREPARING_REBALANCE
        self.round_ends_s = now_s + (self.initial_delay_s if first else self._rebalance_timeout_s)
        self.first_round_until_s = now_s + self._rebalance_timeout_s if first else None
        self.complete_join(now_s, only_if_all=not first or self.initial_delay_s > 0)

    @property
    def _rebalance_timeout_s(self) -> float:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0) / 1000

    def complete_join(self, now_s: float, *, only_if_all: bool = False) -> None:
        """Start the next generation, with the members that have joined and the static members."""
        late = [member for member in self.members.values() if member.joining is None]
        if only_if_all and (late or self.pending or self.first_round_until_s is not None):
            return
        for member in late:
            if member.instance_id is None:
                del self.members[member.member_id]
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            self.round_ends_s = now_s + self._rebalance_timeout_s
            return
        self.generation += 1
        self.round_ends_s, self.first_round_until_s = float("inf"), None
        if not self.members:
            self.state, self.protocol, self.leader = State.EMPTY, None, None
            self.store()
            return
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = joined[0].member_id
        self.protocol = self.choose_protocol()
        self.state = State.COMPLETING_REBALANCE
        self.round_ends_s = now_s + self._rebalance_timeout_s
        for member in self.members.values():
            self.unsynced.add(member.member_id)
            member.expires_s = now_s + member.session_timeout_ms / 1000
            member.answer_join(self.joined(member))

    def choose_protocol(self) -> str:
        """Return the assignor that most members prefer among the common ones."""
        common = set.intersection(*(set(dict(member.protocols)) for member in self.members.values()))
        votes = [next(name for name, _ in member.protocols if name in common) for member in self.members.values()]
        return max(votes, key=votes.count)

    def joined(self, member: Member, *, skip_assignment: bool = False) -> Body:
        """Return the reply to JoinGroup; the leader's reply has all members."""
        members = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata(self.protocol),
            }
            for member in self.members.values()
        ]
        return {
            "error_code": ErrorCode.NONE,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "skip_assignment": skip_assignment,
            "member_id": member.member_id,
            "members": members if member.member_id == self.leader else [],
        }

    def synced(self, member: Member) -> Body:
        """Return the reply to SyncGroup."""
        return {
            "error_code": ErrorCode.NONE,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def assign(self, assignments: Mapping[str, bytes], now_s: float) -> None:
        """Apply the leader's assignment: the group becomes stable."""
        self.state = State.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            member.answer_sync(self.synced(member), now_s)
        self.store()

    def remove(self, member: Member, now_s: float) -> None:
        """Remove a member; the others must join again."""
        del self.members[member.member_id]
        self.unsynced.discard(member.member_id)
        member.answer_join({"error_code": ErrorCode.UNKNOWN_MEMBER_ID, "member_id": ""})
        self.rebalance(now_s)

    def store(self) -> None:
        """Write the group's present state for another coordinator."""
        members = tuple(member.stored(self.protocol) for member in self.members.values())
        self.stored = GroupMetadata(self.generation, self.protocol, self.leader, members)

    def load(self, now_s: float) -> None:
        """Load the stored state into another coordinator: a round that is not complete is forgotten."""
        for member in self.members.values():
            member.answer_join({"error_code": ErrorCode.NOT_COORDINATOR, "member_id": member.member_id})
            member.answer_sync({"error_code": ErrorCode.NOT_COORDINATOR}, now_s)
        stored = self.stored
        self.generation, self.protocol, self.leader = stored.generation, stored.protocol, stored.leader
        self.members = {
            member.member_id: replace(member, expires_s=now_s + member.session_timeout_ms / 1000)
            for member in stored.members
        }
        self.pending.clear()
        self.unsynced.clear()
        self.round_ends_s, self.first_round_until_s = float("inf"), None
        self.state = State.STABLE if self.members else State.EMPTY

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Apply timeouts of members and rounds."""
        for member_id in [key for key, expires_s in self.pending.items() if expires_s <= now_s]:
            del self.pending[member_id]
            if self.state is State.PREPARING_REBALANCE:
                self.complete_join(now_s, only_if_all=True)
        for member in list(self.members.values()):
            waits = member.joining is not None or member.syncing is not None
            if member.expires_s <= now_s and not waits:
                self.remove(member, now_s)
        if self.round_ends_s > now_s:
            return
        if self.state is State.PREPARING_REBALANCE:
            self.complete_join(now_s)
        elif self.unsynced:
            for member_id in self.unsynced & self.members.keys():
                del self.members[member_id]
            self.rebalance(now_s)
        else:
            self.round_ends_s = float("inf")
