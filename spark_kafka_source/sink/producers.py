"""The Kafka producers of this Python process that wait for their next task.

Spark reuses its Python workers from batch to batch. A producer kept here keeps its producer id (brokers remember each
id for a day), its connections and its metadata, so that a task of a small batch costs one round trip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.config import ClientConfig, ProducerConfig
from protocol.producer.async_producer import AsyncProducer
from spark_kafka_source.clients import client_for

_MOST_IDLE = 16

# With the process id in the key a forked child never finds its parent's producers.
_idle: dict[tuple[int, ClientConfig, ProducerConfig], AsyncProducer] = {}


@contextmanager
def borrowed_producer(client: ClientConfig, config: ProducerConfig) -> Iterator[AsyncProducer]:
    """A producer for the caller alone.

    Left without an error it waits here for the next borrower, so the caller must have flushed it. After an error it
    is aborted: what it still holds must not go out with another task's rows.
    """
    key = (os.getpid(), client, config)
    producer = _idle.pop(key, None) or AsyncProducer(client_for(client), config)
    try:
        yield producer
    except BaseException:
        producer.abort()
        raise
    _put_back(key, producer)


def _put_back(key: tuple[int, ClientConfig, ProducerConfig], producer: AsyncProducer) -> None:
    surplus = _idle.pop(key, None)
    _idle[key] = producer
    if surplus is None and len(_idle) > _MOST_IDLE:
        surplus = _idle.pop(next(iter(_idle)))
    if surplus is not None:
        surplus.abort()
