"""A query shares a group with sarama or Kafka's console consumer: only a partition's owner reads its rows.

test_membership.py has queries and librdkafka consumers in one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from protocol.cluster.client import Client
from spark_kafka_source.local_kafka import LocalKafka
from tests import sarama
from tests.conftest import NEEDS_KIP_848, TopicFactory
from tests.protocol.consumer.members import Watch
from tests.protocol.fetch.consuming import client_of, produce
from tests.support.console_consumer import ConsoleConsumer
from tests.support.member_queries import new_group, query_of
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

PARTITIONS, COUNT = 4, 200
OTHERS = [
    ("classic", "sarama"),
    pytest.param("consumer", "java", marks=NEEDS_KIP_848),
    *([("classic", "java")] if SOAK else []),
]


@pytest.fixture
def client(kafka1: LocalKafka) -> Iterator[Client]:
    with client_of(kafka1) as client:
        yield client


@pytest.mark.parametrize(("protocol", "kind"), OTHERS)
def test_query_takes_over_partitions_after_other_client_leaves(
    spark: SparkSession,
    kafka1: LocalKafka,
    client: Client,
    topic1: TopicFactory,
    tmp_path: Path,
    protocol: str,
    kind: str,
) -> None:
    name, group = topic1(PARTITIONS), new_group()
    watch = Watch(kafka1, client, group)
    program = sarama.build() if kind == "sarama" else None
    with query_of(spark, kafka1, name, group, protocol, tmp_path / "checkpoint", kafka_client_id="the-query") as ours:
        produce(kafka1, name, range(COUNT // 4), PARTITIONS)
        ours.await_(lambda: len(ours.rows) == COUNT // 4)
        second: Any
        if program:
            second = sarama.GroupMember(program, kafka1, name, group)
        else:
            second = ConsoleConsumer(kafka1, name, group, group_protocol=protocol)
        try:
            ours.await_(lambda: [len(numbers) for numbers in watch.owned()] == [2, 2])
            members = kafka1.describe_group(group, "--members", "--verbose")
            assert len(re.findall(rf"{group} .*/127.0.0.1 +the-query +2 ", members)) == 1, members
            produce(kafka1, name, range(COUNT // 4, COUNT * 3 // 4), PARTITIONS)
            ours.await_(lambda: watch.owned() and watch.committed == COUNT * 3 // 4)
        finally:
            values = second.close()
        ours.await_(lambda: [len(numbers) for numbers in watch.owned()] == [4])
        before = len(ours.rows)
        produce(kafka1, name, range(COUNT * 3 // 4, COUNT), PARTITIONS)
        ours.await_(lambda: watch.owned() and watch.committed == COUNT)
        assert len(ours.rows) == before + COUNT // 4
    rows = [b"%09d." % (offset * PARTITIONS + partition) for partition, offset in ours.rows]
    assert sorted(rows + values) == [b"%09d." % number for number in range(COUNT)]
    assert values
