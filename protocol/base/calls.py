"""The gate of an object that is not thread-safe: each public call enters it, one at a time.

Within a call, signals are handled only while it waits, and in code of the user (`interrupts`). So nothing below the
gate knows of Ctrl-C: the exception of a signal handler is one more exception of a wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from protocol.base.clock import SYSTEM_CLOCK
from protocol.base.interrupts import NESTED, BackgroundCall, interruptible, signals
from protocol.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_KEY = "call"
_CHECK_INTERVAL_S = 0.05


class CallGate:
    """Admits the public calls of one object: one thread at a time, not after a fork, and not after `close`.

    A listener or callback may call the object again. A signal handler within a call may only close it: the outermost
    call then does so before it returns.

    `name`: name of the object in errors, such as "consumer".
    `busy`: text of the error while another thread is in a call.
    `closing`, `closed`: True once `close` has begun, and once it refuses further calls.
    """

    def __init__(self, name: str, busy: str) -> None:
        self.closing = self.closed = False
        self._name = name
        self._busy = busy
        # The outermost call, at its only key. Entering and removing it are atomic, and removing it is not a call: no
        # signal is handled between that and the return to the caller.
        self._running: dict[str, _Call] = {}
        self._in_user_code = False
        # A `close` that was called within the running call.
        self._pending_close: Callable[[], None] | None = None
        # The last call of `end_in_background`.
        self._ending: BackgroundCall | None = None
        # The process of the first call.
        self._process_id: int | None = None

    def call(self, undo: Callable[[], None] | None = None) -> _Call:
        """Return a context manager for a public call.

        `undo`: called if the caller does not get the result: this call or a signal handler within it has raised, or the
        object is closed at the end of this call.
        """
        return _Call(self, undo)

    def user_code(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call a listener or callback, which may call the object again, and which a signal handler may interrupt."""
        before, self._in_user_code = self._in_user_code, True
        try:
            return interruptible(function, *arguments, **options)
        finally:
            self._in_user_code = before

    @property
    def closes(self) -> bool:
        """Return True if `close` was called."""
        return self.closing or self._pending_close is not None

    def close(self, close: Callable[[], None]) -> None:
        """Call `close`, which sets `closed`; at the end of the outermost call if this thread is in one.

        A further call waits for the rest of a `close` that a signal has interrupted.
        """
        running = self._running.get(_KEY)
        if running is not None and running.thread_id == threading.get_ident():
            self.refuse_after_fork()
            self._pending_close = None if self.closing else close
        elif self.closing:
            self._wait_for_end()
        else:
            with self.call():
                self._close(close)

    def close_in_any_thread(self, close: Callable[[], None], *, waits: bool) -> None:
        """As `close`; if another thread is in a call, that one closes at its end, and with `waits` this one waits."""
        self.refuse_after_fork()
        if not self.closing:
            self._pending_close = close
        while self._pending_close is not None or self._running:
            call = _Call(self, None)
            if (running := call.enter()) is call:
                call.__exit__(None)  # closes
                continue
            signals.end(call._level)
            if running.thread_id == call.thread_id or not waits:
                return
            SYSTEM_CLOCK.sleep_s(_CHECK_INTERVAL_S)
        if waits:
            self._wait_for_end()

    def end_in_background(self, call: Callable[[], None], name: str) -> BackgroundCall:
        """Begin what remains to be done after an interrupt; a further call of `close` waits for it."""
        self._ending = BackgroundCall(call, name, self._ending)
        return self._ending

    def _wait_for_end(self) -> None:
        if self._ending is not None:
            self._ending.wait()

    def _close(self, close: Callable[[], None]) -> None:
        self._pending_close = None
        if not self.closing:
            self.closing = True
            close()

    def refuse_after_fork(self) -> None:
        """Raise `UsageError` in another process than that of the first call."""
        process_id = os.getpid()
        if self._process_id not in (None, process_id):  # its threads do not exist here, and one may have held a lock
            raise UsageError(f"this {self._name} was used before a fork: make one in this process")
        self._process_id = process_id


class _Call:
    """A public call. Signals that have arrived are handled at the end of the outermost one."""

    __slots__ = ("_gate", "_in_user_code", "_is_outermost", "_level", "_undo", "thread_id")

    def __init__(self, gate: CallGate, undo: Callable[[], None] | None) -> None:
        self._gate = gate
        self._undo = undo
        self._in_user_code = False
        self.thread_id = threading.get_ident()

    def __enter__(self) -> None:
        gate = self._gate
        gate.refuse_after_fork()
        running = self.enter()
        if (refusal := self._refusal(running)) is not None:
            if self._is_outermost:
                del gate._running[_KEY]
            signals.end(self._level)
            raise UsageError(refusal)
        self._in_user_code, gate._in_user_code = gate._in_user_code, False

    def enter(self) -> _Call:
        """Defer signals, and return the running call: this one, if no other is."""
        self._level = signals.defer()
        running = self._gate._running.setdefault(_KEY, self)
        self._is_outermost = running is self
        return running

    def _refusal(self, running: _Call) -> str | None:
        gate = self._gate
        if running.thread_id != self.thread_id:
            return gate._busy
        if gate.closed or (self._is_outermost and gate.closes):
            return f"this {gate._name} is closed"
        if not self._is_outermost and self._level > NESTED and not gate._in_user_code:
            return f"a signal handler that interrupts a call of this {gate._name} may only close it, or set a flag"
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        gate = self._gate
        gate._in_user_code = self._in_user_code
        if not self._is_outermost:
            return signals.end(self._level)
        level = self._level
        if kind is None and gate._pending_close is None:
            try:
                signals.end(level)
                if gate._pending_close is None:
                    del gate._running[_KEY]
                    return None
            except BaseException:  # of a signal handler
                try:
                    level = signals.defer()
                except BaseException:  # of another one, before signals are deferred
                    self._abandon(signals.defer())
                    raise
                self._abandon(level)
                raise
            level = signals.defer()
        return self._abandon(level)

    def _abandon(self, level: int) -> None:
        """End without a result for the caller, and close the object if `close` was called meanwhile."""
        gate = self._gate
        try:
            if self._undo is not None:
                self._undo()
        finally:
            try:
                if gate._pending_close is not None:
                    gate._close(gate._pending_close)
            finally:
                del gate._running[_KEY]
                signals.end(level)


def gated(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method a public call of the object's `_gate`."""

    @wraps(method)
    def call(consumer: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        with consumer._gate.call():
            return method(consumer, *arguments, **options)

    return call
