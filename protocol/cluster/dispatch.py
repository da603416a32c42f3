"""The blocking retry loop: try, look up the error, refresh outdated metadata, back off, try again.

`client` uses it for all blocking calls; lower layers never sleep or retry. An attempt is a function that sends the
remaining work and raises `BrokerError` or `TransportError` for failures; it records completed work itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from protocol.base.clock import Backoff, Deadline
from protocol.broker_errors import BY_CODE, Refresh
from protocol.cluster.unknown_topic import UnknownTopicTimer
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, TopicUnknown, TransportError

log = logging.getLogger(__name__)

# Java's client uses the same time for a transaction that is being completed.
_SOON_S = 0.02

T = TypeVar("T")


def is_retriable(error: KafkaError) -> bool:
    """Return True for transport failures and retriable error codes: the same request may succeed later."""
    if isinstance(error, BrokerError):
        row = BY_CODE.get(error.code)
        return row is not None and row.retriable
    return isinstance(error, TransportError)


def _wait_s(error: KafkaError, attempts: int, backoff_s: float) -> float:
    """Return the wait before the next attempt; shorter at first for errors that brokers resolve in milliseconds."""
    row = BY_CODE.get(error.code) if isinstance(error, BrokerError) else None
    return min(backoff_s, _SOON_S * attempts) if row is not None and row.soon else backoff_s


def what_to_refresh(error: KafkaError) -> Refresh:
    """Return the state to refresh. Transport failures refresh metadata: the partitions may have another leader."""
    if isinstance(error, BrokerError):
        row = BY_CODE.get(error.code)
        return row.refresh if row is not None else Refresh.NONE
    return Refresh.METADATA


def retrying(
    operation: str,
    attempt: Callable[[], T],
    *,
    deadline: Deadline,
    backoff: Backoff,
    refresh: Callable[[KafkaError, Refresh], None],
    max_attempts: int | None = None,
    unknown_topic_s: float | None = None,
) -> T:
    """Call `attempt` until it returns, fails with a non-retriable error, or the deadline passes.

    `operation`: name of the operation in messages, such as "ListOffsets of orders-3".
    `attempt`: one attempt. A `TopicUnknown` from within is retried, since its metadata was outdated.
    `refresh`: called after each failure with the error and the state to refresh.
    `unknown_topic_s`: give up with `TopicUnknown` after brokers have not known a topic or partition for this time
    (`UnknownTopicTimer`).
    Raises `KafkaError`: the attempt's own error, if it is not retriable. `DeadlineExceeded`: time or attempts ran out;
    the cause is the last error. `TopicUnknown`: see `unknown_topic_s`.
    """
    started_s = deadline.clock.now_s()
    unknown = UnknownTopicTimer() if unknown_topic_s is None else UnknownTopicTimer(unknown_topic_s)
    attempts = 0
    while True:
        attempts += 1
        try:
            return attempt()
        except KafkaError as error:
            # Also before giving up: otherwise the next call would start with the outdated state.
            refresh(error, what_to_refresh(error))
            if not is_retriable(error) or (isinstance(error, DeadlineExceeded) and not isinstance(error, TopicUnknown)):
                raise
            unknown.record(error, deadline.clock.now_s())
            if unknown.expired:
                raise TopicUnknown(f"{operation}: {error}") from error
            wait_s = unknown.wait_s(_wait_s(error, attempts, backoff.next_s()))
            log.debug("%s: attempt %d failed: %s", operation, attempts, error)
            # A last attempt at the deadline would have no time for a reply.
            gives_up = wait_s >= deadline.remaining_s() or (max_attempts is not None and attempts >= max_attempts)
            if not gives_up:
                deadline.clock.sleep_s(wait_s)
            if gives_up or deadline.passed:  # the clock may have been stopped meanwhile
                spent_s = deadline.clock.now_s() - started_s
                raise DeadlineExceeded(
                    f"{operation} did not succeed in {spent_s:.1f} s and {attempts} attempt(s); the last one: {error}",
                    attempts=attempts,
                ) from error
