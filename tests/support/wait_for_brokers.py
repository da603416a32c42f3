"""Wait until all brokers agree about a topic and its transactions.

They learn of what happens to it one after the other, and which of them a client asks is left to chance: a topic that
one of them knows may be unknown to the next one, and one that was deleted may still be served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.metadata import Topic
from protocol.config import parse_client
from protocol.fetch.list_offsets import list_offsets
from protocol.kafka_terms import EARLIEST, LATEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_until import attempts, wait_until

_TIMEOUT_S = 30.0
_LEVELS = "committed", "uncommitted"


def wait_until_known(kafka: LocalKafka, topic: str, partitions: int) -> None:
    """Wait until every running broker knows the leader of each partition, and the leaders serve requests."""

    def known(metadata: Topic) -> bool:
        return len(metadata.partitions) == partitions and all(
            partition.leader >= 0 for partition in metadata.partitions.values()
        )

    _wait(kafka, topic, known, f"be known with {partitions} partitions")
    # Metadata names a leader before that broker serves the partition.
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        list_offsets(client, dict.fromkeys([(topic, number) for number in range(partitions)], EARLIEST))


def wait_until_gone(kafka: LocalKafka, topic: str) -> None:
    """Wait until no running broker knows the topic."""
    _wait(kafka, topic, lambda metadata: metadata.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "be gone")


def wait_until_decided(kafka: LocalKafka, partitions: Iterable[tuple[str, int]]) -> None:
    """Wait until all markers of ended transactions are written: a coordinator answers before that."""
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers})) as client:
        _wait_until_decided(client, partitions)


def wait_until_topic_decided(servers: str, topic: str) -> None:
    """Call `wait_until_decided` for all partitions of the topic."""
    with Client(parse_client({"bootstrap.servers": servers})) as client:
        _wait_until_decided(client, [(topic, number) for number in client.topic(topic).partitions])


def _wait_until_decided(client: Client, partitions: Iterable[tuple[str, int]]) -> None:
    times = dict.fromkeys(partitions, LATEST)
    for _ in attempts(_TIMEOUT_S, 0.02):
        committed, all_ = (list_offsets(client, times, isolation_level=f"read_{level}") for level in _LEVELS)
        if committed == all_:
            return
    raise AssertionError(f"some transaction is still open after {_TIMEOUT_S:.0f} s")


def _wait(kafka: LocalKafka, topic: str, agreed: Callable[[Topic], bool], label: str) -> None:
    def agrees(broker_id: int) -> bool:
        # A new client per broker: after its first metadata a client may ask any broker.
        with Client(parse_client({"bootstrap.servers": kafka.address(broker_id)})) as client:
            return agreed(client.metadata([topic]).topics[topic])

    for broker_id in kafka.broker_ids:
        if kafka.pid(broker_id) is not None:
            label_of_broker = f"{topic} was to {label} at broker {broker_id} in {_TIMEOUT_S:.0f} s"
            wait_until(partial(agrees, broker_id), partial(str, label_of_broker), _TIMEOUT_S, 0.02)
