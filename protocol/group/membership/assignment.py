"""Values that a member and its owner exchange: subscription, assignment, revocation, and end reasons."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from protocol.broker_errors import ErrorCode
from protocol.checked_values import checked_string
from protocol.cluster.metadata import Metadata
from protocol.errors import KafkaError, UsageError
from protocol.group.member import GroupMember
from protocol.kafka_terms import TopicPartition


@dataclass(frozen=True)
class EndReason:
    """Why a session or an assignment has ended, or why a rebalance is pending: an error or a timeout, as text.

    `settings` are properties that the user may change to avoid it.
    """

    text: str
    settings: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.text

    @property
    def error(self) -> KafkaError:
        """Return this reason as a `KafkaError`."""
        return KafkaError(self.text, settings=self.settings)

    @classmethod
    def of(cls, error: KafkaError) -> EndReason:
        """Return the reason for an error."""
        return cls(str(error), error.settings)


@dataclass(frozen=True)
class TopicSubscription:
    """The topics that a member subscribes to: by name, or by a pattern.

    `names`: they need not exist yet.
    `pattern`: matches whole names; internal topics never match.
    `re2`: the same pattern in RE2 syntax, which brokers match (KIP-848). Used by the consumer protocol only; without
    it, and in the classic protocol, each member matches `pattern`.
    """

    names: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    re2: str | None = None

    def __post_init__(self) -> None:
        for name in self.names:
            checked_string("topic", name)
        for field, text in ("pattern", self.pattern and self.pattern.pattern), ("re2", self.re2):
            if text is not None:
                checked_string(field, text)

    @classmethod
    def of(cls, topics: Collection[str] | re.Pattern[str], re2: str | None = None) -> TopicSubscription:
        """Return the subscription to a caller's topics; raise `UsageError` for a str, a collection of letters."""
        if isinstance(topics, re.Pattern):
            return cls(pattern=topics, re2=re2)
        if isinstance(topics, str):
            raise UsageError(f"topics is a str; pass a list: [{topics!r}]")
        return cls(frozenset(topics))

    def topics(self, cluster: Metadata) -> frozenset[str]:
        """Return the subscribed topics in the metadata of all topics."""
        if self.pattern is None:
            return self.names
        return frozenset(
            name
            for name in available_topics(cluster)
            if not cluster.topics[name].is_internal and self.pattern.fullmatch(name)
        )


def available_topics(cluster: Metadata) -> frozenset[str]:
    """Return the topics without an error in these metadata."""
    return frozenset(name for name, topic in cluster.topics.items() if topic.error_code == ErrorCode.NONE)


@dataclass(frozen=True)
class Revocation:
    """Partitions that the owner must release now.

    `lost`: other members may own them already, and commits for them are refused. Otherwise the member owns them until
    its owner has released them, and processed offsets should be committed before.
    """

    partitions: frozenset[TopicPartition]
    lost: bool
    reason: EndReason


@dataclass(frozen=True)
class Assignment:
    """The partitions that the owner has from now on, and the member that commits.

    `owned`: all assigned partitions; may be empty.
    `added`: those of `owned` that are new to the owner.
    `pending_reason`: None if the assignment is complete. Else the reason of the delay, such as other members that have
    not joined yet, or a coordinator that does not respond; the member's thread continues without the owner.
    """

    member: GroupMember
    owned: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    pending_reason: EndReason | None = None
