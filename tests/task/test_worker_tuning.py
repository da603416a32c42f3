"""Cost of a reused Python worker between two tasks: garbage collection and delayed TCP acknowledgements."""

from __future__ import annotations

import subprocess
import sys

import pytest

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

# `tune_worker` finds the socket as local variable `sock` of PySpark's function `worker`.
_SOCKET = """
import gc, socket
from spark_kafka_source.task.worker_tuning import tune_worker

def quick():
    return socket.TCP_QUICKACK and ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)

def one_task():
    jvm.sendall(b"order"); ours.recv(5); ours.sendall(b"answer"); jvm.recv(6)

def until_delayed():  # a pause within a task of more than 40 ms, on a busy machine, ends the delays
    for _ in range(5):
        one_task()
    while quick():
        one_task()

def worker(sock):
    tune_worker()

with socket.create_server(("127.0.0.1", 0)) as server:
    jvm = socket.create_connection(server.getsockname())
    ours, _ = server.accept()
jvm.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
until_delayed()
gc.collect()
print(quick())
worker(ours)
until_delayed()
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
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return [int(word) for word in ended.stdout.split()]


def test_garbage_collection_after_task_skips_older_objects() -> None:
    before, after, frozen, frozen_later = _run(_COLLECTION)
    assert before > 50_000
    assert after < before / 100
    assert frozen > before * 0.9
    assert frozen_later <= frozen


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux delays acknowledgements in this way")
def test_request_is_acknowledged_at_once_after_response_was_sent() -> None:
    without, after_the_collection, callbacks_once_closed = _run(_SOCKET)
    assert without == 0, "Linux delays the acknowledgement"
    assert after_the_collection == 1
    assert callbacks_once_closed == 0


def test_unix_socket_adds_no_gc_callback() -> None:
    before, after = _run(_UNIX_SOCKET)
    assert after == before
