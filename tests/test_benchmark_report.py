"""The ratios that benchmarks print."""

from __future__ import annotations

from benchmarks import report
from benchmarks.job import JVM, OURS, Figure, Job


def test_ratio_of_paired_rounds_is_the_median_of_pairs_with_their_range() -> None:
    """The machine became half as fast in the last round: the ratio of medians would be 1.5."""
    ours, figure = (
        Figure("source", "100 B", "batch read", "records/s", who, samples, paired=True)
        for who, samples in ((OURS, (20.0, 30.0, 10.0)), (JVM, (10.0, 20.0, 5.0)))
    )
    assert "2.00, of 3 pairs from 1.50 to 2.00 (at least 1: reached)" in report.table([ours, figure])


def test_fresh_session_has_more_unmeasured_rounds() -> None:
    job = Job("broker-1:9092", rounds=2, warm_up_rounds=3)
    assert list(job.round_numbers(fresh=True)) == [-2, -1, 0, 1, 2]
    assert list(job.round_numbers(fresh=False)) == [0, 1, 2]
