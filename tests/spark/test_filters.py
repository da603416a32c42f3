"""The option `filter`, compared with Spark's `where` on the same source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException

from protocol.testing import FakeKafka
from spark_kafka_source.process_state import PROCESS
from tests.support.documents import block
from tests.support.filter_comparison import differences

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADER = "try_element_at(filter(headers, pair -> pair.key = '{}'), -1).value"


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(1) as cluster:
        cluster.create_topic("orders", 4)
        for number in range(200):
            cluster.produce(
                "orders",
                f'{{"id": {number}, "country": "{("DE", "FR", "ÉI")[number % 3]}"}}',
                key=None if number % 7 == 0 else f"k{number}",
                headers=[("type", b"order" if number % 2 else b"refund"), ("n", str(number).encode())],
                partition=number % 4,
            )
        yield cluster
        PROCESS.reset()


def rows(spark: SparkSession, fake: FakeKafka, condition: str | None = None, **options: str) -> DataFrame:
    read = {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "orders", **options}
    if condition is not None:
        read["filter"] = condition
    return spark.read.format("pykafka-group").options(**read).load()


def sorted_rows(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ("headers['type'] = 'order' AND partition < 2", f"{HEADER.format('type')} = 'order' AND partition < 2"),
        ("cast(headers['n'] as int) % 5 = 0", f"cast(cast({HEADER.format('n')} as string) as int) % 5 = 0"),
        ("key IS NULL OR startswith(key, 'k1')", "key IS NULL OR startswith(cast(key as string), 'k1')"),
        ("offset BETWEEN 10 AND 20 AND partition <> 1", "offset BETWEEN 10 AND 20 AND partition <> 1"),
        ('cast(value as string) LIKE \'%y": "É_"%\'', 'cast(value as string) LIKE \'%y": "É_"%\''),
    ],
)
def test_filter_keeps_the_rows_of_where(spark: SparkSession, fake: FakeKafka, condition: str, where: str) -> None:
    expected = sorted_rows(rows(spark, fake, includeHeaders="true").where(where))
    assert 0 < len(expected) < 200
    assert sorted_rows(rows(spark, fake, condition, includeHeaders="true")) == expected


def test_filter_on_a_decoded_field_keeps_the_rows_of_where(spark: SparkSession, fake: FakeKafka) -> None:
    json = {"valueFormat": "json", "valueSchema": "id BIGINT, country STRING"}
    condition = "value.country = 'DE' AND value.id % 2 = 0"
    expected = sorted_rows(rows(spark, fake, **json).where(condition))
    assert 0 < len(expected) < 200
    assert sorted_rows(rows(spark, fake, condition, **json)) == expected


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_failed_cast_fails_in_ansi_mode_only(spark: SparkSession, fake: FakeKafka, ansi: str) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        failing = rows(spark, fake, "cast(cast(value AS string) AS int) IS NULL")
        if ansi == "true":
            with pytest.raises(PythonException, match="the filter fails on the record at offset 0 of orders-"):
                failing.count()
        else:
            assert failing.count() == 200
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def test_condition_outside_the_language_is_refused_by_load(spark: SparkSession, fake: FakeKafka) -> None:
    with pytest.raises(AnalysisException, match=r"RAND\(\) is not supported: .* Use where for it"):
        rows(spark, fake, "rand() < 0.5")


def test_example_of_the_page_runs(spark: SparkSession, fake: FakeKafka, tmp_path: Path) -> None:
    names = {"broker-1:9092": fake.bootstrap_servers, '"orders")': '"orders").option("startingOffsets", "earliest")'}
    page: dict[str, Any] = {"spark": spark}
    exec(block("filters.md", "orders = (").with_names(names), page)
    writer = page["orders"].writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [100]


@pytest.mark.parametrize("ansi", [True, False])
def test_random_conditions_keep_the_rows_of_where(spark: SparkSession, ansi: bool) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        compared = list(differences(spark, seed=1, count=30 if ansi else 150, ansi=ansi))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
        spark.conf.set("spark.sql.session.timeZone", zone)
    compared = [result for result in compared if "refused" not in f"{result[1]} {result[2]}"]
    assert len(compared) > 20
    assert [result for result in compared if result[1] != result[2]] == []
