"""`watch` on queries of Spark: a bounded one until its end, and one that fails. `tests.jobs.copy_to_topic`: Connect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_kafka_source import watch
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(600)
def test_watched_query_shows_its_lag_fall_to_zero(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic1(2)
    produce(kafka1, topic, range(300), 2)
    options = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "kafka.group.id": f"g-{topic}"}
    orders = spark.readStream.format("pykafka-group").options(
        **options, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100"
    )
    query = start(orders.load(), tmp_path)
    watched = watch(query, options=options, picture=tmp_path / "lag.png")
    lags = [sample.lag for sample in watched.samples]
    assert [lag and lag.offsets_behind for lag in lags] == [200, 100, 0]
    assert [sample.rows for sample in watched.samples] == [100, 100, 100]
    assert lags[-1] is not None
    assert lags[-1].seconds_behind == 0
    assert watched.samples[-1].group == f"g-{topic}: Empty, 0 members"
    assert (tmp_path / "lag.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.rstrip().endswith(f"lag 0 (0.0 s), group g-{topic}: Empty, 0 members")


@pytest.mark.timeout(600)
def test_failure_of_watched_query_is_raised(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic = topic1()
    produce(kafka1, topic, range(10))
    orders = spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
    rows = orders.options(subscribe=topic, startingOffsets="earliest").load()
    query = start(rows.selectExpr("raise_error('wrong order') as value"), tmp_path)
    with pytest.raises(StreamingQueryException, match="wrong order"):
        watch(query)


def start(rows: Any, folder: Path) -> Any:
    writer = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
