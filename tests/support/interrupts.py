"""Ctrl-C, or another signal, at a chosen place of the code that the main thread runs."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_kept: list[BaseException] = []


@contextmanager
def interrupted_at(
    place: int,
    code: tuple[str, ...],
    number: signal.Signals = signal.SIGINT,
    handler: Callable[[int, FrameType | None], object] | None = signal.default_int_handler,
) -> Iterator[Callable[[], bool]]:
    """Send a signal at a place, by number, of the modules whose names begin with one of `code`.

    Yields a function that returns True if there was such a place. Without a handler, the present one is called: within
    a call that defers signals, another one would not be deferred.

    The exception is kept until the next one, as notebooks keep that of a cell, and with it the frames it passed.
    """
    count = 0
    former = signal.getsignal(number)
    if handler is not None:
        signal.signal(number, handler)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if _is_place(frame, event, code):
            count += 1
            if count == place:
                sys.setprofile(None)
                signal.raise_signal(number)

    gc.disable()  # else finalizers of earlier tests run, and pytest reports an interrupt there
    sys.setprofile(profile)
    try:
        yield lambda: count >= place
    except BaseException as error:
        _kept[:] = [error]
        raise
    finally:
        sys.setprofile(None)
        if handler is not None:
            signal.signal(number, former)
        gc.enable()


def places_in(call: Callable[[], object], code: tuple[str, ...]) -> list[int]:
    """Call once; return the numbers of ten places of the call for `interrupted_at`, and of the last ones."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += _is_place(frame, event, code)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted({*range(1, count, max(1, count // 10)), *range(max(1, count - 5), count + 1)})


def _is_place(frame: FrameType, event: str, code: tuple[str, ...]) -> bool:
    """Return True where Python handles signals: at the begin of functions, and the return from functions in C."""
    return event in ("call", "c_return") and frame.f_globals.get("__name__", "").startswith(code)
