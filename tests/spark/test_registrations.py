"""Sharing in Spark's JVM between sessions that register this source and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.source import KafkaGroupDataSource, register
from spark_kafka_source.spark_api import streaming_environment
from tests.conftest import TopicFactory
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.noop_queries import run_query
from tests.support.spark_frames import batch, stream


def environment(session: SparkSession) -> Any:
    """Return the map in Spark's JVM with the environment variables of the session's data source."""
    manager = session._jsparkSession.sessionState().dataSourceManager()
    return manager.lookupDataSource(KafkaGroupDataSource.name()).dataSourceCls().envVars()


def test_registrations_have_separate_environments(spark: SparkSession) -> None:
    """Two first queries at the same time break an environment that they share.

    Sessions share the environment of a discovered format; `register` gives each session a new one.
    """

    def identity(session: SparkSession) -> int:
        return session._jvm.System.identityHashCode(environment(session))  # type: ignore[no-any-return]

    first, second = spark.newSession(), spark.newSession()
    environments = [identity(first)]
    assert identity(second) == environments[0]
    for session in (first, second, first):
        register(session)
        environments.append(identity(session))
    assert len(set(environments)) == 4


def test_first_query_adds_nothing_to_a_registered_environment(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    """An added variable would disturb another query that starts, or a job that is serialized, at that moment."""
    session, before = spark.newSession(), set(spark.sparkContext.environment)
    register(session)
    assert set(spark.sparkContext.environment) == before
    variables = set(environment(session))
    topic = topic1()
    produce(kafka1, topic, "1")
    query = run_query(stream(session, kafka1, subscribe=topic, kafka_group_id=topic), tmp_path)
    assert query.lastProgress.numInputRows == 1
    assert set(environment(session)) == variables


def test_other_threads_can_read_the_environment_during_a_registration(spark: SparkSession) -> None:
    """Spark goes through this dictionary for each Python function, and changed sizes end that with `RuntimeError`."""
    before, variables = dict(spark.sparkContext.environment), iter(spark.sparkContext.environment)
    first = next(variables)
    with streaming_environment(spark):
        assert spark.sparkContext.environment.keys() > before.keys()
        during = iter(spark.sparkContext.environment)
        next(during)
        assert [first, *variables] == list(before)
    assert len(list(during)) > len(before)
    assert spark.sparkContext.environment == before


def test_alias_for_connections_of_databricks_reads_a_topic(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic = topic1()
    produce(kafka1, topic, "1", "2", "3")
    names: dict[str, Any] = {"spark": spark.newSession()}
    places = {"broker-1:9092": kafka1.bootstrap_servers, '"orders"': f'"{topic}"'}
    exec(block("clouds.md", "lakeflow_connect").with_names(places), names)
    assert batch(names["spark"], kafka1, "lakeflow_connect", subscribe=topic).count() == 3
    assert run_query(names["rows"], tmp_path).exception() is None
