"""How long brokers must say that they do not know a topic or a partition before that is believed.

A broker that has just started does not know its topics yet, nor does every one know a topic that was just created. So
one answer proves nothing, and nor do two with a silence in between: the cluster may have been away, and the second be
the answer of a broker that has just started. Pure: takes `now`. Used by `dispatch`, and by who reads ranges in a loop
of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.errors import BrokerError, KafkaError

TRANSIENT_UNKNOWN_MS = 10_000
SUSPECT_DELETED_S = 0.5
"""After this time without a topic that was seen before, several brokers get the question at once."""
_LONGEST_SILENCE_S = 3.0


def is_unknown_topic(error: KafkaError) -> bool:
    """Whether a broker says that there is no such topic or partition: for a moment, or because it was deleted."""
    return isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass
class UnknownTopicPatience:
    """Is over when brokers have said for `limit_s`, again and again and nothing else, that something is unknown.

    Anything else that a broker says begins the time anew, and so does a silence: nobody answers for three seconds.

    Attributes
    ----------
    began_s : since when every answer was that, whatever silences lie in between; None: the last one was another one.
    """

    limit_s: float = field(default_factory=lambda: TRANSIENT_UNKNOWN_MS / 1000)
    began_s: float | None = None
    _since_s: dict[Hashable, float] = field(default_factory=dict)
    _heard_s: float = 0.0

    def hear(self, error: KafkaError | None, now_s: float) -> None:
        """Takes in what came of a question: an error, None for none. Only what a broker says counts as an answer."""
        if error is not None and not isinstance(error, BrokerError):
            return
        unknown = _unknown(error) if error is not None and is_unknown_topic(error) else ()
        before = self._since_s if now_s - self._heard_s <= _LONGEST_SILENCE_S else {}
        self._since_s = {what: before.get(what, now_s) for what in unknown}
        self._heard_s = now_s
        if not unknown:
            self.began_s = None
        elif self.began_s is None:
            self.began_s = now_s

    @property
    def over(self) -> bool:
        """Whether all that the last answer did not know has been unknown for long enough."""
        return bool(self._since_s) and self._heard_s - max(self._since_s.values()) >= self.limit_s

    def suspects_deleted(self, now_s: float) -> bool:
        """Return True once a topic has been unknown for `SUSPECT_DELETED_S`."""
        return self.began_s is not None and now_s - self.began_s >= SUSPECT_DELETED_S

    @classmethod
    def before_skipping(cls) -> UnknownTopicPatience:
        """Longer than where a topic is only looked for: what is skipped does not come back."""
        return cls(3 * TRANSIENT_UNKNOWN_MS / 1000)

    def prolonged(self, deadline: Deadline) -> Deadline:
        """For a call that is to tell a deleted topic from a cluster that comes and goes."""
        return Deadline(max(deadline.at_s, deadline.clock.now_s() + self.longest_s), deadline.clock)

    @property
    def longest_s(self) -> float:
        """Who has less time than that, all in all, cannot tell a deleted topic from a cluster that comes and goes."""
        return 4 * self.limit_s

    def wait_s(self, backoff_s: float) -> float:
        """How long to wait before the next question: a long back-off would itself be a silence."""
        return backoff_s if self.began_s is None else min(backoff_s, _LONGEST_SILENCE_S / 2)


def _unknown(error: BrokerError) -> tuple[Hashable, ...]:
    context = error.context
    return tuple(context.get("unknown") or [(context.get("topic"), context.get("partition"))])
