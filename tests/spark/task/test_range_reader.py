"""First Fetch requests of tasks that run one after the other in one process."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from protocol.fetch import bounded_reader
from protocol.fetch.log_offsets import Range
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.task import range_reader
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import produce


def test_fetch_of_known_topic_is_limited_to_range_of_task(
    kafka1: LocalKafka, topic1: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic1(1)
    produce(kafka1, name, range(30_000), size=100)
    asked_bytes: list[int] = []
    send_fetch = bounded_reader.send_fetch  # type: ignore[attr-defined]

    def noted(client: Any, request: Any, *more: Any, **options: Any) -> Any:
        asked_bytes.append(sum(partition.fetch_bytes() for partition in request.partitions))
        return send_fetch(client, request, *more, **options)

    monkeypatch.setattr(bounded_reader, "send_fetch", noted)
    monkeypatch.setattr(range_reader, "tune_worker", lambda: None)
    # Lift the limit of first fetches, so that only known record sizes bound them.
    monkeypatch.setattr(range_reader, "FIRST_FETCH_BYTES", 1 << 30)
    # A new client without record sizes from other tests.
    settings = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "kafka.client.id": uuid.uuid4().hex}
    options = parse_source_options(settings | {"subscribe": name}, streaming=True)
    for until_offset in (10_000, 20_000):
        expected = Range(name, 0, until_offset - 10_000, until_offset)
        assert sum(batch.num_rows for batch in range_reader.read_range(options, [expected])) == 10_000
    first, *_, last = asked_bytes
    assert first > 8_000_000, "no record size was known"
    assert last < 2_000_000


def test_first_fetch_of_task_is_1_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small first fetch gives Spark the first rows while the next ones are fetched."""
    made: list[Any] = []
    monkeypatch.setattr(range_reader, "tune_worker", lambda: None)
    monkeypatch.setattr(range_reader, "BoundedReader", lambda *_, **options: made.append(options) or ())
    options = parse_source_options({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "any"}, streaming=True)
    assert list(range_reader.read_range(options, [])) == []
    assert made[0]["first_fetch_bytes"] == 1 << 20
