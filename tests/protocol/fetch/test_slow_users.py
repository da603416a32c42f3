"""Users that read slowly or not at all do not delay others, and their buffers are freed for others."""

from __future__ import annotations

from protocol.cluster.client import Client
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import EARLIEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import consumer_of, produce
from tests.support.wait_until import wait_until


class TestSlowUsers:
    def test_unread_stream_of_ten_does_not_delay_others(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        """Nine streams are read to their end while the tenth is not; then the tenth is read completely."""
        name = topic(10, replication_factor=1)
        produce(kafka, name, range(20_000), 10, size=200)
        properties = {"max.partition.fetch.bytes": 20_000, "max.processing.time.ms": 50}
        with consumer_of(client, properties) as consumer:
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(10)})
            stuck = streams.pop((name, 3))
            records = {stream.partition: self.read(stream, 2_000) for stream in streams.values()}
            assert all(offsets == list(range(2_000)) for offsets in records.values())
            wait_until(lambda: stuck.expired)
            assert self.read(stuck, 2_000) == list(range(2_000))
            assert not stuck.expired

    def test_unread_stream_releases_its_memory_and_is_read_completely_later(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(10, replication_factor=1)
        produce(kafka, name, range(20_000), 10, size=200)
        properties = {"max.partition.fetch.bytes": 100_000, "max.processing.time.ms": 20}
        with consumer_of(client, properties, buffer_memory_bytes=250_000) as consumer:
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(10)})
            readers = {number: streams.pop((name, number)) for number in (0, 5)}
            for stream in readers.values():
                assert self.read(stream, 2_000) == list(range(2_000))
            for stream in streams.values():
                assert self.read(stream, 2_000) == list(range(2_000))

    @staticmethod
    def read(stream: PartitionConsumer, rows: int) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < rows:
            batch = stream.poll(10_000)
            assert batch is not None, f"{stream.name} has brought {len(offsets)} of {rows} rows"
            offsets += batch.column("offset").to_pylist()
        return offsets
