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
    handler: Callable[[int, FrameType | None], object] = signal.default_int_handler,
) -> Iterator[Callable[[], bool]]:
    """Send a signal at a place, by number, of the modules whose names begin with one of `code`.

    Yields a function that returns True if there was such a place.

    The exception is kept until the next one, as notebooks keep that of a cell, and with it the frames it passed.

    The places are those where Python handles signals: the begin of functions, and the return from functions in C.
    """
    count = 0
    former = signal.signal(number, handler)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_return") and frame.f_globals.get("__name__", "").startswith(code):
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
        signal.signal(number, former)
        gc.enable()
