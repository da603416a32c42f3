"""The Kafka producers of this Python process that wait for their next task.

Spark reuses its Python workers from batch to batch. A producer kept here keeps its thread, its connections and its
metadata, and an idempotent one its producer id (brokers remember each id for a day), so that a task of a small batch
costs one round trip. One of transactions takes the transactional id of its task with each `init_transactions`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from protocol.cluster.client import Client
from protocol.config import ClientConfig, ProducerConfig
from protocol.producer.producer import Producer
from spark_kafka_source.clients import client_for

_MOST_IDLE = 16

P = TypeVar("P", bound=Producer)
_Key = tuple[int, Client, ProducerConfig, Callable[[Client, ProducerConfig], Producer]]

# With the process id in the key a forked child never finds its parent's producers.
_idle: dict[_Key, Any] = {}


@contextmanager
def borrowed_producer(
    client: ClientConfig, config: ProducerConfig, make: Callable[[Client, ProducerConfig], P]
) -> Iterator[P]:
    """A producer for the caller alone, of the class `make`.

    Left without an error it waits here for the next borrower, so the caller must have flushed it, and have handed over
    its transaction. After an error it ends as such a producer does: what it still holds must not go out with another
    task's rows.
    """
    shared = client_for(client)
    key = (os.getpid(), shared, replace(config, transactional_id=None), make)
    producer: P = _idle.pop(key, None) or make(shared, config)
    with ExitStack() as unless_kept:
        unless_kept.push(producer)
        yield producer
        unless_kept.pop_all()
    _put_back(key, producer)


def _put_back(key: _Key, producer: Producer) -> None:
    surplus = _idle.pop(key, None)
    _idle[key] = producer
    if surplus is None and len(_idle) > _MOST_IDLE:
        surplus = _idle.pop(next(iter(_idle)))
    if surplus is not None:
        surplus.abort()
