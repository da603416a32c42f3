"""`maxBytesPerTrigger` on a real Kafka: sizes of micro-batches by the record batches on the broker's disk."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.driver import trigger
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.spark_api import ReadAllAvailable
from tests.conftest import TopicFactory
from tests.support.kafka_proxy import Fate, KafkaProxy
from tests.support.log_segments import stored_batches
from tests.support.spark_frames import await_end, stream

SMALL, LARGE = 8_000, 400
LIMIT_BYTES = 1_000_000


@pytest.fixture
def uneven(kafka1: LocalKafka, topic1: TopicFactory) -> str:
    """Create a topic with 0.9 MB of small records in partition 0, and 4 MB of records 100 times as large in 1."""
    name = topic1(2)
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "batch.size": 16_384, "linger.ms": 20})
    for partition, count, size in ((0, SMALL, 100), (1, LARGE, 10_000)):
        for number in range(count):
            producer.produce(name, b"%d" % number + b"." * size, partition=partition)
    assert producer.flush(60) == 0
    return name


def given(kafka1: LocalKafka, name: str, **options: object) -> dict[str, str]:
    where = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": name, "startingOffsets": "earliest"}
    return {**where, **{key: str(value) for key, value in options.items()}}


def plan(kafka1: LocalKafka, name: str, **options: object) -> list[dict[str, int]]:
    """Plan micro-batches to the end of the log; return the first start offsets and all end offsets."""
    reader = KafkaStreamReader(parse_source_options(given(kafka1, name, **options), streaming=True))
    places = [reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())]
    while (end := reader.latestOffset(places[-1], reader.getDefaultReadLimit())) != places[-1]:
        places.append(end)
    return [places[0]["@joined"][name], *(place[name] for place in places)]


def bytes_between(kafka1: LocalKafka, name: str, begin: dict[str, int], end: dict[str, int]) -> float:
    """Return the bytes of an offset range in the log. Partly covered record batches count in proportion."""
    total = 0.0
    for partition in begin:
        for batch in stored_batches(kafka1.data_folder(1), name, int(partition)):
            first, until = max(begin[partition], batch.base_offset), min(end[partition], batch.last_offset + 1)
            total += batch.bytes * max(0, until - first) / (batch.last_offset + 1 - batch.base_offset)
    return total


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit for measuring record sizes, so that a slow broker does not lead to assumed sizes."""
    monkeypatch.setattr(trigger, "RECORD_SIZES_TIMEOUT_MS", 20_000)


@pytest.mark.usefixtures("patient")
def test_micro_batch_sizes_are_close_to_max_bytes_per_trigger(kafka1: LocalKafka, uneven: str) -> None:
    places = plan(kafka1, uneven, maxBytesPerTrigger=LIMIT_BYTES)
    assert (places[0], places[-1]) == ({"0": 0, "1": 0}, {"0": SMALL, "1": LARGE})
    sizes = [bytes_between(kafka1, uneven, begin, end) for begin, end in pairwise(places)]
    assert sum(sizes) > 4 * LIMIT_BYTES
    assert all(LIMIT_BYTES / 1.5 < size < 1.5 * LIMIT_BYTES for size in sizes[:-1]), sizes
    assert sizes[-1] < 1.5 * LIMIT_BYTES
    # The limit is shared in proportion, as maxOffsetsPerTrigger: both partitions reach their ends together.
    assert all(after["0"] > before["0"] and after["1"] > before["1"] for before, after in pairwise(places))


@pytest.mark.usefixtures("patient")
def test_stricter_of_two_trigger_limits_applies(kafka1: LocalKafka, uneven: str) -> None:
    offsets = plan(kafka1, uneven, maxOffsetsPerTrigger=1_000)
    assert plan(kafka1, uneven, maxOffsetsPerTrigger=1_000, maxBytesPerTrigger="1g") == offsets
    size = plan(kafka1, uneven, maxBytesPerTrigger=LIMIT_BYTES)
    assert plan(kafka1, uneven, maxBytesPerTrigger=LIMIT_BYTES, maxOffsetsPerTrigger=8_000) == size
    assert len(offsets) > len(size) > 3


def test_limit_below_one_record_reads_one_record_per_partition(kafka1: LocalKafka, uneven: str) -> None:
    options = parse_source_options(given(kafka1, uneven, maxBytesPerTrigger=1), streaming=True)
    reader = KafkaStreamReader(options)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    two = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert (first[uneven], two[uneven]) == ({"0": 1, "1": 1}, {"0": 2, "1": 2})
    assert reader.latestOffset(two, ReadAllAvailable())[uneven] == {"0": SMALL, "1": LARGE}, "as for the trigger once"
    # PySpark before 4.2 passes no limit.
    assert reader.latestOffset(two)[uneven] == {"0": 3, "1": 3}


def test_planning_continues_if_broker_cuts_fetch_replies(kafka1: LocalKafka, uneven: str) -> None:
    with KafkaProxy.of(kafka1) as proxy:
        proxy.replies[FETCH] = lambda exchange: Fate.CUT
        where = {"kafka.bootstrap.servers": proxy.servers}
        places = plan(kafka1, uneven, maxBytesPerTrigger=LIMIT_BYTES, **where)
    # 1 KiB per offset is assumed: 976 of 8400 offsets at a time.
    assert places[1] == {"0": 929, "1": 46}
    assert places[-1] == {"0": SMALL, "1": LARGE}


def test_query_with_max_bytes_per_trigger_reads_every_row_once(
    spark: SparkSession, kafka1: LocalKafka, uneven: str, tmp_path: Path
) -> None:
    rows: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend(tuple(row) for row in batch.select("partition", "offset").collect())

    def run(checkpoint: str, **trigger: bool) -> StreamingQuery:
        rows.clear()
        reader = stream(spark, kafka1, subscribe=uneven, maxBytesPerTrigger="3m", columns="partition,offset")
        writer = reader.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / checkpoint))
        await_end(query := writer.trigger(**trigger).start())
        assert sorted(rows) == [(0, n) for n in range(SMALL)] + [(1, n) for n in range(LARGE)]
        return query

    batches = [progress for progress in run("a", availableNow=True).recentProgress if progress.numInputRows]
    assert len(batches) in (2, 3), "three with assumed sizes, if the broker is slow"
    assert max(progress.numInputRows for progress in batches) < 0.8 * (SMALL + LARGE)
    assert [progress.numInputRows for progress in run("b", once=True).recentProgress] == [SMALL + LARGE]
