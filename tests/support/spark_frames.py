"""DataFrames of this project's format: batch reads, streams, their rows, and writes. `_` in an option is a dot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

OURS, JVM = "pykafka-group", "kafka"
# The JVM connector waits this long once or twice per task.
_BRIEF_POLLS = {"kafka.fetch.max.wait.ms": "20"}


class Cluster(Protocol):
    """`LocalKafka` or `FakeKafka`."""

    @property
    def bootstrap_servers(self) -> str: ...


def batch(spark: SparkSession, kafka: Cluster, format: str = OURS, **options: object) -> DataFrame:
    return spark.read.format(format).options(**_texts(kafka, options, _BRIEF_POLLS)).load()


def stream(spark: SparkSession, kafka: Cluster, format: str = OURS, **options: object) -> DataFrame:
    """Return a stream from the beginning of its topics, unless an option differs."""
    defaults = {**_BRIEF_POLLS, "startingOffsets": "earliest"}
    return spark.readStream.format(format).options(**_texts(kafka, options, defaults)).load()


def write(rows: DataFrame, kafka: Cluster, format: str = OURS, **options: object) -> None:
    rows.write.format(format).options(**_texts(kafka, options)).mode("append").save()


def write_stream(rows: DataFrame, kafka: Cluster, checkpoint: Path, format: str = OURS, **options: object) -> None:
    """Write until the stream has no more records."""
    writer = rows.writeStream.format(format).options(**_texts(kafka, options))
    await_end(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())


def streamed(rows: DataFrame, checkpoint: Path) -> list[Any]:
    """Run a stream until it has no more records; return its rows."""
    collected: list[Any] = []
    writer = rows.writeStream.foreachBatch(lambda batch, _: collected.extend(batch.collect()))
    await_end(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
    return collected


def await_end(query: StreamingQuery) -> None:
    assert query.awaitTermination(120), "the query did not end"


def _texts(kafka: Cluster, options: Mapping[str, object], defaults: Mapping[str, str] | None = None) -> dict[str, str]:
    texts = {name.replace("_", "."): str(value) for name, value in options.items()}
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, **(defaults or {}), **texts}
