"""Values that a member and its owner exchange: subscription, revocation, assignment, and reasons for an end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Metadata
from protocol.errors import KafkaError
from protocol.group.member import GroupMember
from protocol.kafka_terms import TopicPartition


@dataclass(frozen=True)
class EndReason:
    """Which error or deadline it was, in words; `settings`: those among them that whoever reads it may set."""

    words: str
    settings: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.words

    @property
    def error(self) -> KafkaError:
        """For whom it is one."""
        return KafkaError(self.words, settings=self.settings)

    @classmethod
    def of(cls, error: KafkaError) -> EndReason:
        return cls(str(error), error.settings)


@dataclass(frozen=True)
class TopicSubscription:
    """`names`, or those that `pattern` matches as a whole; it never matches Kafka's internal topics.

    `re2`: the same pattern in the syntax of brokers (RE2). The consumer protocol has them match it (KIP-848), where it
    is given; without it, and in the classic protocol, each member does.
    """

    names: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    re2: str | None = None

    def topics(self, cluster: Metadata) -> frozenset[str]:
        """Those of a cluster, in which all topics are; names are subscribed to also if there is no such topic yet."""
        if self.pattern is None:
            return self.names
        return frozenset(
            name
            for name in available_topics(cluster)
            if not cluster.topics[name].is_internal and self.pattern.fullmatch(name)
        )


def available_topics(cluster: Metadata) -> frozenset[str]:
    """The topics that can be read just now."""
    return frozenset(name for name, topic in cluster.topics.items() if topic.error_code == ErrorCode.NONE)


@dataclass(frozen=True)
class Revocation:
    """Partitions that the owner has to give up now.

    `lost`: they may be another member's already, and nothing can be committed for them. Else the member has them until
    its owner has given them up, and what is complete is to be committed before.
    """

    partitions: frozenset[TopicPartition]
    lost: bool
    reason: EndReason


@dataclass(frozen=True)
class Assignment:
    """What the owner has from now on, also if that is nothing.

    `member`: who commits. `added`: those of `owned` that the owner did not have before. `pending_reason`: None, or why
    more is still to come: other members have not joined, or the coordinator does not answer.
    It goes on without the owner.
    """

    member: GroupMember
    owned: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    pending_reason: EndReason | None = None
