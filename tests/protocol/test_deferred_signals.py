"""Signals that arrive in a block of `Deferred`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from protocol.base.interrupts import Deferred, interruptible

INT, USR1, USR2, HUP = signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP
NUMBERS = (INT, USR1, USR2, HUP)


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Set a handler for each signal: that of SIGUSR1 raises, the others record their signal, and ignore SIGHUP."""
    arrived: list[int] = []

    def raise_error(number: int, _: object) -> None:
        arrived.append(number)
        raise TimeoutError

    former = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(INT, lambda number, _: arrived.append(number))
    signal.signal(USR1, raise_error)
    signal.signal(USR2, lambda number, _: arrived.append(number))
    signal.signal(HUP, signal.SIG_IGN)
    own = [signal.getsignal(number) for number in NUMBERS]
    yield arrived
    assert [signal.getsignal(number) for number in NUMBERS] == own
    for number, handler in former.items():
        signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_all_handlers_run_once_at_the_end_although_one_raises(handled: list[int]) -> None:
    def block() -> None:
        with Deferred():
            send(USR1, USR2, INT, USR2, HUP)
            assert handled == []

    with pytest.raises(TimeoutError):
        block()
    assert sorted(handled) == sorted([INT, USR1, USR2])


def test_signals_of_a_block_are_handled_in_its_interruptible_calls_and_at_its_end(handled: list[int]) -> None:
    with Deferred():
        with Deferred():
            send(USR2)
            assert handled == []
            interruptible(send, INT)
            assert handled == [USR2, INT]
            send(USR1)
        assert handled == [USR2, INT]
        with pytest.raises(TimeoutError):
            interruptible(send)
        send(USR2)
        assert handled == [USR2, INT, USR1]
    assert handled == [USR2, INT, USR1, USR2]


def test_other_threads_defer_nothing(handled: list[int]) -> None:
    inside, sent = threading.Event(), threading.Event()

    def work() -> None:
        with Deferred():
            inside.set()
            sent.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(20)
    send(USR2)
    assert handled == [USR2]
    sent.set()
    thread.join()


def test_handler_may_set_another_handler(handled: list[int]) -> None:
    def later(number: int, _: object) -> None:
        handled.append(-number)

    former = signal.signal(USR2, lambda number, _: signal.signal(number, later))
    with Deferred():
        interruptible(send, USR2)
    assert signal.getsignal(USR2) is later
    signal.signal(USR2, former)
