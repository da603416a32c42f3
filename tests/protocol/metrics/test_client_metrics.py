"""Metrics of a client on a real broker: totals equal what was written and read, lag equals that of Kafka's own tool."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from protocol import (
    Client,
    CommittedOffset,
    DeadlineExceeded,
    KafkaConsumer,
    Producer,
    TransactionalProducer,
    UsageError,
)
from protocol.broker_errors import ErrorCode
from protocol.group.member import ConsumerGroupMetadata
from protocol.metrics.client_sensors import Histogram
from protocol.metrics.definitions import DEFINITIONS
from protocol.testing import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.metrics.values import value_of
from tests.support.wait_until import wait_until

RECORDS, PARTITIONS, VALUE_BYTES = 9_000, 3, 100
CONFIG = {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}


def test_totals_equal_what_was_written_and_read(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic, servers = topic1(PARTITIONS), {"bootstrap.servers": kafka1.bootstrap_servers}
    with Producer(servers, client_id="writer") as producer:
        _write(producer, topic, RECORDS, PARTITIONS)
        written = producer.metrics()
    log_bytes = _log_bytes(kafka1, topic)
    assert value_of(written, "record-send-total", "producer-metrics") == RECORDS
    assert value_of(written, "record-send-total", topic=topic) == RECORDS
    assert value_of(written, "record-error-total", "producer-metrics") == 0
    assert value_of(written, "byte-total", topic=topic) == log_bytes
    assert value_of(written, "compression-rate-avg") == pytest.approx(1, abs=0.05)
    assert value_of(written, "buffer-available-bytes") == value_of(written, "buffer-total-bytes")
    requests = RECORDS / value_of(written, "records-per-request-avg")
    assert requests == producer.requests
    latency_ms = value_of(written, "request-latency-avg", "producer-metrics")
    assert 0 < latency_ms <= value_of(written, "request-latency-max", "producer-metrics")
    assert value_of(written, "outgoing-byte-total", "client-metrics") > log_bytes
    assert {metric.tags["client-id"] for metric in written} == {"writer"}
    node = {"node-id": "node-1", "broker": kafka1.bootstrap_servers}
    assert value_of(written, "outgoing-byte-total", **node) > log_bytes
    with KafkaConsumer(servers, {**CONFIG, "group.id": f"{topic}-group"}) as consumer:
        consumer.subscribe([topic])
        _read(consumer, RECORDS)
        consumer.commit_sync()
        # A reply counts as a batch once the next poll has found its end.
        wait_until(lambda: (consumer.poll(0), _batch_sizes(consumer).total == RECORDS)[1])
        read = consumer.metrics()
    assert value_of(read, "records-consumed-total") == RECORDS
    assert value_of(read, "records-consumed-total", topic=topic) == RECORDS
    assert value_of(read, "bytes-consumed-total") == log_bytes
    assert value_of(read, "incoming-byte-total", "client-metrics") > log_bytes
    assert value_of(read, "assigned-partitions") == PARTITIONS
    assert value_of(read, "rebalance-total") == 1
    assert value_of(read, "rebalance-latency-max") > 0
    assert value_of(read, "join-total") >= 1
    assert value_of(read, "sync-total") >= 1
    assert value_of(read, "commit-total") == 1
    assert 0 < value_of(read, "fetch-latency-avg") <= value_of(read, "fetch-latency-max")
    assert value_of(read, "fetch-total") >= 1
    assert value_of(read, "last-poll-seconds-ago") >= 0


def test_lag_equals_that_of_kafkas_tool(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic, servers = topic1(2), {"bootstrap.servers": kafka1.bootstrap_servers}
    group = f"{topic}-group"
    with Producer(servers) as producer:
        _write(producer, topic, 20_000, 2)
    with KafkaConsumer(servers, {**CONFIG, "group.id": group}) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        wait_until(lambda: (consumer.poll(100), len(_lags(consumer)) == 2)[1], timeout_s=60)
        consumer.pause([(topic, 0), (topic, 1)])
        consumer.seek((topic, 0), 4_000)
        consumer.seek((topic, 1), 9_999)
        consumer.commit_sync()
        lags = _lags(consumer)
        assert lags == {0: 6_000, 1: 1} == _lags_of_tool(kafka1, group)
        assert value_of(consumer.metrics(), "records-lag-max") >= 6_000


def test_metrics_of_shared_client_are_those_of_all_its_users(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(2)
    with Client({"bootstrap.servers": kafka1.bootstrap_servers}) as client:
        for _ in range(2):
            with Producer(client) as producer:
                _write(producer, topic, 100, 2)
        with KafkaConsumer(client, CONFIG) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            _read(consumer, 200)
            assert {metric.group.split("-")[0] for metric in consumer.metrics()} == {"client", "consumer"}
        metrics = client.metrics()
        assert value_of(metrics, "record-send-total", "producer-metrics") == 200
        assert value_of(metrics, "records-consumed-total") == 200
        assert client.metrics(["producer-metrics"]) != []
        assert {metric.group for metric in client.metrics(["producer-metrics"])} == {"producer-metrics"}
        assert value_of(metrics, "connection-count") >= 1
        client.close()
        assert value_of(client.metrics(), "connection-count") == 0


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as fake:
        fake.create_topic("orders", 1)
        yield fake


def _write(producer: Producer, topic: str, records: int, partitions: int) -> None:
    values = pa.array([b"%0*d" % (VALUE_BYTES, number) for number in range(records)], pa.binary())
    numbers = np.arange(records, dtype=np.int32) % partitions
    producer.send_columns(topic, pa.RecordBatch.from_pydict({"value": values}), numbers)
    producer.flush()


def _columns(*sizes_bytes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([bytes(sample) for sample in sizes_bytes], pa.binary())})


def _read(consumer: KafkaConsumer, records: int) -> None:
    count = 0

    def all_read() -> bool:
        nonlocal count
        count += consumer.poll(500).num_rows
        return count >= records

    wait_until(all_read, timeout_s=120, every_s=0.0)


def _log_bytes(kafka: LocalKafka, topic: str) -> int:
    tool = "org.apache.kafka.tools.LogDirsCommand"
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--topic-list", topic)
    (line,) = (line for line in kafka.run_tool(tool, *where).splitlines() if line.startswith("{"))
    folders = [folder for broker in json.loads(line)["brokers"] for folder in broker["logDirs"]]
    return sum(partition["size"] for folder in folders for partition in folder["partitions"])


def _lags_of_tool(kafka: LocalKafka, group: str) -> dict[int, int]:
    """Lag by partition, of kafka-consumer-groups.sh."""
    lines = [line.split() for line in kafka.describe_group(group).splitlines() if line.startswith(group)]
    return {int(line[2]): int(line[5]) for line in lines}


def _batch_sizes(consumer: KafkaConsumer) -> Histogram:
    (sizes,) = (metric.value for metric in consumer.metrics() if metric.name == "consumer-batch-size")
    assert isinstance(sizes, Histogram)
    return sizes


def _lags(consumer: KafkaConsumer) -> dict[int, float]:
    lags = {}
    for metric in consumer.metrics():
        if metric.name == "records-lag":
            assert not isinstance(metric.value, Histogram)
            lags[int(metric.tags["partition"])] = metric.value
    return lags


def test_producer_counts_the_time_of_its_calls_that_return(fake: FakeKafka) -> None:
    properties = {"bootstrap.servers": fake.bootstrap_servers, "transactional.id": "t"}
    with TransactionalProducer(properties) as producer:

        def spent() -> set[str]:
            return {
                metric.name.removesuffix("-time-ns-total")
                for metric in producer.metrics()
                if metric.name.endswith("-time-ns-total") and metric.value
            }

        assert spent() == set()
        producer.init_transactions()
        assert spent() == {"txn-init"}
        with pytest.raises(UsageError):
            producer.commit_transaction()
        producer.begin_transaction()
        assert spent() == {"txn-init", "txn-begin"}
        producer.send("orders", b"1")
        assert spent() == {"txn-init", "txn-begin", "metadata-wait"}
        producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(1)}, ConsumerGroupMetadata("g"))
        producer.commit_transaction()
        assert spent() == {"txn-init", "txn-begin", "metadata-wait", "txn-send-offsets", "txn-commit"}
        producer.begin_transaction()
        producer.send("orders", b"2")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.prepare_transaction()
        assert spent() >= {"flush", "txn-abort", "txn-prepare"}
        (commit,) = [metric for metric in producer.metrics() if metric.name == "txn-commit-time-ns-total"]
        assert isinstance(commit.value, float)
        assert 10_000 < commit.value < 20e9


def test_splits_and_sizes_of_records_are_measured() -> None:
    with FakeKafka() as fake:
        fake.create_topic("orders", 1, config={"max.message.bytes": "1000"})
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            producer.send_columns("orders", _columns(200, 200, 200, 600))
            producer.flush()
            metrics = producer.metrics()
            assert value_of(metrics, "batch-split-total") == 1
            assert value_of(metrics, "record-retry-total", "producer-metrics") == 0
            assert 600 < value_of(metrics, "record-size-max") < 620
            assert 300 < value_of(metrics, "record-size-avg") < 320
            assert 0 <= value_of(metrics, "metadata-age") < 60
            fake.refuse(PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS)
            producer.send("orders", bytes(700)).result(25)
            metrics = producer.metrics()
            assert 700 < value_of(metrics, "record-size-max") < 720
            assert value_of(metrics, "record-retry-total", "producer-metrics") == 1
            assert value_of(metrics, "batch-split-total") == 1


def test_waits_for_buffer_memory_are_measured(fake: FakeKafka) -> None:
    small = {"buffer.memory": 20_000, "max.request.size": 10_000, "max.block.ms": 1_500}
    go_on = threading.Event()
    servers = {"bootstrap.servers": fake.bootstrap_servers}
    with ThreadPoolExecutor(1) as executor, Producer(servers, small) as producer:

        def value(name: str) -> float:
            return value_of(producer.metrics(), name)

        producer.send("orders", b"first").result(25)
        fake.before[PRODUCE] = lambda body: go_on.wait(25)
        producer.send_columns("orders", _columns(*[1_000] * 18))
        assert value("bufferpool-wait-time-ns-total") == value("bufferpool-wait-ratio") == 0
        refused = executor.submit(producer.send_columns, "orders", _columns(*[1_000] * 5))
        wait_until(lambda: value("waiting-threads") == 1)
        with pytest.raises(DeadlineExceeded, match=r"buffer\.memory is 20000"):
            refused.result(25)
        assert (value("waiting-threads"), value("buffer-exhausted-total")) == (0, 5)
        waited_s = value("bufferpool-wait-time-ns-total") / 1e9
        assert 1.5 <= waited_s < 25
        assert 0 < value("bufferpool-wait-ratio") <= waited_s / 30
        go_on.set()


@pytest.mark.skipif(version_numbers(KAFKA_VERSION) < (4, 2), reason="older clients have fewer metrics")
def test_names_of_producer_metrics_are_those_of_java(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    settings = ["--bootstrap-server", kafka1.bootstrap_servers, "--topic", topic1(1), "--num-records", "100"]
    settings += ["--record-size", "10", "--throughput", "-1", "--print-metrics", "--transaction-duration-ms", "100"]
    output = kafka1.run_tool("org.apache.kafka.tools.ProducerPerformance", *settings)
    java = set(re.findall(r"^producer-metrics:([a-z-]+)", output, re.MULTILINE))
    ours = {definition.name for definition in DEFINITIONS if definition.group == "producer-metrics"}
    assert "txn-commit-time-ns-total" in java
    assert ours <= java
    missing = java - ours - {definition.name for definition in DEFINITIONS if definition.group == "client-metrics"}
    absent = ("io-", "network-io-", "select-", "connection-close-")  # docs/metrics.md says so
    assert {name for name in missing if not name.startswith(absent) and "authentication" not in name} == set()
