"""The picture of a query: rates, batch time, lag by partition in records and in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from protocol.errors import UsageError
from spark_kafka_source.lag.plot import legend_label, plain_text
from spark_kafka_source.lag.table import PartitionLag
from spark_kafka_source.watching.line import line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from spark_kafka_source.watching.sample import Sample

# More lines than these are unreadable.
_MOST_LINES = 8
_SIZE = (10, 5.6)
_UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))


def draw(samples: Sequence[Sample], name: str) -> Figure:
    """Return a figure of all samples, without pyplot, so that no notebook shows it a second time.

    Raises `UsageError` if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "the picture of a query needs matplotlib: pip install 'spark-kafka-source[notebook]'"
        ) from error
    figure = Figure(figsize=_SIZE, layout="constrained")
    figure.suptitle(plain_text(line(samples, name)), fontsize=10)
    rates, durations, records, seconds = figure.subplots(2, 2, sharex=True).flat
    unit, times = _elapsed(samples)
    _plot(rates, times, [sample.input_rows_per_s for sample in samples], "in")
    _plot(rates, times, [sample.processed_rows_per_s for sample in samples], "processed")
    _finish(rates, "rows per second")
    _plot(durations, times, [sample.batch_s for sample in samples], None)
    _finish(durations, "batch time in seconds")
    _partitions(records, samples, times, lambda row: row.offsets_behind)
    _finish(records, "lag in records")
    _partitions(seconds, samples, times, lambda row: row.seconds_behind)
    _finish(seconds, "lag in seconds")
    if not seconds.lines:
        hint = "no trigger yet" if not samples else "needs options= with the brokers' addresses"
        seconds.text(0.5, 0.5, hint, ha="center", va="center", color="gray", transform=seconds.transAxes)
    if samples:
        figure.supxlabel(f"{unit} since {samples[0].time:%Y-%m-%d %H:%M:%S} UTC", fontsize=8)
    return figure


def _elapsed(samples: Sequence[Sample]) -> tuple[str, list[float]]:
    """Return a unit of time, and the times of the samples in it."""
    seconds = [(sample.time - samples[0].time).total_seconds() for sample in samples]
    unit, size = next((unit for unit in _UNITS if seconds and seconds[-1] > 3 * unit[1]), _UNITS[-1])
    return unit, [second / size for second in seconds]


def _partitions(
    axes: Axes, samples: Sequence[Sample], times: Sequence[float], value: Callable[[PartitionLag], float | None]
) -> None:
    """Draw a line for each partition; for many partitions, only for those with the largest lag.

    If several sources read a partition, the line has the largest lag of them.
    """
    lines: dict[str, dict[float, float]] = {}
    for time, sample in zip(times, samples, strict=True):
        for row in sample.lag or ():
            if (lag := value(row)) is not None:
                points = lines.setdefault(f"{row.topic}-{row.partition}", {})
                points[time] = max(lag, points.get(time, lag))
    largest = sorted(lines, key=lambda partition: -max(lines[partition].values()))[:_MOST_LINES]
    for partition in sorted(largest):
        _plot(axes, list(lines[partition]), list(lines[partition].values()), legend_label(partition))
    if len(lines) > _MOST_LINES:
        axes.set_title(f"the {_MOST_LINES} of {len(lines)} partitions with the largest lag", fontsize=8, loc="right")


def _plot(axes: Axes, times: Sequence[float], values: Sequence[float | None], label: str | None) -> None:
    points = [(time, value) for time, value in zip(times, values, strict=True) if value is not None]
    if points:
        axes.plot(*zip(*points, strict=True), marker=".", markersize=4, linewidth=1.2, label=label)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False)
