"""Source and sink over Spark Connect, where the session is only a client of a server that has the JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.read_back import read_back
from tests.topic_copies import ROWS, copy_and_check


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_source_and_sink_work_over_spark_connect(kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path) -> None:
    # Spark's own switch for a server port that nobody else has.
    counted = topic1()
    report = copy_and_check(kafka1, topic1, tmp_path, "connect", {"SPARK_TESTING": "1"}, counted=counted)
    assert report["session"] == "pyspark.sql.connect.session"
    assert len(report["streamed"]) >= 3
    newest = {record.key: int(record.value or b"") for record in read_back(kafka1, counted)}
    assert sorted(newest) == [b"0", b"1", b"2"]
    assert sum(newest.values()) == ROWS
