"""The one retry loop: try, look the failure up in the error table, expire what it says, back off, try again.

Used by `client` and, through it, by everything above. An attempt is a function that sends what is still to be
sent and raises `BrokerError` or `TransportError` for what failed; it keeps its own account of what is done.
Lower layers never sleep and never try again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from protocol.broker_errors import BY_CODE, Refresh
from protocol.clock import Backoff, Deadline
from protocol.cluster.unknown_topic import UnknownTopicPatience
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, TopicUnknown, TransportError

log = logging.getLogger(__name__)

# As Java's client waits for a transaction that is being ended.
_SOON_S = 0.02

T = TypeVar("T")


def is_retriable(error: KafkaError) -> bool:
    """Whether the same request may succeed later: transport failures, and the codes the table marks so."""
    if isinstance(error, BrokerError):
        row = BY_CODE.get(error.code)
        return row is not None and row.retriable
    return isinstance(error, TransportError)


def _wait_s(error: KafkaError, attempts: int, backoff_s: float) -> float:
    """What takes brokers some milliseconds is looked at sooner in the first attempts."""
    row = BY_CODE.get(error.code) if isinstance(error, BrokerError) else None
    return min(backoff_s, _SOON_S * attempts) if row is not None and row.soon else backoff_s


def what_to_refresh(error: KafkaError) -> Refresh:
    """A broker that cannot be reached may have lost its partitions to another one: look again."""
    if isinstance(error, BrokerError):
        row = BY_CODE.get(error.code)
        return row.refresh if row is not None else Refresh.NONE
    return Refresh.METADATA


def retrying(
    what: str,
    attempt: Callable[[], T],
    *,
    deadline: Deadline,
    backoff: Backoff,
    refresh: Callable[[KafkaError, Refresh], None],
    max_attempts: int | None = None,
    unknown_topic_s: float | None = None,
) -> T:
    """Runs `attempt` until it returns, fails for good, or the deadline passes.

    Raises the attempt's own error when it is not retriable; `DeadlineExceeded`, with the last error as its cause,
    when time or attempts run out; `TopicUnknown` when before that brokers have not known a topic or a partition for
    `unknown_topic_s`, by default 10 s (`UnknownTopicPatience`). A `TopicUnknown` of a call within `attempt` is retried:
    what was looked up before is out of date. `what` says in words what was tried ("ListOffsets of orders-3").
    """
    started_s = deadline.clock.now_s()
    unknown = UnknownTopicPatience() if unknown_topic_s is None else UnknownTopicPatience(unknown_topic_s)
    attempts = 0
    while True:
        attempts += 1
        try:
            return attempt()
        except KafkaError as error:
            # Also by who gives up: else its next call would begin with what has just failed.
            refresh(error, what_to_refresh(error))
            if not is_retriable(error) or (isinstance(error, DeadlineExceeded) and not isinstance(error, TopicUnknown)):
                raise
            unknown.hear(error, deadline.clock.now_s())
            if unknown.over:
                raise TopicUnknown(f"{what}: {error}") from error
            wait_s = unknown.wait_s(_wait_s(error, attempts, backoff.next_s()))
            log.debug("%s: attempt %d failed: %s", what, attempts, error)
            # A last try at the deadline itself would have no time to be answered.
            if wait_s >= deadline.remaining_s() or (max_attempts is not None and attempts >= max_attempts):
                spent_s = deadline.clock.now_s() - started_s
                raise DeadlineExceeded(
                    f"{what} did not succeed in {spent_s:.1f} s and {attempts} attempt(s); the last one: {error}",
                    attempts=attempts,
                ) from error
            deadline.clock.sleep_s(wait_s)
