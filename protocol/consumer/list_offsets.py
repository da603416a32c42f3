"""Offsets by time: the earliest, the latest, or the first at or after a timestamp, of many partitions at once.

Runs wherever its caller does (for Spark: the driver). One ListOffsets request per leader; what fails for a moment
is asked again in the one retry loop, and only that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.cluster.unknown_topic import is_unknown_topic
from protocol.consumer.listed_offset import ListedOffset
from protocol.errors import BrokerError, Corrupt, KafkaError
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS

LATEST = -1
EARLIEST = -2

TopicPartition = tuple[str, int]


def list_offsets(
    client: Client,
    times: Mapping[TopicPartition, int],
    *,
    isolation_level: str = "read_uncommitted",
    deadline: Deadline | None = None,
    max_attempts: int | None = None,
    known_epochs: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """For each partition the offset at `times[partition]`: milliseconds, or `LATEST` or `EARLIEST`.

    With `read_committed`, `LATEST` is the last stable offset (KIP-98). Raises `DeadlineExceeded` or `BrokerError`,
    and `TopicUnknown` when brokers say for long that a partition is not there. `known_epochs`, for `LATEST`, are leader
    epochs that the partitions have had: who leads by an older one must not be believed, and is asked again.
    """
    deadline = deadline or client.deadline()
    found: dict[TopicPartition, ListedOffset] = {}
    isolation = 1 if isolation_level == "read_committed" else 0
    # Versions below 2 ignore the isolation level: the answer would be another offset, silently.
    at_least = 2 if isolation else 1

    def attempt() -> dict[TopicPartition, ListedOffset]:
        failures: list[KafkaError] = []
        requests: dict[Broker, dict[str, Any]] = {}
        missing = [key for key in times if key not in found]
        by_leader = _by_leader(client, missing, deadline, failures)
        for broker, keys in by_leader.items():
            topics: dict[str, list[dict[str, Any]]] = {}
            for topic, partition in keys:
                row = {"partition_index": partition, "timestamp": times[topic, partition]}
                topics.setdefault(topic, []).append(row)
            asked = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
            requests[broker] = {"replica_id": -1, "isolation_level": isolation, "topics": asked}
        bodies, failure = client.ask_many(requests, LIST_OFFSETS, deadline, at_least=at_least)
        if failure is not None:
            failures.append(failure)
        for broker, body in bodies.items():
            rows = {
                (topic["name"], row["partition_index"]): row for topic in body["topics"] for row in topic["partitions"]
            }
            for key in by_leader[broker]:
                _take(key, rows.get(key), broker, found, failures, (known_epochs or {}).get(key, -1))
        if failures:
            raise next(filter(is_unknown_topic, failures), failures[0])
        return found

    names = sorted({topic for topic, _ in times})
    what = f"ListOffsets of {len(times)} partition(s) of {', '.join(names[:5])}"
    return client.retrying(what, attempt, deadline, topics=names, max_attempts=max_attempts)


def stale_leader(where: str, latest: ListedOffset, known_epoch: int) -> BrokerError:
    """What a broker should have said in place of `latest` (see `is_stale`): metadata is out of date, ask again."""
    what = f"{where}: the leader is of epoch {latest.leader_epoch}, and there was one of epoch {known_epoch} before"
    return broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, what)


def _by_leader(
    client: Client, keys: Iterable[TopicPartition], deadline: Deadline, failures: list[KafkaError]
) -> dict[Broker, list[TopicPartition]]:
    found, without = client.leaders(keys, deadline)
    failures += without.values()
    grouped: dict[Broker, list[TopicPartition]] = {}
    for key, (broker, _) in found.items():
        grouped.setdefault(broker, []).append(key)
    return grouped


def _take(
    key: TopicPartition,
    row: Mapping[str, Any] | None,
    broker: Broker,
    found: dict[TopicPartition, ListedOffset],
    failures: list[KafkaError],
    known_epoch: int,
) -> None:
    topic, partition = key
    what = f"ListOffsets of {topic}-{partition} at {broker}"
    if row is None:
        failures.append(Corrupt(f"{what}: the reply leaves it out", topic=topic, partition=partition))
    elif row["error_code"] != ErrorCode.NONE:
        failures.append(broker_error(row["error_code"], what, topic=topic, partition=partition))
    else:
        listed = ListedOffset(row["offset"], row["leader_epoch"], row["timestamp"])
        if listed.is_stale(known_epoch):
            failures.append(stale_leader(what, listed, known_epoch))
        else:
            found[key] = listed
