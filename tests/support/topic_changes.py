"""Delete and recreate topics in a real Kafka, and wait until all brokers agree."""

from __future__ import annotations

import time
from functools import lru_cache

from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_for_brokers import wait_until_gone, wait_until_known


def delete_topics(kafka: LocalKafka, *topics: str) -> None:
    for deleted in _admin(kafka.bootstrap_servers).delete_topics(list(topics)).values():
        deleted.result(30)
    for topic in topics:
        wait_until_gone(kafka, topic)


def recreate(kafka: LocalKafka, *topics: str) -> None:
    """Recreate topics with one empty partition each."""
    delete_topics(kafka, *topics)
    for topic in topics:
        _create(kafka, topic)
        wait_until_known(kafka, topic, 1)


def _create(kafka: LocalKafka, topic: str) -> None:
    deadline_s = time.monotonic() + 30
    while True:
        new = NewTopic(topic, 1, len(kafka.broker_ids))
        error = _admin(kafka.bootstrap_servers).create_topics([new])[topic].exception(30)
        if error is None:
            return
        # The name can be used again only after every broker has deleted the topic.
        assert "TOPIC_ALREADY_EXISTS" in str(error)
        assert time.monotonic() < deadline_s, f"topic {topic} cannot be recreated"


@lru_cache(maxsize=2)
def _admin(servers: str) -> AdminClient:
    # keep a reference: a garbage-collected client never completes its futures
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})
