"""Start of a query with an address where no broker answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from protocol import Client
from protocol.errors import DeadlineExceeded, KafkaError
from protocol.testing import FakeKafka, ManualClock
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
    settings = {**options, "topic": "t", "deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "p"}
    guarantee.task_writer(parse_sink_options(settings), SinkPlan("t", frozenset({"value"})), streaming=False)


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
    with kept_port() as closed_port:
        host, port = closed_port.getsockname()
        with pytest.raises(DeadlineExceeded, match=r"check kafka\.bootstrap\.servers and kafka\.security\.protocol"):
            QUERIES[query]({"kafka.bootstrap.servers": f"{host}:{port}"})
    assert 25 < clock.now_s() <= 30


@contextmanager
def unknown_host() -> Iterator[str]:
    yield "no-such-host.invalid:9092"


class RefusesRequest(BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(4)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextmanager
def web_server() -> Iterator[str]:
    with ThreadingTCPServer(("127.0.0.1", 0), RefusesRequest) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def sasl_listener() -> Iterator[str]:
    with FakeKafka(users={"alice": "alice-secret"}) as kafka:
        yield kafka.bootstrap_servers


@pytest.mark.parametrize("peer", [unknown_host, web_server, sasl_listener], ids=lambda peer: peer.__name__)
def test_query_at_address_of_another_service_fails_within_30_s(
    peer: Callable[[], AbstractContextManager[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(process_state, "Client", partial(Client, clock=clock))
    with peer() as address, pytest.raises(KafkaError) as raised:
        stream({"kafka.bootstrap.servers": address})
    assert clock.now_s() <= 30
    assert "kafka.bootstrap.servers" in str(raised.value) or "kafka.security.protocol" in str(raised.value)
