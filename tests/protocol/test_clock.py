"""A clock that stands while a caller is away, and deadlines on it."""

from __future__ import annotations

import contextlib

import pytest

from protocol.clock import Deadline, PausableClock
from tests.fake_kafka.clock import ManualClock


@pytest.fixture
def real() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clock(real: ManualClock) -> PausableClock:
    real.at_s = 100.0
    return PausableClock(real)


def test_a_deadline_comes_no_nearer_while_its_clock_is_paused(real: ManualClock, clock: PausableClock) -> None:
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


def test_it_goes_on_when_what_it_was_paused_for_fails(real: ManualClock, clock: PausableClock) -> None:
    began_s = clock.now_s()
    with contextlib.suppress(ZeroDivisionError), clock.paused():
        real.at_s += 50
        raise ZeroDivisionError
    real.at_s += 2
    assert clock.now_s() - began_s == 2


def test_a_short_absence_counts_and_of_a_long_one_only_the_grace(real: ManualClock, clock: PausableClock) -> None:
    began_s = clock.now_s()
    clock.pause(1.0)
    for away_s, counted_s in ((0.5, 0.5), (1.0, 1.5), (60.0, 2.5)):
        real.at_s += away_s
        with clock.running(1.0):
            assert clock.now_s() - began_s == counted_s


def test_a_second_pause_does_not_lengthen_the_first(real: ManualClock, clock: PausableClock) -> None:
    began_s = clock.now_s()
    clock.pause()
    real.at_s += 5
    clock.pause(1.0)
    real.at_s += 5
    clock.resume()
    clock.resume()
    assert clock.now_s() == began_s


def test_timestamps_are_those_of_the_other_clock(real: ManualClock, clock: PausableClock) -> None:
    before_ms = real.wall_ms()
    with clock.paused():
        assert 0 <= clock.wall_ms() - before_ms < 60_000
