"""A query in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_source.watching.sample import Sample

# The time left is computed from these samples.
_NEWEST = 6


def line(samples: Sequence[Sample], name: str) -> str:
    """Return the newest sample as text, such as for a terminal."""
    if not samples:
        return f"{name}: no batch is complete yet"
    last = samples[-1]
    parts = [f"{name}: batch {last.batch}"]
    if last.offsets is not None and last.offsets > last.rows:
        parts.append(f"{last.rows:,} rows of {last.offsets:,} offsets")
    if last.input_rows_per_s is not None:
        parts.append(f"in {last.input_rows_per_s:,.0f} rows/s")
    if last.processed_rows_per_s is not None:
        parts.append(f"processed {last.processed_rows_per_s:,.0f} rows/s")
    if last.batch_s is not None:
        parts.append(f"{last.batch_s:.1f} s")
    if last.lag is not None and last.lag.metrics():
        seconds = last.lag.seconds_behind
        parts.append(f"lag {last.lag.offsets_behind:,}" + ("" if seconds is None else f" ({seconds:.1f} s)"))
        if (left_s := _left_s(samples)) is not None:
            parts.append(f"{left_s:,.0f} s left")
    # Only the newest trigger of a poll asks for the group.
    group = next((sample.group for sample in reversed(samples) if sample.group is not None), None)
    if group is not None:
        parts.append(f"group {group}")
    return ", ".join(parts)


def _left_s(samples: Sequence[Sample]) -> float | None:
    """Return the time until the lag is 0, by its mean change in the newest samples; None if it does not fall."""
    newest = list(samples)[-_NEWEST:]
    backlogs = [(sample.time, sample.lag.offsets_behind) for sample in newest if sample.lag is not None]
    (first, before), (last, now) = backlogs[0], backlogs[-1]
    if not 0 < now < before:
        return None
    return now * (last - first).total_seconds() / (before - now)
