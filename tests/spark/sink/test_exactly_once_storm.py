"""An exactly-once copy of 100,000 rows with random kills of Spark's processes or of brokers, and a concurrent reader.

For `make soak`: it takes minutes.
"""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import confluent_kafka
import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator, transaction_coordinator
from protocol.cluster.metadata import Broker
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.chaos import Actor, Chaos, ChosenBroker, Move, State
from tests.support.copied_exactly_once import Copy, write_numbers
from tests.support.kafka_proxy import KafkaProxy
from tests.support.soak import SOAK, scaled
from tests.support.wait_until import comes_true

KILLS = scaled("KILLS", 1, 20)
PARTITIONS = 9
ROWS = 100_000

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not SOAK, reason="takes minutes: make soak"),
    pytest.mark.timeout(300 + 60 * KILLS),
]


class Reader:
    """Reads committed transactions in a thread. `values` are by partition, in their order."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.values: dict[int, list[int]] = defaultdict(list)
        self._ended = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        places = [confluent_kafka.TopicPartition(topic, n, confluent_kafka.OFFSET_BEGINNING) for n in range(PARTITIONS)]
        self._consumer.assign(places)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(10_000, timeout=0.2):
                if message.error() is None:
                    self.values[message.partition()].append(int(message.value()))

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()


@contextmanager
def copied(spark: SparkSession, kafka: LocalKafka, target: str, folder: Path) -> Iterator[Copy]:
    """Copy with about two batches per kill; then check the rows and those of a concurrent reader, in order."""
    source = write_numbers(kafka, f"numbers-{uuid.uuid4().hex[:8]}", PARTITIONS, ROWS, len(kafka.broker_ids))
    options = {"maxOffsetsPerTrigger": str(ROWS // (2 * max(KILLS, 5))), "kafka.batch.size": "2000"}
    reader = Reader(kafka, target)
    try:
        with KafkaProxy.of(kafka) as proxy:
            copy = Copy(spark, kafka, proxy, source, target, PARTITIONS, ROWS, folder / "checkpoint", options)
            yield copy
            copy.check()
        comes_true(lambda: reader.count >= ROWS, 60)
    finally:
        reader.close()
    assert reader.values == {p: list(range(p, ROWS, PARTITIONS)) for p in range(PARTITIONS)}


def run_through(copy: Copy, actors: Sequence[Actor], kills: int) -> None:
    """Run the query to its end, killing an actor at random times; start the query again when it fails."""
    rng = random.Random(5)
    chaos = Chaos(actors, rng, {Move.KILL: 1})
    chaos.start_all()
    try:
        while True:
            query = copy.start()
            with contextlib.suppress(StreamingQueryException):
                while not query.awaitTermination(rng.uniform(0.3, 2)):
                    if chaos.counts[Move.KILL] < kills or chaos.those(State.DOWN):
                        chaos.step()
                return
    finally:
        chaos.start_all()


class SparkWorker(Actor):
    """One of Spark's Python processes that forks no others; Spark starts the next one."""

    killed = 0

    def start(self) -> None:
        pass

    def kill(self) -> None:
        daemons = [process for process in psutil.Process().children(recursive=True) if _is_daemon(process)]
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # there may be none at this moment
            random.choice([daemon for daemon in daemons if daemon.parent() in daemons]).kill()
            self.killed += 1


def _is_daemon(process: psutil.Process) -> bool:
    """Return True for PySpark's daemon and the workers that it has forked, which have the same command line."""
    with contextlib.suppress(psutil.NoSuchProcess):  # the process may have ended
        return "daemon" in " ".join(process.cmdline())
    return False


def test_exactly_once_copy_survives_random_process_kills(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    with copied(spark, kafka1, topic1(PARTITIONS), tmp_path) as copy:
        worker = SparkWorker()
        run_through(copy, [worker], KILLS * 2)
        assert worker.killed >= KILLS


def test_exactly_once_copy_survives_broker_kills(
    spark: SparkSession, kafka: LocalKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Kill a partition's leader, a transaction coordinator and the coordinator of the ledger's group."""
    target = topic(PARTITIONS, replication_factor=3, config={"min.insync.replicas": "2"})
    victims: list[Callable[[Client, Deadline, str], Broker]] = [
        lambda client, deadline, _: client.leader(target, 0, deadline)[0],
        lambda client, deadline, query: client.coordinator(transaction_coordinator(f"copy-{query}-0"), deadline),
        lambda client, deadline, query: client.coordinator(group_coordinator(f"copy-{query}"), deadline),
    ]
    killed: Counter[int] = Counter()

    def choose(number: int) -> int:
        killed[number] += 1
        query_id = (copy.checkpoint / "metadata").read_text().split('"')[3]
        with copy.client() as client:
            deadline = client.deadline()
            ask = partial(victims[number], client, deadline, query_id)
            return client.retrying("whom to kill", ask, deadline, topics=[target]).node_id

    with copied(spark, kafka, target, tmp_path) as copy:
        actors = [ChosenBroker(kafka, partial(choose, number)) for number in range(len(victims))]
        run_through(copy, actors, max(5, KILLS // 2))
    assert killed.total() >= 3
