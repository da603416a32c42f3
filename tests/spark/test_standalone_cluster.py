"""Source and sink on a Spark cluster: a master and two workers, with executors that are processes of their own.

With Spark Connect, where the session is only a client of the server that has the driver's JVM, and without.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.soak import variants
from tests.spark_home import JVM_OPTIONS, SUBMIT_ARGUMENTS
from tests.topic_copies import copy_and_check

# Spark's own standalone cluster. Master and workers are in the driver's JVM: none of them ever has a row.
CLUSTER = "local-cluster[2,1,512]"


@pytest.mark.spark
@pytest.mark.timeout(600)
@variants("session", ["connect", "classic"], "connect")
def test_source_and_sink_work_on_a_cluster_of_two_workers(
    kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": shlex.join(JVM_OPTIONS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before both executors are there
    }
    arguments = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join([*SUBMIT_ARGUMENTS, *arguments, "pyspark-shell"]))
    report = copy_and_check(kafka1, topic1, tmp_path, session, CLUSTER)
    assert report["session"] == ("pyspark.sql.connect.session" if session == "connect" else "pyspark.sql.session")
    assert report["executors"] == 2
    assert len(report["streamed"]) >= 3
