"""Options of public notebooks and blogs: the same rows as with the JVM connector."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.options.option_sets import BROKERS, OTHER, PATTERN, PLAIN, READS, SINKS, TOPIC, filled
from tests.support.read_back import read_back
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

OURS, JVM = "pykafka-group", "kafka"
# The other sets do not change the rows; tests/options tests that they are accepted.
COMPARED = [first for first in READS if SOAK or first in PLAIN]
COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType")
# Only two sets as streams, since each stream starts a Python process.
STREAMED = ("a group", "of files")


@pytest.fixture
def names(kafka1: LocalKafka, topic1: TopicFactory) -> dict[str, str]:
    """Two topics with records of seconds 0 to 30, some without a key, a value, or with headers."""
    result = {BROKERS: kafka1.bootstrap_servers}
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})
    for place, partitions in ((TOPIC, 2), (OTHER, 1)):
        result[place] = topic1(partitions, prefix="sets")
        for n in range(60):
            key, value = (None if n % 7 == 0 else f"k{n}", None if n % 11 == 0 else f"v{n}")
            headers = [("h", str(n))] if n % 3 else None
            partition = n % partitions
            producer.produce(result[place], value, key, partition, timestamp=1 + n * 500, headers=headers)
    assert producer.flush(30) == 0
    return {**result, PATTERN: f"^{result[TOPIC][:10]}"}


def from_the_beginning(options: Mapping[str, str]) -> dict[str, str]:
    """Replace `startingOffsets=latest` by `earliest`, to have rows to compare, and shorten empty fetches."""
    options = {
        key: "earliest" if value == "latest" and key == "startingOffsets" else value for key, value in options.items()
    }
    return {"kafka.fetch.max.wait.ms": "20", **options}


def tagged(frames: Mapping[str, DataFrame]) -> DataFrame:
    labelled = [frame.select(sf.lit(name).alias("set"), *COLUMNS) for name, frame in frames.items()]
    return reduce(DataFrame.union, labelled)


def test_batch_with_public_option_sets_reads_rows_of_jvm_connector(spark: SparkSession, names: dict[str, str]) -> None:
    """A batch read accepts all options of streams.

    Slow: reads each set of options with both connectors.
    """
    values_by_key = {}
    for format in (OURS, JVM):
        frames = {
            first.name: spark.read.format(format).options(**from_the_beginning(filled(first, names))).load()
            for first in COMPARED
        }
        values_by_key[format] = sorted(tuple(row) for row in tagged(frames).collect())
    assert values_by_key[OURS] == values_by_key[JVM]
    assert {row[0] for row in values_by_key[OURS]} == {first.name for first in COMPARED}
    assert sum(row[0] == "earliest" for row in values_by_key[OURS]) == 60


def test_stream_with_public_option_sets_reads_rows_of_jvm_connector(
    spark: SparkSession, names: dict[str, str], tmp_path: Path
) -> None:
    values_by_key = {}
    sets = [first for first in READS if first.name in STREAMED]
    assert len(sets) == len(STREAMED)
    for format in (OURS, JVM):
        frames = {
            first.name: spark.readStream.format(format).options(**from_the_beginning(filled(first, names))).load()
            for first in sets
        }
        rows, path = tagged(frames), str(tmp_path / format)
        writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{path}-checkpoint")
        query = writer.trigger(availableNow=True).start(path)
        assert query.awaitTermination(200)
        values_by_key[format] = sorted(tuple(row) for row in spark.read.schema(rows.schema).parquet(path).collect())
    assert values_by_key[OURS] == values_by_key[JVM]
    assert {row[0] for row in values_by_key[OURS]} == set(STREAMED)


def test_written_records_equal_those_of_the_jvm_connector(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    written = {}
    for format in (OURS, JVM):
        places = {BROKERS: kafka1.bootstrap_servers, TOPIC: topic1(3)}
        for first in SINKS:
            tag, number = sf.lit(first.name), sf.col("id").cast("string")
            rows = spark.range(5).coalesce(1).select(sf.concat(tag, number).alias("key"), number.alias("value"))
            # Python data sources need a save mode.
            rows.write.format(format).options(**filled(first, places)).mode("append").save()
        records = read_back(kafka1, places[TOPIC])
        written[format] = sorted((record.partition, record.key, record.value) for record in records)
    assert written[OURS] == written[JVM]
    assert len(written[OURS]) == 5 * len(SINKS)


# -- wrong options --------------------------------------------------------------------------------


def last_line_of_python(error: BaseException) -> str:
    """Return the last line of the first Python traceback in Spark's error."""
    _, _, traceback = str(error).partition("Traceback (most recent call last):\n")
    ends = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    return ends[0]


@pytest.mark.parametrize("name", ["stream", "batch"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger is '-1'"),
        ({"startingOffsets": "erliest"}, "startingOffsets is 'erliest'"),
    ],
)
def test_load_with_wrong_option_fails_with_configuration_error(
    spark: SparkSession, name: str, wrong: dict[str, str], message: str
) -> None:
    reader = {"stream": spark.readStream, "batch": spark.read}[name].format(OURS)  # type: ignore[attr-defined]
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", **wrong}
    with pytest.raises(AnalysisException, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        reader.options(**options).load()
    assert last_line_of_python(caught.value).startswith(f"protocol.errors.ConfigurationError: {message}")
    assert str(caught.value).count("Traceback") == 1


def test_stream_with_batch_option_fails_with_configuration_error(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark's runner hides an error raised before a reader exists, so `RefusedStreamReader` raises it later."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "endingOffsets": "latest"}
    rows = spark.readStream.format(OURS).options(**options).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    expected = "protocol.errors.ConfigurationError: endingOffsets is an option of batch reads, not of streaming reads"
    assert last_line_of_python(caught.value).startswith(expected)
    assert "UnboundLocalError" not in str(caught.value)
