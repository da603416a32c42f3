"""Ctrl-C, SIGTERM and the end of the reader as a request to finish: output is completed, offsets are committed."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

# Longest wait of a command between two checks of the request.
CHECK_MS = 200

_STDERR = 2


class StopRequest:
    """True after the first signal. The second one raises `KeyboardInterrupt`.

    `prints`: also true if standard output is a pipe without a reader, as after `| head`.
    """

    def __init__(self, prints: bool = False) -> None:
        self._stopped = False
        self._reader = select.poll() if prints else None
        if self._reader is not None:
            # Without events to wait for, poll reports only the errors of the descriptor.
            self._reader.register(1, 0)

    def __bool__(self) -> bool:
        return self._stopped or (self._reader is not None and bool(self._reader.poll(0)))

    def wait(self, seconds: float = float("inf")) -> None:
        """Wait until this is true, at most for a time."""
        until_s = time.monotonic() + seconds
        while not self and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, CHECK_MS / 1000))

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True


@contextmanager
def stop_request(prints: bool = False) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM in the block, if it runs in the main thread. `prints` is that of `StopRequest`."""
    request = StopRequest(prints)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ends_with_reader() -> Iterator[None]:
    """Exit with 0, as Kafka's console consumer does, if the reader of standard output is gone.

    Other errors of files end the command with one line and exit code 1.
    """
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        sys.exit(0)
    except OSError as error:  # of a file, or of a disk that is full; errors of brokers are no OSError
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        raise click.ClickException(" ".join(str(error).split())) from error


def _discard_output() -> None:
    """Send what Python flushes at its end nowhere, instead of failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_standard_streams() -> None:
    """Connect standard streams that the caller has closed to /dev/null; a socket would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)
