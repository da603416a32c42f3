"""Options of public notebooks: taken without ado where they do nothing, and the rows are those of the JVM connector."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from protocol import once
from protocol.errors import ConfigurationError
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.sink import kafka_batches
from spark_kafka_source.source import KafkaGroupDataSource
from tests.conftest import TopicFactory
from tests.read_back import read_back
from tests.spark.options.option_sets import BROKERS, OPTION_SETS, OTHER, PATTERN, TOPIC, OptionSet
from tests.ten_records import TenRecords

OURS, JVM = "pykafka-group", "kafka"
COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType")
# Enough for streams, each of which has a Python process of its own.
STREAMED = ("a group", "of files")
READS = [one for one in OPTION_SETS if one.rows and one.use != "sink"]
SINKS = [one for one in OPTION_SETS if one.rows and one.use == "sink"]

Names = Mapping[str, str]


@pytest.fixture(autouse=True)
def _warnings_of_one_test_only() -> Iterator[None]:
    once.log_once.cache_clear()
    yield
    once.log_once.cache_clear()


def filled(one: OptionSet, names: Names) -> dict[str, str]:
    return {
        key: reduce(lambda text, name: text.replace(name, names[name]), names, one.options[key]) for key in one.options
    }


def parse(one: OptionSet) -> object:
    options = filled(one, {BROKERS: "localhost:9092", TOPIC: "orders", OTHER: "bills", PATTERN: "^o"})
    return (
        parse_sink_options(options)
        if one.use == "sink"
        else parse_source_options(options, streaming=one.use == "stream")
    )


@pytest.mark.parametrize("one", [one for one in OPTION_SETS if not one.error], ids=lambda one: one.name)
def test_it_is_taken_and_what_does_nothing_is_said_once(one: OptionSet, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse(one)
        parse(one)
    assert sorted(message.split()[0] for message in caplog.messages) == sorted(one.warnings)


@pytest.mark.parametrize("one", [one for one in OPTION_SETS if one.error], ids=lambda one: one.name)
def test_it_is_refused_with_what_to_do(one: OptionSet) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(one)
    assert one.error in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_there_are_many_and_of_each_kind() -> None:
    assert len({one.name for one in OPTION_SETS}) == len(OPTION_SETS) >= 60
    assert len(READS) >= 25
    assert len(SINKS) >= 12


def test_of_a_stream_s_readers_only_the_one_that_runs_says_what_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Spark also makes readers to plan with, each in a process of its own."""
    with TenRecords() as cluster, caplog.at_level(logging.WARNING):
        where = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
        options = {**where, "mode": "x", "kafka.colour": "y"}
        sources = [KafkaGroupDataSource(options) for _ in range(2)]
        readers = [source.streamReader(source.schema()) for source in sources]
        assert caplog.messages == []
        for _ in range(2):
            readers[0].latestOffset(readers[0].initialOffset(), readers[0].getDefaultReadLimit())
    assert [message.split()[0] for message in caplog.messages] == ["mode", "kafka.colour"]


def test_of_a_stream_s_writers_only_the_one_that_is_told_how_a_batch_ended_says_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "mode": "x", "kafka.colour": "y"}
    schema = StructType().add("value", "string")
    with caplog.at_level(logging.WARNING):
        _planned, told = (KafkaGroupDataSource(options).streamWriter(schema, False) for _ in range(2))
        assert caplog.messages == []
        told.abort([None], 0)
        told.commit([], 0)
    assert [message.split()[0] for message in caplog.messages] == ["mode", "kafka.colour"]


def test_a_function_for_foreachbatch_leaves_it_to_its_batches(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        kafka_batches({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "mode": "x"})
    assert caplog.messages == []


# -- rows -----------------------------------------------------------------------------------------


@pytest.fixture
def names(kafka1: LocalKafka, topic1: TopicFactory) -> dict[str, str]:
    """Two topics with records of seconds 0 to 30, some without a key, a value, or with headers."""
    found = {BROKERS: kafka1.bootstrap_servers}
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})
    for place, partitions in ((TOPIC, 2), (OTHER, 1)):
        found[place] = topic1(partitions, config={"retention.ms": "-1"}, prefix="sets")
        for n in range(60):
            key, value = (None if n % 7 == 0 else f"k{n}", None if n % 11 == 0 else f"v{n}")
            headers = [("h", str(n))] if n % 3 else None
            partition = n % partitions
            producer.produce(found[place], value, key, partition, timestamp=1 + n * 500, headers=headers)
    assert producer.flush(30) == 0
    return {**found, PATTERN: f"^{found[TOPIC][:10]}"}


def from_the_beginning(options: Names) -> dict[str, str]:
    """What begins at `latest` would have no rows to compare. And empty fetches wait no longer than they must."""
    options = {
        key: "earliest" if value == "latest" and key == "startingOffsets" else value for key, value in options.items()
    }
    return {"kafka.fetch.max.wait.ms": "20", **options}


def tagged(frames: Mapping[str, DataFrame]) -> DataFrame:
    each = [frame.select(sf.lit(name).alias("set"), *COLUMNS) for name, frame in frames.items()]
    return reduce(DataFrame.union, each)


def test_batches_have_the_rows_of_the_jvm_connector(spark: SparkSession, names: dict[str, str]) -> None:
    """Options of streams are given to a batch: it takes them all."""
    found = {}
    for format in (OURS, JVM):
        frames = {
            one.name: spark.read.format(format).options(**from_the_beginning(filled(one, names))).load()
            for one in READS
        }
        found[format] = sorted(tuple(row) for row in tagged(frames).collect())
    assert found[OURS] == found[JVM]
    assert {row[0] for row in found[OURS]} == {one.name for one in READS}
    assert sum(row[0] == "earliest" for row in found[OURS]) == 60


def test_streams_have_the_rows_of_the_jvm_connector(spark: SparkSession, names: dict[str, str], tmp_path: Path) -> None:
    found = {}
    sets = [one for one in READS if one.name in STREAMED]
    assert len(sets) == len(STREAMED)
    for format in (OURS, JVM):
        frames = {
            one.name: spark.readStream.format(format).options(**from_the_beginning(filled(one, names))).load()
            for one in sets
        }
        rows, path = tagged(frames), str(tmp_path / format)
        writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{path}-checkpoint")
        query = writer.trigger(availableNow=True).start(path)
        assert query.awaitTermination(200)
        found[format] = sorted(tuple(row) for row in spark.read.schema(rows.schema).parquet(path).collect())
    assert found[OURS] == found[JVM]
    assert {row[0] for row in found[OURS]} == set(STREAMED)


def test_what_is_written_is_what_the_jvm_connector_writes(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    written = {}
    for format in (OURS, JVM):
        places = {BROKERS: kafka1.bootstrap_servers, TOPIC: topic1(3)}
        for one in SINKS:
            tag, number = sf.lit(one.name), sf.col("id").cast("string")
            rows = spark.range(5).coalesce(1).select(sf.concat(tag, number).alias("key"), number.alias("value"))
            # Spark refuses a source in Python without a mode.
            rows.write.format(format).options(**filled(one, places)).mode("append").save()
        records = read_back(kafka1, places[TOPIC])
        written[format] = sorted((record.partition, record.key, record.value) for record in records)
    assert written[OURS] == written[JVM]
    assert len(written[OURS]) == 5 * len(SINKS)
