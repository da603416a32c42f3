"""A pausable clock, a stoppable clock, and deadlines on them."""

from __future__ import annotations

import contextlib

import pytest

from protocol.clock import Deadline, PausableClock, StoppableClock
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
    with clock.paused():
        real.at_s += 50
        assert deadline.remaining_s() == 6
    real.at_s += 5
    assert deadline.remaining_s() == 1
    assert deadline.at_most_ms(5_000).remaining_s() == 1
    clock.sleep_s(1)
    assert real.slept == [1]
    assert deadline.passed


def test_clock_resumes_after_an_error_in_the_pause(real: ManualClock, clock: PausableClock) -> None:
    began_s = clock.now_s()
    with contextlib.suppress(ZeroDivisionError), clock.paused():
        real.at_s += 50
        raise ZeroDivisionError
    real.at_s += 2
    assert clock.now_s() - began_s == 2


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


def test_paused_clock_returns_the_current_wall_time(real: ManualClock, clock: PausableClock) -> None:
    before_ms = real.wall_ms()
    with clock.paused():
        assert 0 <= clock.wall_ms() - before_ms < 60_000
