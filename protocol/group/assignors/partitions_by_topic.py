"""Partitions in the layout of the consumer protocol: one row per topic, with its partition numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from protocol.errors import Corrupt
from protocol.kafka_terms import TopicPartition

MAX_PARTITIONS = 1_000_000
"""Maximum per member. A partition has four bytes in a frame, and up to 200 bytes in memory."""


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Return rows of `TOPIC_PARTITION`, sorted."""
    numbers = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    return [{"topic": topic, "partitions": each} for topic, each in numbers.items()]


def flat(rows: list[dict[str, Any]]) -> frozenset[TopicPartition]:
    """Return the partitions of rows of `TOPIC_PARTITION`; raise `Corrupt` for more than `MAX_PARTITIONS`."""
    count = sum(len(row["partitions"]) for row in rows)
    if count > MAX_PARTITIONS:
        raise Corrupt(f"{count} partitions of one member; at most {MAX_PARTITIONS} are allowed")
    return frozenset((row["topic"], number) for row in rows for number in row["partitions"])
