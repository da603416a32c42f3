"""Ctrl-C during a wait leaves the lock in the expected state, at any point of the wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from protocol.condition import Condition, Event, locked
from tests.support.interrupts import interrupted_at
from tests.support.wait_until import wait_until

# Moments of the interrupt: just after the wait has released the lock, or just before it acquires the lock again.
CODE = ("threading", "contextlib", "protocol.condition", "tests.protocol.test_condition")
WINDOWS = ("_release_save", "_acquire_restore")


def interrupt(condition: threading.Condition, window: str, patch: pytest.MonkeyPatch) -> None:
    give_up: Callable[[], object] = condition._release_save  # type: ignore[attr-defined]

    def interrupted(*_: object) -> None:
        if window == "_release_save":
            give_up()
        raise KeyboardInterrupt

    patch.setattr(condition, window, interrupted)


@pytest.mark.parametrize("window", WINDOWS)
def test_interrupted_wait_releases_the_lock_after_its_block(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    condition = Condition()
    interrupt(condition, window, monkeypatch)
    with pytest.raises(KeyboardInterrupt), condition:
        condition.wait(0.01)
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: condition.acquire(timeout=10) and condition.release() is None).result()


@pytest.mark.parametrize("window", WINDOWS)
def test_interrupted_wait_takes_no_notification_of_another_thread(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    condition = Condition()
    interrupt(condition, window, monkeypatch)
    with pytest.raises(KeyboardInterrupt), condition:
        condition.wait(0.01)
    monkeypatch.undo()

    def wait() -> bool:
        with condition:
            waiting.set()
            return condition.wait(20)

    waiting = threading.Event()
    with ThreadPoolExecutor(1) as other:
        woken = other.submit(wait)
        assert waiting.wait(20)
        with condition:
            condition.notify()
        assert woken.result()


@pytest.mark.parametrize("window", WINDOWS)
def test_event_wakes_others_after_an_interrupted_wait(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event()
    interrupt(event._cond, window, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        event.wait(0.01)
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(event.wait, 20)
        wait_until(lambda: bool(event._cond._waiters))  # type: ignore[attr-defined]
        event.set()
        assert waiting.result()


def test_interrupted_with_statement_leaves_the_lock_free() -> None:
    condition = Condition()

    def use() -> None:
        with condition:
            pass

    every_interrupt(use, condition)


def test_interrupted_call_with_a_lock_leaves_it_free() -> None:
    lock = threading.RLock()
    every_interrupt(lambda: locked(lock, 1, lambda free: None), lock)


def every_interrupt(use: Callable[[], None], lock: threading.RLock | Condition) -> None:
    """Interrupt `use` at each place; afterwards another thread must get the lock."""
    place, reached = 1, True
    with ThreadPoolExecutor(1) as other:
        while reached:
            with suppress(KeyboardInterrupt), interrupted_at(place, CODE) as was_reached:
                use()
            reached = was_reached()
            assert other.submit(lambda: lock.acquire(timeout=10) and lock.release() is None).result(), place
            place += 1


def test_call_learns_if_the_lock_is_free() -> None:
    lock = threading.RLock()

    def call(free: bool) -> list[bool]:
        with ThreadPoolExecutor(1) as other:
            elsewhere = other.submit(locked, lock, 0, lambda free: free).result()
        return [free, locked(lock, 1, lambda free: free), elsewhere]

    assert locked(lock, 1, call) == [True, False, False]
    assert locked(lock, 0, call)[0]
