"""Debug logs tell the life of a request, a line each, without its content."""

from __future__ import annotations

import logging

import pytest

from protocol import KafkaConsumer
from tests.support.small_cluster import END, SmallCluster


def test_request_is_logged_when_sent_and_answered_and_pauses_are(caplog: pytest.LogCaptureFixture) -> None:
    with SmallCluster() as fake, caplog.at_level(logging.DEBUG, "protocol"):
        broker = fake.bootstrap_servers
        with KafkaConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([("orders", 0)])
            rows = 0
            while rows < END:
                rows += consumer.poll(1_000).num_rows
            consumer.pause([("orders", 0)])
            consumer.resume([("orders", 0)])
    lines = [message for message in caplog.messages if " Fetch v" in message]
    assert any(line.startswith(f"{broker}: sent Fetch v") and ", correlation id " in line for line in lines)
    assert any(line.startswith(f"{broker}: answered Fetch v") and line.endswith(" ms") for line in lines)
    assert any(message.startswith(f"orders-0: paused at offset {END}") for message in caplog.messages)
    assert f"orders-0: resumed at offset {END}" in caplog.messages
    assert not any("0000000001" in message or "\n" in message for message in caplog.messages)
