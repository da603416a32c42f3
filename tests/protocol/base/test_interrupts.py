"""Signals at the worst moments of a block that defers them."""

from __future__ import annotations

import signal

import pytest

from protocol.base.interrupts import _MainThread


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
