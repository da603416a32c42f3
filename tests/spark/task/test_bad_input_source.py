"""Wrong options and schemas of a source: each error names cause and remedy."""

from __future__ import annotations

import re
import socket
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader

from protocol.errors import ConfigurationError
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from tests.conftest import TopicFactory
from tests.support.consumer_groups import describe
from tests.support.noop_queries import row_count, run_query
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak


def run_stream(reader: DataStreamReader, checkpoint: Path) -> str:
    """Run a query that must fail; return the text of its error."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  (Spark's exception types differ by where it fails)
        run_query(reader.load(), checkpoint)
    return str(caught.value)


def reader(spark: SparkSession, bootstrap: str, **options: str) -> DataStreamReader:
    return spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", bootstrap).options(**options)


def produce(kafka: LocalKafka, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(records):
        producer.produce(topic, value=f"v{n}", partition=0)
    assert producer.flush(30) == 0


def test_unreachable_bootstrap_server_is_an_error_with_remedy(spark: SparkSession, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    options = {"kafka.default.api.timeout.ms": "1500", "fetchOffset.numRetries": "0"}
    error = run_stream(reader(spark, address, subscribe="orders", **options), tmp_path)
    assert address in error
    assert "kafka.bootstrap.servers" in error
    assert "attempt" in error


def test_schema_other_than_source_schema_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own connector refuses it, too. No request is sent."""
    error = run_stream(reader(spark, "127.0.0.1:1", subscribe="orders").schema("id INT, name STRING"), tmp_path)
    assert ".schema(...) sets (id int, name string)" in error
    assert "leave .schema(...) out" in error


def test_schema_equal_to_source_schema_is_accepted(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1()
    produce(kafka1, name, 3)
    rows = spark.read.format("pykafka-group").option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
    rows = rows.options(subscribe=name, columns="value,offset").schema("value BINARY, offset BIGINT COMMENT 'of 1970'")
    assert [row.offset for row in rows.load().collect()] == [0, 1, 2]


def test_unknown_topic_fails_with_remedy(spark: SparkSession, kafka1: LocalKafka, tmp_path: Path) -> None:
    options = {"kafka.default.api.timeout.ms": "3000", "fetchOffset.numRetries": "0"}
    error = run_stream(reader(spark, kafka1.bootstrap_servers, subscribe="no-such-topic", **options), tmp_path)
    assert "unknown topic(s) no-such-topic" in error
    assert kafka1.bootstrap_servers.split(",")[0] in error
    assert "option subscribe" in error


WRONG = [
    ({"startingOffsets": '{"orders": {"0"'}, "startingOffsets"),
    ({"subscribePatern": "x"}, "subscribePattern"),
    ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol"),
    ({"startingOffsets": "sometimes"}, "startingOffsets"),
    ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
    ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
    ({"assign": '{"orders": [0]}'}, "exactly one"),
    ({"kafka.enable.auto.commit": "true"}, "commitOffsets"),
    ({"kafka.isolation.level": "read"}, "kafka.isolation.level"),
    ({"fetch.min.bytes": "1"}, "kafka.fetch.min.bytes"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_wrong_option_is_refused_by_parsing(options: dict[str, str], words: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders", **options}
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        parse_source_options(given, streaming=True)


# All errors take the same path through Spark; `make soak` tests each.
@pytest.mark.parametrize(("options", "words"), WRONG if SOAK else WRONG[:1])
def test_wrong_option_is_reported_through_spark(
    spark: SparkSession, options: dict[str, str], words: str, tmp_path: Path
) -> None:
    error = run_stream(reader(spark, "127.0.0.1:9", subscribe="orders", **options), tmp_path)
    assert words in error


def test_starting_offset_out_of_range_fails_batch(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name = topic1(1)
    produce(kafka1, name, 5)
    offsets = f'{{"{name}": {{"0": 99}}}}'
    error = run_stream(reader(spark, kafka1.bootstrap_servers, subscribe=name, startingOffsets=offsets), tmp_path)
    assert f"offset 99 of {name}-0 is out of range: the log holds [0, 5)" in error


def test_missing_partition_fails_with_remedy(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name = topic1(1)
    error = run_stream(reader(spark, kafka1.bootstrap_servers, assign=f'{{"{name}": [0, 7]}}'), tmp_path / "a")
    assert f"{name}-7" in error
    assert "do not exist" in error
    offsets = f'{{"{name}": {{"0": 0, "7": 0}}}}'
    error = run_stream(reader(spark, kafka1.bootstrap_servers, subscribe=name, startingOffsets=offsets), tmp_path / "b")
    assert f"startingOffsets names {name}-7" in error


def test_group_with_live_members_is_refused_and_keeps_its_offsets(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name, group = topic1(1), f"group-{uuid.uuid4().hex[:8]}"
    produce(kafka1, name, 5)
    member = Consumer(
        {
            "bootstrap.servers": kafka1.bootstrap_servers,
            "group.id": group,
            "client.id": "the-other-one",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        member.subscribe([name])
        messages = member.consume(2, timeout=30)
        member.commit(messages[0], asynchronous=False)
        options = {"kafka.group.id": group, "subscribe": name}
        error = run_stream(reader(spark, kafka1.bootstrap_servers, **options), tmp_path / "a")
        assert f"group {group} has 1 live member(s) (the-other-one at" in error
        assert "commitOffsets=false" in error
        assert [row.current_offset for row in describe(kafka1, group)] == [1]
        rows = reader(spark, kafka1.bootstrap_servers, **options, commitOffsets="false").load()
        assert row_count(run_query(rows, tmp_path / "b")) == 4
        assert [row.current_offset for row in describe(kafka1, group)] == [1]
    finally:
        member.close()
