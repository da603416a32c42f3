"""The state of each staged offset, and what a reply to its commit means; without I/O.

`offset_manager` sends the commits, and changes marks under its lock. All times are passed as `now_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from protocol.base.clock import Backoff
from protocol.broker_errors import ErrorCode, GroupEffect, error_row
from protocol.errors import BrokerError, KafkaError, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import TopicPartition

RETRY_INITIAL_MS = 200
RETRY_MAXIMUM_MS = 5_000
# Retry a commit that was refused for a stale generation after this time, if no new generation has followed.
STALE_RETRY_S = 5.0


class CommitResult(Enum):
    """The consequence of a reply for one partition.

    `OffsetManager` applies the results to marks in this order: PARTITION_FAILED, which may become REFUSED; COMMITTED;
    REFUSED; STALE_GENERATION. Then it sends TOO_LARGE in two halves. `CommitReplies` has no REQUEST_FAILED.
    """

    COMMITTED = "nothing more is sent"
    REFUSED = "nothing more is sent; the error is reported"
    STALE_GENERATION = "sent again in the next generation"
    PARTITION_FAILED = "sent again after a back-off of this partition"
    TOO_LARGE = "sent again in a smaller request"
    REQUEST_FAILED = "the whole request is sent again"


# Kafka 4 returns UNKNOWN_SERVER_ERROR for a request that is too large for the coordinator's log.
_RESULTS: dict[int, CommitResult] = {
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: CommitResult.TOO_LARGE,
    ErrorCode.UNKNOWN_SERVER_ERROR: CommitResult.TOO_LARGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: CommitResult.PARTITION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID: CommitResult.PARTITION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: CommitResult.PARTITION_FAILED,
}


def result_of(error: KafkaError | None, member: GroupMember, *, retry_refused: bool) -> CommitResult:
    """Return what follows from a reply to `member`; see `OffsetManager` for `retry_refused`."""
    if error is None:
        return CommitResult.COMMITTED
    if not isinstance(error, BrokerError):
        return CommitResult.REFUSED
    if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and not retry_refused:
        return CommitResult.REFUSED
    if (result := _RESULTS.get(error.code)) is not None:
        return result
    effect = error_row(error.code).group_effect
    if effect is GroupEffect.COMMIT_REFUSED:
        return CommitResult.REFUSED
    if effect is GroupEffect.NOTHING or (retry_refused and member == NO_MEMBER):
        return CommitResult.REQUEST_FAILED
    # Without a generation, the member owns nothing, and its join may take long: refuse.
    waits = error.code == ErrorCode.ILLEGAL_GENERATION and member.generation_id >= 0
    return CommitResult.STALE_GENERATION if waits else CommitResult.REFUSED


@dataclass
class OffsetMark:
    """The staged offset of one partition. A response completes the mark that was sent, not one staged after it."""

    offset: CommittedOffset
    completed_at_s: float | None = None
    refused: KafkaError | None = None
    # The member whose commit was refused for a stale generation; the next member sends the mark at once.
    stale_generation: GroupMember | None = None
    # The last error of this partition alone, and the time of the first one. Copied to the mark that replaces this one.
    last_error: KafkaError | None = None
    failing_since_s: float | None = None
    retry_at_s: float = -math.inf
    backoff: Backoff = field(default_factory=lambda: Backoff(RETRY_INITIAL_MS, RETRY_MAXIMUM_MS))

    @classmethod
    def after(cls, before: OffsetMark | None, offset: CommittedOffset) -> OffsetMark:
        """Return the mark that replaces `before`."""
        mark = cls(offset)
        if before is not None and offset.is_in(before.offset.topic_id):
            mark.last_error, mark.failing_since_s = before.last_error, before.failing_since_s
        return mark

    def is_at(self, offset: CommittedOffset) -> bool:
        """Return True if this is the mark of an offset; unknown topic ids do not differ."""
        return self.offset == offset and offset.is_in(self.offset.topic_id)

    def complete(self, refused: KafkaError | None, now_s: float) -> None:
        """Set the final result of a request; None is success."""
        self.completed_at_s, self.refused = now_s, refused
        if refused is None:
            self.last_error = self.failing_since_s = None

    def was_committed(self, at_s: float) -> bool:
        """Return True if the commit had succeeded before this time."""
        return self.refused is None and self.completed_at_s is not None and self.completed_at_s < at_s

    def fail(self, error: KafkaError | None, now_s: float) -> float:
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

    def reset_if_replaced(self, committed: CommittedOffset | None) -> bool:
        """Compare this mark with the group's offset; if they differ, make it due again and return True."""
        replaced = committed is None or committed.offset != self.offset.offset
        if replaced:
            self.completed_at_s = None
        return replaced


class CommitReplies:
    """The replies to one commit request: partitions and their errors by `CommitResult`.

    `failure` is the error of the whole request, which is sent again.
    """

    def __init__(self, member: GroupMember, *, retry_refused: bool) -> None:
        self.failure: Exception | None = None
        self._member = member
        self._retry_refused = retry_refused
        self._errors: dict[CommitResult, dict[TopicPartition, KafkaError | None]] = {}

    def __getitem__(self, result: CommitResult) -> dict[TopicPartition, KafkaError | None]:
        return self._errors.setdefault(result, {})

    def add(self, key: TopicPartition, error: KafkaError | None) -> KafkaError | None:
        """Take the reply for one partition; return an error for which the whole request is sent again."""
        result = result_of(error, self._member, retry_refused=self._retry_refused)
        if result is CommitResult.REQUEST_FAILED:
            return error
        self[result][key] = error
        return None

    def refuse(self, key: TopicPartition) -> None:
        """Make the failure of a partition final."""
        self[CommitResult.REFUSED][key] = self[CommitResult.PARTITION_FAILED].pop(key)

    def complete(self, failure: Exception | None, sent: Iterable[TopicPartition] = ()) -> None:
        """Take the error of the request, which had the partitions `sent`.

        If it is a `UsageError`, a value cannot be encoded: send them in halves.
        """
        too_large, answered = self[CommitResult.TOO_LARGE], {key for errors in self._errors.values() for key in errors}
        if isinstance(failure, UsageError) and sent:
            too_large.update((key, failure) for key in sent if key not in answered)
        else:
            self.failure = failure
        if len(too_large) == 1:  # cannot be split further
            key, error = too_large.popitem()
            if isinstance(error, BrokerError) and error_row(error.code).group_effect is GroupEffect.NOTHING:
                self.failure = self.failure or error
            else:
                self[CommitResult.REFUSED][key] = error
