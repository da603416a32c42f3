"""The consumer without a group, on a real Kafka: rows, requests, and closing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.protocol.fetch.conftest import Written
from tests.protocol.fetch.consuming import client_of, consumer_of, consumer_threads, produce, read_all
from tests.support.kafka_proxy import Exchange, KafkaProxy
from tests.support.read_back import read_back
from tests.support.soak import SOAK, scaled
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

# `make soak` sets a thousand.
CYCLES = scaled("CYCLES", 50, 1_000)
# Partitions of one topic; brokers need long to create them.
MANY = 1_000 if SOAK else 300


def test_rows_equal_those_of_librdkafka(kafka: LocalKafka, written: Written, client: Client) -> None:
    name = written(9_000, 9, settings={"batch.size": 4_096, "compression.type": "lz4"})
    expected: dict[int, list[tuple[int, bytes | None]]] = {number: [] for number in range(9)}
    for record in read_back(kafka, name):
        expected[record.partition].append((record.offset, record.value))
    with consumer_of(client, {"max.partition.fetch.bytes": 5_000}) as consumer:
        consumer.consume_partitions({(name, number): EARLIEST for number in range(9)})
        assert read_all(consumer, 9_000) == expected


@pytest.mark.parametrize(("isolation_level", "values"), [("read_committed", 3), ("read_uncommitted", 9)])
def test_committed_rows_of_transactions_are_read(
    kafka: LocalKafka, topic: TopicFactory, client: Client, isolation_level: str, values: int
) -> None:
    """Three committed, three aborted, three open transactions: the position stays before the open ones."""
    name = topic(1)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction, producer.flush):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(name, b"%d" % number)
        producer.flush()
        end()
    with consumer_of(client, {"isolation.level": isolation_level}) as consumer:
        stream = consumer.consume_partition(name, 0, EARLIEST)
        assert sum(len(rows) for rows in read_all(consumer, values).values()) == values
        assert consumer.poll(50) is None
        assert (stream.high_water_mark, stream.last_stable_offset) == (11, 8)
        assert stream.position == (8 if isolation_level == "read_committed" else 11)
        assert stream.lag == 0
    producer.abort_transaction()


_OF_MANY = """
import json, sys, time
from protocol.kafka_terms import LATEST
from tests.support.peak_memory import peak_rss_bytes
from tests.protocol.fetch.consuming import client_of, consumer_of
topic, partitions, servers = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with client_of(servers) as client, consumer_of(client) as consumer:
    streams = consumer.consume_partitions({(topic, number): LATEST for number in range(partitions)})
    while any(stream.lag is None for stream in streams.values()):
        assert consumer.poll(50) is None
    fetches, started_s, cpu_s = consumer.fetches, time.monotonic(), time.process_time()
    assert consumer.poll(2_600) is None
    fetches = consumer.fetches - fetches
    seconds = time.monotonic() - started_s
    print(json.dumps({
        "fetches": fetches,
        "seconds": seconds,
        "rss_mib": peak_rss_bytes() / 2**20,
        "cpu": (time.process_time() - cpu_s) / seconds,
    }))
"""


def test_many_partitions_on_three_brokers_cost_three_requests_a_round(kafka: LocalKafka, topic: TopicFactory) -> None:
    """Caught up. A round lasts fetch.max.wait.ms, half a second; the first one may have begun before."""
    name = topic(MANY)
    observed: list[tuple[int, int, int]] = []

    def note(exchange: Exchange) -> float:
        body = exchange.request()
        rows = sum(len(topic["partitions"]) for topic in body["topics"])
        observed.append((body["session_id"], body["session_epoch"], rows))
        return 0.0

    with KafkaProxy.of(kafka) as proxy:
        proxy.requests[FETCH] = note
        done = subprocess.run(
            [sys.executable, "-c", _OF_MANY, name, str(MANY), proxy.servers],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        wait_until(lambda: sum(epoch == -1 for _, epoch, _ in observed) == 3)
    measured = json.loads(done.stdout)
    print(measured)
    assert measured["fetches"] <= 3 * (measured["seconds"] / 0.5 + 1)
    assert measured["rss_mib"] < 250
    full = [rows for session, epoch, rows in observed if epoch == 0]
    assert (len(full), sum(full)) == (3, MANY), "each broker got one full request"
    assert {rows for _, epoch, rows in observed if epoch > 0} == {0}, "later requests name no changes"
    assert all(session > 0 for session, epoch, _ in observed if epoch == -1), "the sessions are closed"


def test_waiting_broker_does_not_delay_others(kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
    """One broker has a partition without new records; records of another broker arrive while it is still
    waiting."""
    name = topic(3, replication_factor=1)

    def leaders() -> set[int]:
        return {client.leader(name, number)[0].node_id for number in range(3)}

    # Brokers learn of a new topic at different times.
    assert len(client.retrying("the leaders", leaders, client.deadline(), topics=[name])) == 3
    with consumer_of(client, {"fetch.max.wait.ms": 20_000}) as consumer:
        streams = consumer.consume_partitions({(name, number): LATEST for number in range(3)})
        wait_until(lambda: consumer.fetches >= 6)  # each broker has its second Fetch, which waits
        for number in (0, 1, 2, 0, 1, 2):
            produce(kafka, name, range(number, number + 1), 3)
            started_s = time.monotonic()
            assert streams[name, number].poll(30_000) is not None
            assert time.monotonic() - started_s < 15


def test_closed_consumers_leave_no_threads_and_sockets(kafka: LocalKafka, written: Written) -> None:
    name = written(30, 3)
    with client_of(kafka) as client:

        def left() -> tuple[int, int, int]:
            return threading.active_count(), len(os.listdir("/proc/self/fd")), len(client.pool)

        def no_more_than(before: tuple[int, int, int]) -> bool:
            # The check of a broker that was slow once has a separate connection, which stays.
            return all(now <= then + 3 for now, then in zip(left(), before, strict=True))

        first: tuple[int, int, int] | None = None
        earlier_threads = consumer_threads()
        for cycle in range(CYCLES):
            with consumer_of(client) as consumer:
                consumer.consume_partitions({(name, number): EARLIEST for number in range(3)})
                if cycle % 2:
                    read_all(consumer, 30)
            assert consumer_threads() <= earlier_threads
            if cycle == 5:  # the client's own connections are open by now
                first = left()
        # librdkafka, in the same process, may still be closing threads of earlier tests.
        wait_until(lambda: first is not None and no_more_than(first))


def test_close_wakes_readers_without_waiting_for_fetches(topic: TopicFactory, client: Client) -> None:
    name = topic(1)
    consumer = consumer_of(client, {"fetch.max.wait.ms": 20_000})
    stream = consumer.consume_partition(name, 0, LATEST)
    wait_until(lambda: consumer.fetches >= 2)
    ended: list[Any] = []
    users = [threading.Thread(target=lambda: ended.append(list(stream)))]
    users.append(threading.Thread(target=lambda: ended.append(list(consumer))))
    for user in users:
        user.start()
    started_s = time.monotonic()
    consumer.close()
    for user in users:
        user.join(15)
    assert time.monotonic() - started_s < 15
    assert ended == [[], []]
    assert consumer.close() is None


def test_follower_in_the_clients_rack_is_read_and_else_the_leader(kafka: LocalKafka, topic: TopicFactory) -> None:
    """KIP-392. A lagging follower reports an offset out of range or a truncated log; neither moves the position."""
    name = topic(6, replication_factor=3)
    produce(kafka, name, range(6_000), 6, settings={"batch.size": 1_000})
    served: dict[int, int] = dict.fromkeys(kafka.broker_ids, 0)
    refused: list[int] = []

    def count(exchange: Exchange) -> float | bytes:
        body = exchange.reply()
        rows = [row for topic in body["responses"] for row in topic["partitions"]]
        if exchange.broker_id == 2 and rows and served[2] > 10_000 and len(refused) < 4:
            refused.append(exchange.number)
            for row in rows:
                if len(refused) % 2:
                    row.update(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, records=b"")
                else:
                    row.update(diverging_epoch={"epoch": 0, "end_offset": 0}, records=b"")
            return exchange.reply_with(body)
        served[exchange.broker_id] += sum(len(row["records"] or b"") for row in rows)
        return 0.0

    with KafkaProxy.of(kafka) as proxy, client_of(proxy.servers) as client:
        proxy.replies[FETCH] = count
        properties = {"client.rack": "rack-2", "max.partition.fetch.bytes": 4_000}
        with consumer_of(client, properties) as consumer:
            leaders = {number: client.leader(name, number)[0].node_id for number in range(6)}
            assert set(leaders.values()) == {1, 2, 3}
            followed = [number for number, leader in leaders.items() if leader == 1]
            consumer.consume_partitions({(name, number): EARLIEST for number in followed})
            result = read_all(consumer, 1_000 * len(followed))
            assert all([offset for offset, _ in rows] == list(range(1_000)) for rows in result.values())
    assert len(refused) == 4
    assert served[1] == served[3] == 0
    assert served[2] > 0
