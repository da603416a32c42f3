"""Start of a query with an address where no broker answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from protocol.cluster.client import Client
from protocol.errors import DeadlineExceeded
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.listener import kept_port
from spark_kafka_source import process_state
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.sink import guarantee
from spark_kafka_source.sink.columns import SinkPlan

Options = dict[str, str]


def stream(options: Options) -> None:
    KafkaStreamReader(parse_source_options({**options, "subscribe": "t"}, streaming=True), []).latestOffset()


def batch_read(options: Options) -> None:
    KafkaBatchReader(parse_source_options({**options, "subscribe": "t"}, streaming=False)).partitions()


def exactly_once(options: Options) -> None:
    given = {**options, "topic": "t", "deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "p"}
    guarantee.task_writer(parse_sink_options(given), SinkPlan("t", frozenset({"value"})), streaming=False)


QUERIES: dict[str, Callable[[Options], None]] = {
    "stream": stream,
    "stream of a group": lambda options: stream({**options, "kafka.group.id": "g"}),
    "batch read": batch_read,
    "exactly-once write": exactly_once,
}


@pytest.mark.parametrize("query", QUERIES)
def test_query_at_address_without_broker_fails_within_30_s(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(process_state, "Client", partial(Client, clock=clock))
    with kept_port() as kept:
        host, port = kept.getsockname()
        with pytest.raises(DeadlineExceeded, match=r"check kafka\.bootstrap\.servers and kafka\.security\.protocol"):
            QUERIES[query]({"kafka.bootstrap.servers": f"{host}:{port}"})
    assert 25 < clock.now_s() <= 30
