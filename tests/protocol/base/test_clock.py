"""A pausable clock, a stoppable clock, deadlines on them, and the waits between retries."""

from __future__ import annotations

import pytest

from protocol.base.clock import Backoff, Deadline, PausableClock, StoppableClock
from protocol.testing.fake_kafka.clock import ManualClock


@pytest.fixture
def real() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clock(real: ManualClock) -> PausableClock:
    real.at_s = 100.0
    return PausableClock(real)


def test_deadline_does_not_advance_while_its_clock_is_paused(real: ManualClock, clock: PausableClock) -> None:
    deadline = Deadline.after_ms(10_000, clock)
    real.at_s += 4
    clock.pause()
    real.at_s += 50
    assert deadline.remaining_s() == 6
    clock.resume()
    real.at_s += 5
    assert deadline.remaining_s() == 1
    assert deadline.at_most_ms(5_000).remaining_s() == 1
    clock.sleep_s(1)
    assert real.slept == [1]
    assert deadline.passed


def test_deadlines_have_passed_after_the_clock_stops(real: ManualClock) -> None:
    clock = StoppableClock(real)
    deadline = Deadline.after_ms(1_000, clock)
    real.at_s += 0.5
    assert (deadline.remaining_ms(), deadline.passed) == (500, False)
    clock.stop()
    assert (deadline.remaining_ms(), deadline.passed) == (0, True)
    assert Deadline.after_ms(1_000, clock).passed
    clock.sleep_s(5)
    assert not real.slept


def test_waits_between_retries_spread_by_20_percent_so_that_clients_retry_at_different_times() -> None:
    waits_s = [Backoff(1_000, 60_000, tries=3).next_s() for _ in range(300)]
    assert 6.4 <= min(waits_s) < 7.2
    assert 8.8 < max(waits_s) <= 9.6


def test_waits_between_retries_double_up_to_the_maximum_until_reset() -> None:
    backoff = Backoff(100, 1_000)
    for about_s in (0.1, 0.2, 0.4, 0.8, *[1.0] * 40):
        assert backoff.next_s() == pytest.approx(about_s, rel=0.21)
    backoff.reset()
    assert backoff.next_s() == pytest.approx(0.1, rel=0.21)


def test_paused_clock_returns_the_current_wall_time(real: ManualClock, clock: PausableClock) -> None:
    before_ms = real.wall_ms()
    clock.pause()
    assert 0 <= clock.wall_ms() - before_ms < 60_000
