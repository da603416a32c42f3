"""Print the demo's output: lines with the time since the start, and tables with aligned columns.

Called by the other modules of the demo; independent of Kafka and Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from protocol.clock import SYSTEM_CLOCK


class Screen:
    """Writes lines to a terminal; thread-safe."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._began_s = SYSTEM_CLOCK.now_s()

    def print_timed(self, line: str) -> None:
        """Print a line with the time."""
        self._write(f"{SYSTEM_CLOCK.now_s() - self._began_s:6.1f} s  {line}")

    def print_line(self, line: str = "") -> None:
        """Print a line that continues the previous one, without a time."""
        self._write(f"{'':10}{line}".rstrip())

    def print_verbatim(self, text: str) -> None:
        """Print the output of another program unchanged."""
        self._write(text)

    def _write(self, line: str) -> None:
        print(line, file=self._out, flush=True)


@dataclass(frozen=True)
class Table:
    """Prints rows under a header. `columns` maps names to widths; a negative width aligns the column to the left."""

    screen: Screen
    columns: Mapping[str, int]

    def header(self) -> None:
        """Print an empty line and the names of the columns."""
        self.screen.print_line()
        self.screen.print_line(self._line(*self.columns))

    def row(self, *cells: object) -> None:
        """Print a row; integers get thousands separators."""
        self.screen.print_line(self._line(*cells))

    def timed_row(self, *cells: object) -> None:
        """Print a row with the time."""
        self.screen.print_timed(self._line(*cells))

    def _line(self, *cells: object) -> str:
        texts = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
        return "  ".join(
            f"{text:>{width}}" if width > 0 else f"{text:<{-width}}"
            for text, width in zip(texts, self.columns.values(), strict=True)
        )
