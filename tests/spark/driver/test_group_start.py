"""A query that starts at its group's offsets: also inside an open transaction, and at offsets that are not in the log.

Runs on a real Kafka, with offsets and transactions of librdkafka.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from protocol.errors import ConfigurationError, DataLoss, DeadlineExceeded
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from tests.conftest import TopicFactory
from tests.spark.driver.streams import Stream
from tests.spark.driver.topic_admin import commit, delete_records, produce
from tests.support.wait_for_brokers import wait_until_decided

COMMITTED_ONLY = {"kafka.isolation.level": "read_committed"}
GROUP = {"startingOffsets": "group"}


@contextmanager
def open_transaction(kafka: LocalKafka, topic: str, records: int) -> Iterator[Producer]:
    """Write the values "open0", "open1", … in a transaction that is open during the block, then aborted."""
    settings = {"transactional.id": uuid.uuid4().hex, "log_level": 0}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, f"open{number}", partition=0)
    assert producer.flush(30) == 0
    yield producer
    producer.abort_transaction(30)
    wait_until_decided(kafka, [(topic, 0)])


def offsets(rows: list[tuple[int, str]]) -> list[int]:
    return [offset for offset, _ in rows]


def batch_offsets(stream: Stream, **options: str) -> list[int]:
    settings = {**stream.options(GROUP | options), "kafka.auto.offset.reset": "earliest"}
    reader = KafkaBatchReader(parse_source_options(settings, streaming=False))
    return [row for task in reader.partitions() for value in reader.read(task) for row in value["offset"].to_pylist()]


# -- an open transaction --------------------------------------------------------------------------


def test_start_after_begin_of_open_transaction_waits_for_its_end(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    """A group offset or checkpoint after the begin of a transaction is no loss: reading waits for its end."""
    stream = Stream(kafka1, topic1(1))
    name = stream.topic
    produce(kafka1, name, "first", 5)
    switched, named, planned = (Stream(kafka1, name) for _ in range(3))
    with open_transaction(kafka1, name, 5):
        produce(kafka1, name, "next", 5)
        commit(kafka1, stream.group, name, 12)
        assert offsets(switched.run()) == list(range(15))

        assert stream.run(**GROUP, **COMMITTED_ONLY) == []
        assert batch_offsets(stream, **COMMITTED_ONLY) == []
        assert switched.run(**COMMITTED_ONLY) == []
        # The same holds for an offset in startingOffsets.
        assert named.run(startingOffsets=f'{{"{name}": {{"0": 13}}}}', **COMMITTED_ONLY) == []
        # Tasks of a batch planned with read_uncommitted wait for the transaction.
        planned.plan()
        with pytest.raises(DeadlineExceeded, match="a transaction that is open since offset 5 holds them back"):
            planned.run(**COMMITTED_ONLY, **{"kafkaConsumer.pollTimeoutMs": "2000", "kafka.fetch.max.wait.ms": "100"})
    produce(kafka1, name, "last", 1)
    assert stream.run(**COMMITTED_ONLY) == [(12, "next2"), (13, "next3"), (14, "next4"), (16, "last0")]
    assert switched.run(**COMMITTED_ONLY) == [(16, "last0")]
    assert offsets(named.run(**COMMITTED_ONLY)) == [13, 14, 16]
    assert offsets(planned.run(**COMMITTED_ONLY)) == [*range(5), *range(10, 15), 16]


# -- out of range ---------------------------------------------------------------------------------

PAST, BEFORE = 99, 2
"""The log holds [4, 10)."""


@pytest.mark.parametrize(
    ("committed", "options", "begins", "skipped"),
    [
        (PAST, {"kafka.auto.offset.reset": "earliest"}, 4, 0),
        (PAST, {"failOnDataLoss": "false"}, 10, 6),
        (BEFORE, {"kafka.auto.offset.reset": "latest"}, 10, 8),
        (BEFORE, {"failOnDataLoss": "false"}, 4, 2),
    ],
)
def test_committed_offset_out_of_range_is_reset_by_option_and_logged(
    kafka1: LocalKafka,
    log_of_4_to_10: str,
    caplog: pytest.LogCaptureFixture,
    committed: int,
    options: dict[str, str],
    begins: int,
    skipped: int,
) -> None:
    stream = Stream(kafka1, log_of_4_to_10)
    commit(kafka1, stream.group, stream.topic, committed)
    assert offsets(stream.run(**GROUP, **options)) == list(range(begins, 10))
    (warning,) = [message for message in caplog.messages if "out of range" in message]
    assert f"offset {committed} of {stream.topic}-0 is out of range: the log holds [4, 10)" in warning
    assert f"Starts at {begins}" in warning
    assert f"{skipped} offsets are skipped" in warning
    assert next(iter(options)) in warning


@pytest.mark.parametrize(
    ("committed", "options"),
    [(PAST, {}), (BEFORE, {"kafka.auto.offset.reset": "none", "failOnDataLoss": "false"})],
)
def test_committed_offset_out_of_range_fails_query_without_reset(
    kafka1: LocalKafka, log_of_4_to_10: str, committed: int, options: dict[str, str]
) -> None:
    stream = Stream(kafka1, log_of_4_to_10)
    commit(kafka1, stream.group, stream.topic, committed)
    words = rf"START_OFFSET_RESET\].*offset {committed} of .*-0 .* set kafka.auto.offset.reset=earliest or latest"
    with pytest.raises(DataLoss, match=words):
        stream.run(**GROUP, **options)


def test_partition_without_committed_offset_fails_with_reset_none(kafka1: LocalKafka, log_of_4_to_10: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no committed offset for .* kafka.auto.offset.reset=none"):
        Stream(kafka1, log_of_4_to_10).run(**GROUP, **{"kafka.auto.offset.reset": "none"})


@pytest.fixture
def log_of_4_to_10(kafka1: LocalKafka, topic1: TopicFactory, caplog: pytest.LogCaptureFixture) -> str:
    caplog.set_level(logging.WARNING)
    name = topic1(1)
    produce(kafka1, name, "v", 10)
    delete_records(kafka1, name, 4)
    return name
