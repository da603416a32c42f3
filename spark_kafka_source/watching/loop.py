"""Show a running query, updated in place, until it ends."""

from __future__ import annotations

import base64
import io
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TextIO

from protocol.base.clock import SYSTEM_CLOCK, Clock
from spark_kafka_source.lag.seconds import Options
from spark_kafka_source.watching.figure import draw
from spark_kafka_source.watching.history import QueryHistory
from spark_kafka_source.watching.line import line

_CLEAR_LINE = "\r\x1b[K"


class Display(Protocol):
    """Shows a history, in place of what it showed before."""

    def show(self, history: QueryHistory) -> None:
        """Show the newest state."""

    def end(self) -> None:
        """Leave the last state."""


def watch(
    query: Any,
    *,
    options: Options | None = None,
    picture: str | Path | None = None,
    every_s: float = 1.0,
    timeout_s: float | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> QueryHistory:
    """Show a query until it ends, in one display that is updated in place.

    It has rows per second (in, and processed), batch time, lag by partition in records and seconds, and the group's
    state.

    In a notebook the display is a picture, which stays as the output of the cell; without matplotlib, and in a
    terminal, it is a line of text. Ctrl-C (in a notebook: interrupt the kernel) ends the display, not the query. Uses
    the query's progress only, so it works over Spark Connect, too.

    Parameters
    ----------
    query : StreamingQuery
    options : str or mapping, optional
        Bootstrap servers, or the options of the source. With them, lag is also in seconds; with `kafka.group.id` among
        them, the state of the group is shown. Before PySpark 4.2 they are required for lag.
    picture : str or pathlib.Path, optional
        File for the picture of the whole time; its suffix is the format, such as `.svg` or `.png`. Created at the
        start, and complete at the end.
    every_s : float
        Interval between updates.
    timeout_s : float, optional
        End the display after this time, also if the query is running.
    clock : Clock
        Source of time; tests pass their own.

    Returns
    -------
    QueryHistory
        `samples` has all figures, `save(path)` makes the picture.

    Raises
    ------
    StreamingQueryException
        The query has failed. The picture is written before.
    UsageError, OSError, ValueError
        `picture` cannot be written: matplotlib is not installed, or the folder or the suffix is wrong.
    """
    history = QueryHistory(query, options=options)
    if picture is not None:
        history.save(picture)  # report a wrong folder or suffix now, not at the end
    display = _display()
    end_s = float("inf") if timeout_s is None else clock.now_s() + timeout_s
    try:
        display.show(history)
        running = True
        while running and clock.now_s() < end_s:
            running = bool(query.isActive)  # before the poll, which then has the last trigger of an ended query
            if history.poll():
                display.show(history)
            elif running:
                clock.sleep_s(min(every_s, max(0.0, end_s - clock.now_s())))
    except KeyboardInterrupt:
        pass
    finally:
        display.end()
        if picture is not None:
            history.save(picture)
    if not query.isActive and (failure := query.exception()) is not None:
        raise failure
    return history


def _display() -> Display:
    """Return the display for a notebook if this process is the kernel of one, else for a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return Terminal(sys.stdout)
    return Notebook(pictures=find_spec("matplotlib") is not None)


class Terminal:
    """A line of text: overwritten in a terminal, else one for each change."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._overwrites = out.isatty()

    def show(self, history: QueryHistory) -> None:
        """Print the line."""
        text = line(history.samples, history.name)
        if self._overwrites:
            text = _CLEAR_LINE + text[: shutil.get_terminal_size().columns - 1]
        print(text, end="" if self._overwrites else "\n", file=self._out, flush=True)

    def end(self) -> None:
        """Keep the line."""
        if self._overwrites:
            print(file=self._out, flush=True)


class Notebook:
    """An output of the cell that is replaced by each update: a PNG picture, or text without matplotlib."""

    def __init__(self, *, pictures: bool) -> None:
        self._pictures = pictures
        self._handle: Any = None

    def show(self, history: QueryHistory) -> None:
        """Replace the output."""
        from IPython.display import display

        content = {"text/plain": line(history.samples, history.name)}
        metadata: dict[str, Any] = {}
        if self._pictures:
            png = _png(history)
            content["image/png"] = base64.b64encode(png).decode()
            metadata["image/png"] = {"width": int.from_bytes(png[16:20], "big") // 2}
        if self._handle is None:
            self._handle = display(content, metadata=metadata, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content, metadata=metadata, raw=True)

    def end(self) -> None:
        """Keep the output."""


def _png(history: QueryHistory) -> bytes:
    file = io.BytesIO()
    # Twice the resolution, for dense screens.
    draw(history.samples, history.name).savefig(file, format="png", dpi=200)
    return file.getvalue()
