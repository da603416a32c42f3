"""Plots of lag. matplotlib is imported by the first plot only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from protocol.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bars(offsets_behind: Mapping[str, int], axes: Axes | None) -> Axes:
    """Draw a bar for each partition name."""
    axes = _axes(axes)
    axes.barh(list(offsets_behind), list(offsets_behind.values()))
    axes.invert_yaxis()
    axes.set_xlabel("offsets behind")
    return axes


def lines(offsets_behind: Mapping[str, Sequence[tuple[datetime, int]]], axes: Axes | None) -> Axes:
    """Draw a line for each query name."""
    axes = _axes(axes)
    for query, points in offsets_behind.items():
        times: Any = [time for time, _ in points]
        axes.plot(times, [offsets for _, offsets in points], label=legend_label(query))
    axes.set_ylabel("offsets behind")
    if offsets_behind:
        axes.legend()
    return axes


def legend_label(name: str) -> str:
    """Return a label for a line; matplotlib leaves labels that begin with "_" out of legends."""
    return plain_text(f" {name}" if name.startswith("_") else name)


def plain_text(text: str) -> str:
    """Return a text that matplotlib shows as it is; it parses text between two "$" as a formula."""
    return text.replace("$", r"\$")


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError("plot() needs matplotlib: pip install 'spark-kafka-source[notebook]'") from error
    return pyplot.subplots()[1]
