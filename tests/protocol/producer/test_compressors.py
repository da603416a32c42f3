"""The compression threads of a producer: their end, and the producer without them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.producer.producing import numbered, producer_of
from tests.support.wait_until import wait_until

TOPIC = "t"
MANY, PARTITION = 200, np.zeros(200, np.int32)  # several record batches
ENDS = f"""
import atexit, sys, threading
atexit.register(lambda: at_exit())  # comes last of all
from tests.protocol.producer.producing import numbered, producer_of

producer = producer_of(sys.argv[1], {{"compression.type": "lz4", "linger.ms": 1}})
producer.send_columns("{TOPIC}", numbered(0, {MANY})).result()

def go_on():
    threading.main_thread().join()
    producer.send_columns("{TOPIC}", numbered({MANY}, {MANY})).result()
    for sent in [producer.send("{TOPIC}", b"." * 100) for _ in range({MANY})]:
        sent.result(20)

def at_exit():
    producer.send_columns("{TOPIC}", numbered({2 * MANY}, {MANY}))
    producer.close()

threading.Thread(target=go_on).start()
"""


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, 1)
        yield kafka


def producer_with_compressors(broker: FakeKafka) -> Producer:
    producer = producer_of(broker.bootstrap_servers, {"compression.type": "lz4"})
    producer.send_columns(TOPIC, numbered(0, MANY), PARTITION).result()
    assert compressors()
    return producer


def compressors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("produce-compress")]


def test_rows_sent_at_exit_are_written(broker: FakeKafka) -> None:
    subprocess.run([sys.executable, "-c", ENDS, broker.bootstrap_servers], check=True, timeout=60)
    assert broker.log(TOPIC).end_offset == 4 * MANY


def test_compressors_end_with_their_garbage_collected_producer(broker: FakeKafka) -> None:
    producer = producer_with_compressors(broker)
    gc.collect()
    gc.freeze()  # as in a Spark worker: live objects are never collected
    try:
        del producer
        wait_until(lambda: not compressors())
    finally:
        gc.unfreeze()


def test_abort_in_a_child_ends_although_a_compressor_lock_was_held_at_fork(broker: FakeKafka) -> None:
    producer = producer_with_compressors(broker)
    with producer._compressors._threads._shutdown_lock:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's handler would end the test, not the child
            signal.alarm(20)
            producer.abort()
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    producer.abort()
