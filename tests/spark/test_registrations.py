"""Sharing in Spark's JVM between sessions that register this source and others."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_kafka_source.source import KafkaGroupDataSource, register


def test_registrations_have_separate_environments(spark: SparkSession) -> None:
    """Two first queries at the same time break an environment that they share.

    Sessions share the environment of a discovered format; `register` gives each session a new one.
    """

    def environment(session: SparkSession) -> int:
        manager = session._jsparkSession.sessionState().dataSourceManager()
        found = manager.lookupDataSource(KafkaGroupDataSource.name()).dataSourceCls().envVars()
        return session._jvm.System.identityHashCode(found)  # type: ignore[no-any-return]

    one, other = spark.newSession(), spark.newSession()
    environments = [environment(one)]
    assert environment(other) == environments[0]
    for session in (one, other, one):
        register(session)
        environments.append(environment(session))
    assert len(set(environments)) == 4
