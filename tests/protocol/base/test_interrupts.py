"""Signals that arrive while they are deferred, or during a wait for a thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from protocol.base.interrupts import Deferred, _MainThread, interruptible, join
from tests.support.background import background

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

    with background(work):
        assert inside.wait(20)
        send(USR2)
        assert handled == [USR2]
        sent.set()


def test_handler_may_set_another_handler(handled: list[int]) -> None:
    def later(number: int, _: object) -> None:
        handled.append(-number)

    former = signal.signal(USR2, lambda number, _: signal.signal(number, later))
    with Deferred():
        interruptible(send, USR2)
    assert signal.getsignal(USR2) is later
    signal.signal(USR2, former)


def test_signal_at_the_entry_of_the_handlers_leaves_no_other_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython looks for signals at the entry of each function, so also when the deferred ones are about to run."""
    main, handled = _MainThread(), list[int]()
    run_handlers, interrupts = main.run_handlers, [KeyboardInterrupt()]

    def run() -> None:
        if interrupts:
            raise interrupts.pop()
        run_handlers()

    monkeypatch.setattr(main, "run_handlers", run)
    level = main.defer()
    main._arrived[signal.SIGUSR1] = (lambda number, _: handled.append(number)), None
    with pytest.raises(KeyboardInterrupt):
        main.end(level)
    assert handled == [signal.SIGUSR1]
    assert not main.deferring


def test_running_thread_counts_as_running_after_an_interrupted_join() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(60,))
    thread.start()
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come before the wait
        interrupt.start()
        join(thread)
    interrupt.join()
    assert thread.is_alive()
    assert not join(thread, 0)
    release.set()
    assert join(thread)
