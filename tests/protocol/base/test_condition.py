"""Ctrl-C during a wait leaves the lock in the expected state, at any point of the wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from protocol.base.condition import Condition, Lock, locked
from tests.support.background import background
from tests.support.interrupts import interrupted_at

CODE = (
    "threading",
    "contextlib",
    "protocol.base.condition",
    "protocol.base.interrupts",
    "tests.protocol.base.test_condition",
)


def test_interrupted_wait_hands_its_notification_on() -> None:
    """Two threads wait; the first one is notified, and its signal handler raises."""
    condition, waiting = Condition(), threading.Event()

    def wait() -> bool:
        with condition:
            waiting.set()
            return condition.wait(20)

    def handle(*_: object) -> None:
        second_waits.append(pool.submit(wait))
        assert waiting.wait(20)
        with condition:
            condition.notify()
        raise TimeoutError

    def interrupt() -> None:
        with condition:  # free only while the main thread waits
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    second_waits: list[Future[bool]] = []
    former = signal.signal(signal.SIGALRM, handle)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(TimeoutError), condition, background(interrupt):
            condition.wait(20)
        assert second_waits[0].result()
    signal.signal(signal.SIGALRM, former)


def test_interrupted_wait_leaves_the_lock_free() -> None:
    condition = Condition()

    def use() -> None:
        with condition:
            condition.wait(0.001)

    every_interrupt(use, condition)


@pytest.mark.parametrize("kind", [Condition, Lock])
def test_interrupted_with_statement_leaves_the_lock_free(kind: type[Condition] | type[Lock]) -> None:
    lock = kind()

    def use() -> None:
        with lock:
            pass

    every_interrupt(use, lock)


def test_interrupted_wait_for_a_lock_leaves_it_to_its_owner() -> None:
    lock: Any = Lock()
    event, interrupted = threading.Event(), threading.Event()
    waits: list[bool] = []

    def interrupt_once(*_: object) -> None:
        if waits:
            waits.clear()
            raise KeyboardInterrupt

    def hold() -> bool:
        with lock:
            event.set()
            while not interrupted.wait(0.01):  # a signal just before a wait does not end the wait
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            return lock._is_owned()

    former = signal.signal(signal.SIGINT, interrupt_once)
    try:
        with ThreadPoolExecutor(1) as executor:
            owned = executor.submit(hold)
            assert event.wait(20)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                waits.append(True)
                with lock:
                    pass
            interrupted.set()
            assert owned.result()
    finally:
        signal.signal(signal.SIGINT, former)


def test_interrupted_call_with_a_lock_leaves_it_free() -> None:
    lock = Lock()
    every_interrupt(lambda: locked(lock, 1, lambda free: None), lock)


def every_interrupt(use: Callable[[], None], lock: Lock | Condition) -> None:
    """Interrupt `use` at each place; afterwards another thread must get the lock."""
    place, reached = 1, True
    with ThreadPoolExecutor(1) as executor:
        while reached:
            with suppress(KeyboardInterrupt), interrupted_at(place, CODE) as was_reached:
                use()
            reached = was_reached()
            assert executor.submit(lambda: lock.acquire(timeout=10) and lock.release() is None).result(), place
            place += 1


def test_call_learns_if_the_lock_is_free() -> None:
    lock = Lock()

    def call(free: bool) -> list[bool]:
        with ThreadPoolExecutor(1) as executor:
            elsewhere = executor.submit(locked, lock, 0, lambda free: free).result()
        return [free, locked(lock, 1, lambda free: free), elsewhere]

    assert locked(lock, 1, call) == [True, False, False]
    assert locked(lock, 0, call)[0]
