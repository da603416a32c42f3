"""Time until a failed address is tried again."""

from __future__ import annotations

import pytest

from protocol.errors import ConnectionLost
from protocol.net.reachability import Reachability

ADDRESS = ("broker-1", 9092)


def test_time_until_the_next_attempt_decreases() -> None:
    reachability, failure = Reachability(1_000, 1_000), ConnectionLost("refused")
    reachability.failed(ADDRESS, failure, now_s=100.0)
    observed = [reachability.current_backoff(ADDRESS, now_s) for now_s in (100.0, 100.5)]
    (whole_s, first), (rest_s, second) = (backoff for backoff in observed if backoff is not None)
    assert first is second is failure
    assert 0.5 < whole_s < 2
    assert rest_s == pytest.approx(whole_s - 0.5)
