"""Decide when UNKNOWN_TOPIC_OR_PARTITION means a missing topic. Sans-IO.

A broker that has just started does not know its topics yet, and not every broker knows a new topic yet. One reply
therefore proves nothing. Neither do two replies with silence in between: the brokers may have been restarted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import BrokerError, KafkaError

TRANSIENT_UNKNOWN_MS = 10_000
SUSPECT_DELETED_S = 0.5
"""After a known topic has been unknown for this time, the client sends Metadata requests to several brokers."""
_MAX_SILENCE_S = 3.0


def is_unknown_topic(error: KafkaError) -> bool:
    """Return True if a broker does not know the topic or partition, temporarily or because it was deleted."""
    return isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def unknown_topics_error(topics: Sequence[str]) -> BrokerError:
    """Return the error of topics that brokers do not know; `UnknownTopicTimer` measures the time of each."""
    return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topics[0]}", unknown=tuple(topics))


@dataclass
class UnknownTopicTimer:
    """Expires after brokers have replied for `limit_s`, without interruption, that a topic or partition is unknown.

    Any other reply restarts the time, and so do three seconds without a reply.

    `began_s`: time of the first of the uninterrupted "unknown" replies, regardless of silence between them; None if the
    last reply was different.
    """

    limit_s: float = field(default_factory=lambda: TRANSIENT_UNKNOWN_MS / 1000)
    began_s: float | None = None
    _since_s: dict[Hashable, float] = field(default_factory=dict)
    _heard_s: float = 0.0

    def record(self, error: KafkaError | None, now_s: float) -> None:
        """Record the result of a request: an error, or None for success. Transport errors are not replies.

        The error is about the topics of `unknown_topics_error`, or about the topic and partition in its context.
        """
        if error is not None and not isinstance(error, BrokerError):
            return
        unknown = _unknown(error) if error is not None and is_unknown_topic(error) else ()
        before = self._since_s if now_s - self._heard_s <= _MAX_SILENCE_S else {}
        self._since_s = {topic: before.get(topic, now_s) for topic in unknown}
        self._heard_s = now_s
        if not unknown:
            self.began_s = None
        elif self.began_s is None:
            self.began_s = now_s

    @property
    def expired(self) -> bool:
        """True if every topic and partition unknown to the last reply has been unknown for `limit_s`."""
        return bool(self._since_s) and self._heard_s - max(self._since_s.values()) >= self.limit_s

    def suspects_deleted(self, now_s: float) -> bool:
        """Return True once a topic has been unknown for `SUSPECT_DELETED_S`."""
        return self.began_s is not None and now_s - self.began_s >= SUSPECT_DELETED_S

    @classmethod
    def before_skipping(cls) -> UnknownTopicTimer:
        """Return a timer with a longer limit, for callers that skip the topic permanently."""
        return cls(3 * TRANSIENT_UNKNOWN_MS / 1000)

    def prolonged(self, deadline: Deadline) -> Deadline:
        """Return a deadline long enough to distinguish a deleted topic from brokers that restart repeatedly."""
        return Deadline(max(deadline.at_s, deadline.clock.now_s() + self.longest_s), deadline.clock)

    @property
    def longest_s(self) -> float:
        """The time that a call needs to distinguish a deleted topic from brokers that restart repeatedly."""
        return 4 * self.limit_s

    def wait_s(self, backoff_s: float) -> float:
        """Return the wait before the next request, short enough not to count as silence."""
        return backoff_s if self.began_s is None else min(backoff_s, _MAX_SILENCE_S / 2)


def _unknown(error: BrokerError) -> tuple[Hashable, ...]:
    context = error.context
    return tuple(context.get("unknown") or [(context.get("topic"), context.get("partition"))])
