"""What a reused Python worker pays between two tasks."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

import pytest

from protocol.consumer import range_consumer
from protocol.consumer.range import Range
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.task import range_reader
from tests.conftest import TopicFactory
from tests.protocol.consumer.consuming import produce

_COLLECTION = """
import gc, pyspark.worker, pandas
from spark_kafka_source.task.worker_tuning import tune_worker
gc.collect()
before = len(gc.get_objects())
tune_worker()
frozen = gc.get_freeze_count()
tune_worker()
print(before, len(gc.get_objects()), frozen, gc.get_freeze_count())
"""

# The function must be called like PySpark's own: that is how the socket is found.
_SOCKET = """
import gc, socket
from spark_kafka_source.task.worker_tuning import tune_worker

def quick():
    return socket.TCP_QUICKACK and ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)

def one_task():
    jvm.sendall(b"order"); ours.recv(5); ours.sendall(b"answer"); jvm.recv(6)

def worker(sock):
    tune_worker()

with socket.create_server(("127.0.0.1", 0)) as server:
    jvm = socket.create_connection(server.getsockname())
    ours, _ = server.accept()
jvm.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(5):
    one_task()
gc.collect()
print(quick())
worker(ours)
one_task()
print(quick())
gc.collect()
print(quick())
ours.close()
gc.collect()
gc.collect()
print(len(gc.callbacks))
"""


_UNIX_SOCKET = """
import gc, socket
from spark_kafka_source.task.worker_tuning import tune_worker

def worker(sock):
    tune_worker()

before = len(gc.callbacks)
jvm, ours = socket.socketpair(socket.AF_UNIX)
worker(ours)
print(before, len(gc.callbacks))
"""


def _run(program: str) -> list[int]:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [int(word) for word in ended.stdout.split()]


def test_the_collection_after_a_task_looks_at_nothing_that_was_there_before() -> None:
    before, after, frozen, frozen_later = _run(_COLLECTION)
    assert before > 50_000
    assert after < before / 100
    assert frozen > before * 0.9
    assert frozen_later <= frozen


@pytest.mark.skipif(sys.platform != "linux", reason="acknowledgements are put off like this on Linux")
def test_an_order_is_acknowledged_at_once_also_after_an_answer_was_sent() -> None:
    without, after_an_answer, after_the_collection, callbacks_once_closed = _run(_SOCKET)
    assert (without, after_an_answer) == (0, 0), "Linux would have put it off"
    assert after_the_collection == 1
    assert callbacks_once_closed == 0


def test_nothing_is_acknowledged_on_a_unix_socket() -> None:
    before, after = _run(_UNIX_SOCKET)
    assert after == before


def test_a_task_asks_for_no_more_than_its_range_once_an_earlier_one_has_seen_the_topic(
    kafka1: LocalKafka, topic1: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic1(1)
    produce(kafka1, name, range(30_000), size=100)
    asked_bytes: list[int] = []
    send_fetch = range_consumer.send_fetch

    def noted(client: Any, consumer: Any, readings: Any, *more: Any, **options: Any) -> Any:
        asked_bytes.append(sum(each.fetch_bytes() for each in readings))
        return send_fetch(client, consumer, readings, *more, **options)

    monkeypatch.setattr(range_consumer, "send_fetch", noted)
    monkeypatch.setattr(range_reader, "tune_worker", lambda: None)
    # The first Fetches of a range are small whatever is known.
    monkeypatch.setattr(range_consumer, "_FIRST_FETCH_BYTES", 1 << 30)
    # A client of its own: no other test of this process has learnt anything for it.
    known = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "kafka.client.id": uuid.uuid4().hex}
    options = parse_source_options(known | {"subscribe": name}, streaming=True)
    for until_offset in (10_000, 20_000):
        wanted = Range(name, 0, until_offset - 10_000, until_offset)
        assert sum(batch.num_rows for batch in range_reader.read_range(options, [wanted])) == 10_000
    first, *_, last = asked_bytes
    assert first > 8_000_000, "nothing was known"
    assert last < 2_000_000
