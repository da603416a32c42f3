"""Ctrl-C during a wait leaves the lock in the expected state, at any point of the wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from protocol.condition import Condition, Event
from tests.support.wait_until import wait_until

# Points of the interrupt: the wait has just released the lock, or is about to acquire it again.
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
