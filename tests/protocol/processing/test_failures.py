"""Retries of a handler, and the headers of dead letters."""

from __future__ import annotations

import pytest

from protocol.errors import UsageError
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.processing.failures import RetryPolicy, dead_letter_headers


def test_waits_double_with_jitter_up_to_the_maximum() -> None:
    policy = RetryPolicy(retries=5, backoff_ms=100, backoff_max_ms=500)
    waits = [[policy.wait_s(ValueError(), attempts, 0) or 0 for _ in range(50)] for attempts in range(1, 6)]
    for each, expected in zip(waits, (0.1, 0.2, 0.4, 0.5, 0.5), strict=True):
        assert all(0.8 * expected <= wait <= 1.2 * expected for wait in each)
        assert len(set(each)) > 40
    assert policy.wait_s(ValueError(), 6, 0) is None


def test_no_retry_is_later_than_the_timeout() -> None:
    policy = RetryPolicy(retries=100, timeout_ms=1_000, backoff_ms=100)
    assert policy.wait_s(ValueError(), 1, 0.8) is not None
    assert policy.wait_s(ValueError(), 1, 0.95) is None


@pytest.mark.parametrize("name", ["retries", "timeout_ms", "backoff_ms", "backoff_max_ms"])
def test_zero_is_allowed_and_negative_numbers_are_refused(name: str) -> None:
    assert getattr(RetryPolicy(**{name: 0}), name) == 0
    with pytest.raises(UsageError, match="must not be negative"):
        RetryPolicy(**{name: -1})


def test_defaults_are_those_of_the_docstring() -> None:
    assert RetryPolicy() == RetryPolicy(3, None, 100, 10_000, (Exception,))
    assert RetryPolicy(retries=0).wait_s(ValueError(), 1, 0) is None
    assert RetryPolicy(timeout_ms=0).wait_s(ValueError(), 1, 0) is None
    assert RetryPolicy(timeout_ms=0, backoff_ms=0).wait_s(ValueError(), 1, 0) == 0


def test_dead_letter_has_the_names_of_kafka_connect_after_the_headers_of_the_record() -> None:
    old = [("trace", b"1"), ("__connect.errors.topic", b"older"), ("none", None)]
    message = ConsumerMessage("orders", 3, 17, 1_700_000_000_000, 0, b"k", b"v", old)
    assert list(dead_letter_headers(message, ZeroDivisionError("é \ud800"))) == [
        *old,
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"17"),
        ("__connect.errors.timestamp", b"1700000000000"),
        ("__connect.errors.exception.class.name", b"builtins.ZeroDivisionError"),
        ("__connect.errors.exception.message", "é ?".encode()),
    ]


def test_exception_without_text_has_a_dead_letter() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise TypeError

    message = ConsumerMessage("orders", 0, 1, -1, -1, None, None, None)
    headers = dict(dead_letter_headers(message, Unprintable()))
    assert headers["__connect.errors.exception.message"] == b""
