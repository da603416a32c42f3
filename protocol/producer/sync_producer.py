"""Writes columns and waits: sarama's `SyncProducer`, which is the async one plus waiting.

For programs that write little and want to know where it went before they go on. Nothing of its own but the waiting.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ProducerConfig
from protocol.kafka_terms import TopicPartition
from protocol.producer.async_producer import AsyncProducer
from protocol.producer.partition_producer import ProducedRange


class SyncProducer:
    """Every call ends when brokers have acknowledged its rows. `options` are those of `AsyncProducer`."""

    def __init__(self, client: Client, config: ProducerConfig, **options: Any) -> None:
        self._producer = AsyncProducer(client, config, **options)

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send_columns(
        self,
        topic: str,
        columns: pa.RecordBatch,
        partitions: pa.Int32Array | npt.NDArray[np.int32] | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> dict[TopicPartition, ProducedRange]:
        """Where these rows are now. Takes and raises what `AsyncProducer.send_columns` and `flush` do."""
        self._producer.send_columns(topic, columns, partitions)
        self._producer.flush(deadline)
        return self._producer.acknowledged

    def close(self) -> None:
        """Takes nothing more; nothing is under way between calls."""
        self._producer.abort()
