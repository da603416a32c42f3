"""Offsets in CSV files, as `kafka-consumer-groups.sh --export` writes and `--from-file` reads them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from protocol.kafka_terms import TopicPartition


def read_offsets(text: str) -> dict[TopicPartition, int]:
    """Read a file with a row `topic,partition,offset` per partition. Raises `ValueError`."""
    offsets: dict[TopicPartition, int] = {}
    try:
        with Path(text).open(newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row:
                    continue
                try:
                    topic, partition, offset = row
                    key, value = (topic, int(partition)), int(offset)
                except ValueError:
                    raise ValueError(f"line {number}: a row is topic,partition,offset") from None
                if key in offsets or min(key[1], value) < 0:
                    raise ValueError(f"line {number}: a partition appears twice, or a number is negative")
                offsets[key] = value
    except OSError as error:
        raise ValueError(str(error.strerror)) from error
    except csv.Error as error:
        raise ValueError(str(error)) from error
    if not offsets:
        raise ValueError("the file has no rows")
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write a file that `read_offsets` and Kafka's tool can read."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows((*key, offset) for key, offset in sorted(offsets.items()))
