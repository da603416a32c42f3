"""Seek, pause, added and closed partitions, and their errors: the consumer without a group."""

from __future__ import annotations

import time
from itertools import islice

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.cluster.client import Client
from protocol.errors import ConnectionLost, DataLoss, DeadlineExceeded, UsageError
from protocol.kafka_terms import EARLIEST, LATEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import client_of, consumer_of, produce
from tests.support.internals import fetcher_of
from tests.support.wait_until import wait_until


class TestSteering:
    def test_stream_is_sought_paused_and_resumed(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        name = topic(1)
        produce(kafka, name, range(1_000))
        with consumer_of(client, {"fetch.max.wait.ms": 100}) as consumer:
            stream = consumer.consume_partition(name, 0, LATEST)
            wait_until(lambda: stream.high_water_mark == 1_000)
            assert stream.poll(200) is None
            assert (stream.position, stream.lag) == (1_000, 0)
            stream.seek(990)
            assert [message.offset for message in islice(stream.messages(5_000), 10)] == list(range(990, 1_000))
            assert stream.poll(200) is None
            stream.seek(10)
            messages = stream.messages(5_000)
            assert next(messages).offset == 10
            stream.seek(500)
            # The iteration that started at offset 10 ends there.
            assert next(messages).offset == 500
            stream.seek(0)
            stream.pause()
            assert stream.poll(300) is None
            assert (stream.position, stream.lag) == (0, 1_000)
            stream.resume()
            assert stream.poll(5_000) is not None
            with pytest.raises(UsageError, match="-5"):
                stream.seek(-5)

    def test_deleted_offset_is_raised_until_the_user_seeks(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(1)
        produce(kafka, name, range(100))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        admin.delete_records([TopicPartition(name, 0, 40)])[TopicPartition(name, 0)].result()
        with consumer_of(client) as consumer:
            for offset in (10, 101):
                stream = consumer.consume_partition(name, 0, offset)
                for _ in range(2):
                    with pytest.raises(DataLoss, match=rf"offset {offset} is not in the log .* \[40, 100\)") as raised:
                        stream.poll(10_000)
                stream.seek(raised.value.context["log_start_offset"])
                assert len(list(islice(stream.messages(5_000), 60))) == 60
                assert stream.poll(200) is None
                stream.close()

    def test_failure_of_one_partition_is_raised_beside_busy_ones(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(2)
        produce(kafka, name, range(40_000), 2, size=100, settings={"batch.num.messages": 10})
        with (
            client_of(kafka, default_api_timeout_ms=1_000) as impatient,
            consumer_of(impatient, {"max.partition.fetch.bytes": 1}) as consumer,
        ):
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(2)})
            failing = streams[name, 0]

            def read_on() -> None:
                for stream, _ in islice(consumer, 1_500):
                    if stream is not failing and failing.buffer.source.failure is None:
                        with fetcher_of(consumer).lock:
                            failing.buffer.postpone(ConnectionLost("as if"), time.monotonic())
                            failing.buffer.source.retry_at_s = float("inf")
                    time.sleep(0.005)

            with pytest.raises(DeadlineExceeded, match=failing.name):
                read_on()
            assert consumer.poll(10_000) is not None
