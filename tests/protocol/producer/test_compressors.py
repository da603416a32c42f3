"""The compression threads of a producer: their end, and the producer without them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.producer.producing import TOPIC, numbered, producer_of
from tests.support.forked_child import check_in_child
from tests.support.wait_until import wait_until

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


def producer_with_compressors(broker: FakeKafka) -> tuple[Producer, set[threading.Thread]]:
    before = compressors()
    producer = producer_of(broker.bootstrap_servers, {"compression.type": "lz4"})
    producer.send_columns(TOPIC, numbered(0, MANY), PARTITION).result()
    started = compressors() - before
    assert started
    return producer, started


def compressors() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("produce-compress")}


def test_rows_sent_at_exit_are_written(broker: FakeKafka) -> None:
    subprocess.run([sys.executable, "-c", ENDS, broker.bootstrap_servers], check=True, timeout=120)
    assert broker.log(TOPIC).end_offset == 4 * MANY


def test_compressors_end_with_their_garbage_collected_producer(broker: FakeKafka) -> None:
    producer, started = producer_with_compressors(broker)
    gc.collect()
    gc.freeze()  # as in a Spark worker: live objects are never collected
    try:
        del producer
        wait_until(lambda: not any(thread.is_alive() for thread in started))
    finally:
        gc.unfreeze()


def test_abort_in_a_child_ends_although_a_compressor_lock_was_held_at_fork(broker: FakeKafka) -> None:
    producer, _ = producer_with_compressors(broker)
    with producer._compressors._threads._shutdown_lock:
        check_in_child(producer.abort)
    producer.abort()
