"""What the demo prints: plain lines with the time since its start, and tables whose columns stand under each other.

Called by the other modules of the demo. Knows neither Kafka nor Spark, only words.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from protocol.clock import SYSTEM_CLOCK


class Screen:
    """Lines for one terminal, from any thread."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._began_s = SYSTEM_CLOCK.now_s()

    def say(self, line: str) -> None:
        """A line of its own, with the time."""
        self._write(f"{SYSTEM_CLOCK.now_s() - self._began_s:6.1f} s  {line}")

    def more(self, line: str = "") -> None:
        """A line that goes on with the one before."""
        self._write(f"{'':10}{line}".rstrip())

    def as_it_is(self, text: str) -> None:
        """What another program wrote."""
        self._write(text)

    def _write(self, line: str) -> None:
        print(line, file=self._out, flush=True)


@dataclass(frozen=True)
class Table:
    """Rows under a header. `columns`: name -> width; below 0, what is in the column stands to the left."""

    screen: Screen
    columns: Mapping[str, int]

    def header(self) -> None:
        self.screen.more()
        self.screen.more(self._line(*self.columns))

    def row(self, *cells: object) -> None:
        """A row; whole numbers get separators."""
        self.screen.more(self._line(*cells))

    def timed_row(self, *cells: object) -> None:
        """A row, with the time."""
        self.screen.say(self._line(*cells))

    def _line(self, *cells: object) -> str:
        texts = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
        return "  ".join(
            f"{text:>{width}}" if width > 0 else f"{text:<{-width}}"
            for text, width in zip(texts, self.columns.values(), strict=True)
        )
