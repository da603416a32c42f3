"""Topics that are created: what is waited for. On a model of a cluster."""

from __future__ import annotations

from typing import Any

from protocol.admin.topics import NewTopic, create_topic
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.wire.messages.m03_metadata import METADATA
from tests.fake_kafka.server import FakeKafka


def test_a_topic_that_had_the_name_before_is_not_taken_for_it() -> None:
    """A broker may be behind the controller that has deleted the one, and created the other."""
    before = bytes(15) + b"\1"

    def behind(body: Any) -> Any:
        return {**body, "topics": [{**row, "topic_id": before} for row in body["topics"]]}

    with FakeKafka() as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10}
        with Client(parse_client(properties)) as client:
            kafka.edit_replies(METADATA, behind, 3)
            create_topic(client, NewTopic("orders", 1))
            assert client.topic("orders").topic_id != before
            assert len(kafka.asked(METADATA)) > 3
