"""Idle Kafka producers of this Python process, kept for the next task.

Spark reuses its Python workers. An idle producer keeps its thread, connections and metadata, and an idempotent one its
producer id, so that a task of a small batch costs one round trip. A transactional producer gets the transactional id of
its task by `init_transactions`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

from protocol.cluster.client import Client
from protocol.config import ClientConfig, ProducerConfig
from protocol.producer.producer import Producer
from spark_kafka_source.process_state import PROCESS

MAX_IDLE = 16

P = TypeVar("P", bound=Producer)
_Key = tuple[int, Client, ProducerConfig, Callable[[Client, ProducerConfig], Producer]]


@contextmanager
def borrowed_producer(
    client: ClientConfig, config: ProducerConfig, make: Callable[[Client, ProducerConfig], P]
) -> Iterator[P]:
    """Yield a producer of the class `make` for exclusive use.

    After a block without an error the producer is kept for the next caller, so the block must flush it and hand over
    its transaction. After an error the producer is closed: its unsent rows must not be written by another task.
    Until the first `send_columns` or flush, `acknowledged` has the ranges of the previous task.
    """
    shared = PROCESS.client(client)
    # The key has the process id, because a forked child must not use its parent's producers.
    key = (os.getpid(), shared, replace(config, transactional_id=None), make)
    producer: P = PROCESS.idle_producers.pop(key, None) or make(shared, config)
    with ExitStack() as closing:
        closing.push(producer)
        yield producer
        closing.pop_all()
    _put_back(key, producer)


def _put_back(key: _Key, producer: Producer) -> None:
    idle = PROCESS.idle_producers
    surplus = idle.pop(key, None)
    idle[key] = producer
    if surplus is None and len(idle) > MAX_IDLE:
        surplus = idle.pop(next(iter(idle)))
    if surplus is not None:
        surplus.abort()
