"""What Kafka's own ConsumerGroupCommand says of a group, as rows, and who keeps it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from protocol.cluster.client import Client
from protocol.config import parse_client
from spark_kafka_source.local_kafka import LocalKafka


@dataclass(frozen=True)
class GroupRow:
    """One line of `--describe`; None where the tool prints "-"."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None


def describe(kafka: LocalKafka, group: str) -> list[GroupRow]:
    """The rows of `kafka-consumer-groups.sh --describe --group GROUP`, sorted by topic and partition."""
    rows = []
    header: list[str] = []
    for line in kafka.describe_group(group).splitlines():
        words = line.split()
        if words[:1] == ["GROUP"]:
            header = words
        elif header and words[:1] == [group]:
            cells = dict(zip(header, words, strict=False))
            rows.append(
                GroupRow(
                    cells["TOPIC"],
                    int(cells["PARTITION"]),
                    _number(cells["CURRENT-OFFSET"]),
                    _number(cells["LOG-END-OFFSET"]),
                    _number(cells["LAG"]),
                )
            )
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def wait_for_lag_zero(kafka: LocalKafka, group: str, partitions: int, timeout_s: float = 30) -> list[GroupRow]:
    """Asks until every one of `partitions` rows has lag 0."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        rows = describe(kafka, group)
        if len(rows) == partitions and all(row.lag == 0 for row in rows):
            return rows
        assert time.monotonic() < give_up_s, f"no lag 0 on {partitions} partitions after {timeout_s} s: {rows}"


def coordinator_of(kafka: LocalKafka, group: str) -> int:
    """The id of the broker that keeps the group's offsets just now."""
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        deadline = client.deadline()
        what = f"FindCoordinator of {group}"
        return client.retrying(what, lambda: client.coordinator(group, deadline), deadline).node_id


def _number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)
