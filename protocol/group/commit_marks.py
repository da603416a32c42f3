"""The state of each staged offset, and what a reply to its commit means; without I/O.

`offset_manager` sends the commits. All times are passed as `now_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.broker_errors import ErrorCode, GroupEffect, error_row
from protocol.clock import Backoff
from protocol.cluster.metadata import is_another_topic
from protocol.errors import BrokerError, KafkaError, UsageError
from protocol.group.committed_offsets import CommittedOffset
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition

RETRY_INITIAL_MS = 200
RETRY_MAXIMUM_MS = 5_000
# Retry a commit that was refused for a stale generation after this time, if no new generation has followed.
STALE_RETRY_S = 5.0
# Fetch the group's offset again after this time, if it could not be known whether an older one has replaced it.
CHECK_AGAIN_S = 5.0
# Errors of a request that is too large for the coordinator's log; Kafka 4 returns UNKNOWN_SERVER_ERROR.
_TOO_LARGE_ERRORS = (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR)
# Errors of one partition; all other retriable errors concern the group or its coordinator.
_PARTITION_ERRORS = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


@dataclass
class OffsetMark:
    """The staged offset of one partition. A response completes the mark that was sent, not one staged after it."""

    offset: CommittedOffset
    # The topic to which the offset belongs; zeros if unknown.
    topic_id: bytes = NO_TOPIC_ID
    completed_at_s: float | None = None
    refused: KafkaError | None = None
    # The member whose commit was refused for a stale generation; the next member sends the mark at once.
    stale_generation: GroupMember | None = None
    # The last error of this partition alone, and the time of the first one; both also of earlier marks.
    last_error: BrokerError | None = None
    failing_since_s: float | None = None
    # Offsets of requests without a reply, which the coordinator may still receive until this time.
    unanswered: frozenset[CommittedOffset] = frozenset()
    unanswered_until_s: float = -math.inf
    retry_at_s: float = -math.inf
    backoff: Backoff = field(default_factory=lambda: Backoff(RETRY_INITIAL_MS, RETRY_MAXIMUM_MS))

    @classmethod
    def after(cls, before: OffsetMark | None, offset: CommittedOffset, topic_id: bytes) -> OffsetMark:
        """Return the mark that replaces `before`."""
        mark = cls(offset, topic_id)
        if before is not None and not is_another_topic(topic_id, before.topic_id):
            mark.last_error, mark.failing_since_s = before.last_error, before.failing_since_s
            mark.unanswered, mark.unanswered_until_s = before.unanswered, before.unanswered_until_s
        return mark

    def complete(self, refused: KafkaError | None, now_s: float, sent_at_s: float) -> None:
        """Set the final result of a request that was sent at `sent_at_s`; None is success."""
        self.completed_at_s, self.refused = now_s, refused
        if refused is None:
            self.last_error = self.failing_since_s = None
        if sent_at_s >= self.unanswered_until_s:
            self.unanswered = frozenset()

    def was_committed(self, at_s: float) -> bool:
        """Return True if the commit had succeeded before this time."""
        return self.refused is None and self.completed_at_s is not None and self.completed_at_s < at_s

    def fail(self, error: BrokerError, now_s: float) -> float:
        """Record an error of this partition alone; return the time in seconds since the first one."""
        self.last_error, self.stale_generation = error, None
        self.failing_since_s = now_s if self.failing_since_s is None else self.failing_since_s
        self.retry_at_s = now_s + self.backoff.next_s()
        return now_s - self.failing_since_s

    def refuse_generation(self, member: GroupMember, now_s: float) -> None:
        """Record that this member's generation is stale."""
        self.stale_generation, self.retry_at_s = member, now_s + STALE_RETRY_S

    def due_at_s(self, member: GroupMember, refresh_s: float) -> float:
        """Return the time from which this member sends the mark; infinity for one that was refused."""
        retry_s = -math.inf if self.stale_generation not in (None, member) else self.retry_at_s
        if self.completed_at_s is None:
            return retry_s
        if self.refused is not None:
            return math.inf
        return max(retry_s, self.completed_at_s + refresh_s)

    @property
    def older(self) -> frozenset[CommittedOffset]:
        """The unanswered offsets that may have replaced this one after its commit."""
        if not self.unanswered or self.completed_at_s is None or self.refused is not None:
            return frozenset()
        return self.unanswered - {self.offset}

    def doubt(self, sent: CommittedOffset, until_s: float) -> None:
        """Record a request without a reply, which the coordinator may receive until this time."""
        self.unanswered |= {sent}
        self.unanswered_until_s = until_s

    @property
    def check_at_s(self) -> float:
        """Time of the check whether an older offset has replaced this one; infinity if none can have."""
        return self.unanswered_until_s if self.older else math.inf

    def check_later(self, now_s: float) -> None:
        """Postpone the check, since the group's offset is not known."""
        self.unanswered_until_s = now_s + CHECK_AGAIN_S

    def was_set_back(self, found: CommittedOffset | None) -> bool:
        """End the doubt; return True, and make this mark due, if the group's offset is an older, unanswered one."""
        set_back = found in self.older
        if set_back:
            self.completed_at_s = None
        self.unanswered = frozenset()
        return set_back

    def was_replaced(self, found: CommittedOffset | None) -> bool:
        """Return True, and make this mark due, if the group's offset is not the committed one."""
        replaced = found is None or found.offset != self.offset.offset
        if replaced:
            self.completed_at_s = None
        return replaced


@dataclass
class CommitReplies:
    """The replies to one commit request, by partition.

    Attributes
    ----------
    member : GroupMember
        The member that commits.
    retry_refused : bool
        See `OffsetManager`.
    sent_at_s : float
        Time of the first request.
    final : dict
        Results that are not retried in this generation; None is success.
    partition_errors : dict
        Retriable errors of single partitions.
    to_split : dict
        Errors of a request that the coordinator's log cannot hold, or that cannot be encoded; it is sent in halves.
    failure : Exception or None
        The error of the whole request, which is retried.
    in_flight : bool
        The last request has no reply yet.
    unanswered : bool
        An attempt had no reply: the coordinator may receive it later.
    """

    member: GroupMember
    retry_refused: bool
    sent_at_s: float
    final: dict[TopicPartition, KafkaError | None] = field(default_factory=dict)
    partition_errors: dict[TopicPartition, BrokerError] = field(default_factory=dict)
    to_split: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    failure: Exception | None = None
    in_flight: bool = False
    unanswered: bool = False

    def begin_attempt(self) -> None:
        """Record that a request is sent, also if the one before had no reply."""
        self.unanswered, self.in_flight = self.unanswered or self.in_flight, True

    def add(self, key: TopicPartition, error: BrokerError | None) -> BrokerError | None:
        """Sort the reply for one partition; return an error for which the whole request is retried, else None."""
        if error is not None and error.code in _TOO_LARGE_ERRORS:
            self.to_split[key] = error
        elif error is None or self._is_final(error):
            self.final[key] = error
        elif error.code in _PARTITION_ERRORS:
            self.partition_errors[key] = error
        else:
            return error
        return None

    def end(self) -> None:
        """Record that nothing more is sent."""
        self.unanswered |= self.in_flight
        if len(self.to_split) != 1:
            return
        key, error = self.to_split.popitem()  # cannot be split further
        if self._is_final(error):
            self.final[key] = error
        else:
            self.failure = self.failure or error

    def cannot_be_encoded(self, partitions: Iterable[TopicPartition], error: UsageError) -> None:
        """Record that a request was not sent: a retry would fail again."""
        self.in_flight = False
        answered = self.final.keys() | self.partition_errors.keys()
        self.to_split.update((key, error) for key in partitions if key not in answered)

    def _is_final(self, error: KafkaError) -> bool:
        """Return True if the commit is not retried after this error."""
        if not isinstance(error, BrokerError):
            return True
        if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return not self.retry_refused
        effect = error_row(error.code).group_effect
        retries_refused = self.retry_refused and self.member == NO_MEMBER
        return effect is GroupEffect.COMMIT_REFUSED or (effect is not GroupEffect.NOTHING and not retries_refused)


def loses_assignment(error: KafkaError) -> bool:
    """Return True if the member has lost its partitions."""
    return isinstance(error, BrokerError) and error_row(error.code).group_effect is GroupEffect.ASSIGNMENT_LOST


def is_stale_generation(error: KafkaError, member: GroupMember) -> bool:
    """Return True if the commit waits for the next generation, set by `OffsetManager.set_member`.

    A member without a generation owns no partitions, so its commit is not retried.
    """
    is_illegal = isinstance(error, BrokerError) and error.code == ErrorCode.ILLEGAL_GENERATION
    return is_illegal and member.generation_id >= 0
