"""Writes and waits: sarama's `SyncProducer`, which is the async one plus waiting.

For programs that write little and want to know where it went before they go on. Nothing of its own but the waiting.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Any

import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ProducerConfig
from protocol.errors import DeadlineExceeded
from protocol.producer.async_producer import AsyncProducer
from protocol.producer.partition_choice import GivenPartitions
from protocol.producer.results import RecordMetadata


class SyncProducer:
    """Every call ends when brokers have acknowledged its rows. `options` are those of `AsyncProducer`.

    Safe for several threads; what they send at the same time goes out together.
    """

    def __init__(self, client: Client, config: ProducerConfig, **options: Any) -> None:
        # Who waits for each call has nothing to gain from lingering.
        self._producer = AsyncProducer(client, replace(config, linger_ms=0), **options)
        self._patience_ms = config.delivery_timeout_ms + client.config.request_timeout_ms
        self._client = client

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send_columns(
        self,
        topic: str,
        columns: pa.RecordBatch,
        partitions: GivenPartitions | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> pa.RecordBatch:
        """`partition`, `offset` and `timestamp_ms` of each row.

        Takes and raises what `AsyncProducer.send_columns` and its result do. By default it waits as `flush` does.
        """
        sent = self._producer.send_columns(topic, columns, partitions)
        return sent.result(deadline or self._client.deadline(self._patience_ms))

    def send(
        self, topic: str, value: bytes | str | None, *, deadline: Deadline | None = None, **fields: Any
    ) -> RecordMetadata:
        """Where the message is now; `fields` as of `AsyncProducer.send`. Raises why it was not written."""
        deadline = deadline or self._client.deadline(self._patience_ms)
        try:
            return self._producer.send(topic, value, **fields).result(deadline.remaining_s())
        except FutureTimeout as error:
            raise DeadlineExceeded(f"a message for {topic} is not acknowledged in time", topic=topic) from error

    def close(self) -> None:
        """Takes nothing more; nothing is under way between calls."""
        self._producer.abort()
