"""Which topics a member subscribes to: by name, or all whose names match. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Metadata


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
