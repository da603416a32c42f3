"""Waits for threads that Ctrl-C interrupts."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from protocol.base.interrupts import join


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
