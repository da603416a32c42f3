"""Values of options: durations in two notations, and partitions of a topic."""

from __future__ import annotations

from typing import Any

import click
import pytest

from spark_kafka_source.cli.values import DURATION, TOPIC_PARTITIONS

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        *(("7d", 7 * 24 * HOUR_MS), ("90s", 90_000), ("250", 250), ("p1d", 24 * HOUR_MS)),
        *(("PT1H30M", HOUR_MS * 3 // 2), ("P2DT3H4M5S", 51 * HOUR_MS + 245_000), ("PT0S", 0), ("pt1.5s", 1_500)),
    ],
)
def test_duration_is_parsed_to_milliseconds(text: str, duration_ms: int) -> None:
    assert DURATION.convert(text, None, None) == duration_ms


@pytest.mark.parametrize("text", ["P", "PT", "P1H", "P1DT", "", "soon", "-1s"])
def test_malformed_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a duration"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize("text", ["999999999999999d", "P99999999999999999999D"])
def test_duration_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="out of range"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "result"),
    [("orders", ("orders", None)), ("orders:0", ("orders", (0,))), ("orders:3,1,3", ("orders", (1, 3)))],
)
def test_topic_partitions_are_parsed(text: str, result: Any) -> None:
    assert TOPIC_PARTITIONS.convert(text, None, None) == result


@pytest.mark.parametrize("text", ["orders:", "orders:x", "orders:1,", "orders:0:1", "orders:-1"])
def test_malformed_topic_partitions_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="orders:0,1"):
        TOPIC_PARTITIONS.convert(text, None, None)
