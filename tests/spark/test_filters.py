"""The option `filter`, compared with Spark's `where` on the same source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException

from protocol.testing import FakeKafka
from spark_kafka_source.process_state import PROCESS
from tests.support.documents import block
from tests.support.filter_comparison import differences
from tests.support.noop_queries import run_query
from tests.support.spark_frames import batch

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


@pytest.fixture
def rows(spark: SparkSession, fake: FakeKafka) -> Callable[..., DataFrame]:
    """Return `rows(**options)`, a batch read of all orders."""
    return lambda **options: batch(spark, fake, subscribe="orders", **options)


@pytest.fixture(params=["true", "false"])
def ansi(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Set `spark.sql.ansi.enabled`."""
    name = "spark.sql.ansi.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.set(name, before)


def assert_kept(rows: Callable[..., DataFrame], condition: str, where: str, **options: str) -> None:
    """Compare the rows that the option `filter` keeps with those of Spark's `where`."""
    result, expected = (
        sorted((tuple(row) for row in frame.collect()), key=repr)
        for frame in (rows(filter=condition, **options), rows(**options).where(where))
    )
    assert 0 < len(expected) < 200
    assert result == expected


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
def test_filter_keeps_the_rows_of_where(rows: Callable[..., DataFrame], condition: str, where: str) -> None:
    assert_kept(rows, condition, where, includeHeaders="true")


def test_filter_on_a_decoded_field_keeps_the_rows_of_where(rows: Callable[..., DataFrame]) -> None:
    condition = "value.country = 'DE' AND value.id % 2 = 0"
    assert_kept(rows, condition, condition, valueFormat="json", valueSchema="id BIGINT, country STRING")


def test_failed_cast_fails_in_ansi_mode_only(rows: Callable[..., DataFrame], ansi: str) -> None:
    failing = rows(filter="cast(cast(value AS string) AS int) IS NULL")
    if ansi == "true":
        with pytest.raises(PythonException, match="the filter fails on the record at offset 0 of orders-"):
            failing.count()
    else:
        assert failing.count() == 200


def test_condition_outside_the_language_is_refused_by_load(rows: Callable[..., DataFrame]) -> None:
    with pytest.raises(AnalysisException, match=r"RAND\(\) is not supported: .* in Spark with where"):
        rows(filter="rand() < 0.5")


def test_example_of_the_page_runs(spark: SparkSession, fake: FakeKafka, tmp_path: Path) -> None:
    names = {"broker-1:9092": fake.bootstrap_servers, '"orders")': '"orders").option("startingOffsets", "earliest")'}
    page: dict[str, Any] = {"spark": spark}
    exec(block("filters.md", "orders = (").with_names(names), page)
    query = run_query(page["orders"], tmp_path)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [100]


def test_random_conditions_keep_the_rows_of_where(spark: SparkSession, ansi: str) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        compared = list(differences(spark, seed=1, count=30 if ansi == "true" else 150, ansi=ansi == "true"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    compared = [result for result in compared if "refused" not in f"{result[1]} {result[2]}"]
    assert len(compared) > 20
    assert [result for result in compared if result[1] != result[2]] == []
