"""Failures of the user's handler: how often a record is retried, and the headers of a dead letter. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.base.clock import Backoff
from protocol.errors import UsageError
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.producer.messages import Headers

PREFIX = "__connect.errors."
"""Prefix of the headers that describe a dead letter, as in Kafka Connect."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often, how long and after which exceptions a record is handled again.

    Attributes
    ----------
    retries : int
        Number of attempts after the first one.
    timeout_ms : float or None
        No retry later than this after the first failure; None: no limit.
    backoff_ms : float
        Wait before the first retry; it doubles with each retry, with 20 % jitter.
    backoff_max_ms : float
        The longest wait, before jitter.
    exceptions : tuple of exception types
        Other exceptions are not retried.
    """

    retries: int = 3
    timeout_ms: float | None = None
    backoff_ms: float = 100
    backoff_max_ms: float = 10_000
    exceptions: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.retries < 0 or self.backoff_ms < 0 or self.backoff_max_ms < 0 or (self.timeout_ms or 0) < 0:
            raise UsageError(f"{self}: retries and times must not be negative")

    def wait_s(self, error: BaseException, attempts: int, failing_s: float) -> float | None:
        """Return the wait before the next attempt; None if there is none.

        Parameters
        ----------
        error : BaseException
            The error of the last attempt.
        attempts : int
            Number of failed attempts.
        failing_s : float
            Time since the first failure.
        """
        if attempts > self.retries or not isinstance(error, self.exceptions):
            return None
        wait_s = Backoff(self.backoff_ms, self.backoff_max_ms, tries=attempts - 1).next_s()
        in_time = self.timeout_ms is None or failing_s + wait_s <= self.timeout_ms / 1000
        return wait_s if in_time else None


NO_RETRIES = RetryPolicy(retries=0)


def dead_letter_headers(message: ConsumerMessage, error: BaseException) -> Headers:
    """Return the headers of a dead letter: those of the record, then the place and the failure, as text.

    Those of an earlier failure, of a record that is a dead letter itself, are kept before the new ones.
    """
    kind = type(error)
    context = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "exception.class.name": f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": _text(error),
    }
    return [
        *(message.headers or ()),
        *((PREFIX + name, str(value).encode("utf-8", "replace")) for name, value in context.items()),
    ]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
