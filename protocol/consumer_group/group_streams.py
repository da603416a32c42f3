"""The partitions that one member (or one consumer with partitions of its choice) reads, each begun where it must be.

Owns the streams, from when a partition is added until it is dropped. What a log has lost is answered here, as
`auto.offset.reset` says. Adding, beginning and dropping is for one thread; a stream is read by one thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.consumer.consumer import Consumer
from protocol.consumer.partition_stream import PartitionStream
from protocol.consumer_group.begin_offsets import committed_offsets, reset_offsets
from protocol.consumer_group.config import GroupConsumerConfig
from protocol.errors import DataLoss, LogTruncated, UsageError
from protocol.group.offsets import CommittedOffset
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)


class GroupStreams:
    """`columns`: as of `Consumer`."""

    def __init__(self, client: Client, config: GroupConsumerConfig, columns: Collection[str]) -> None:
        self._client = client
        self._config = config
        self._consumer = Consumer(client, config.consumer, columns=columns)
        self._streams: dict[TopicPartition, PartitionStream] = {}
        # Those that are not read yet, with where they are to begin if somebody has said so.
        self._to_begin: dict[TopicPartition, int | None] = {}
        # The group's offsets, as fetched when a partition began, or handed on to be committed since.
        self._committed: dict[TopicPartition, int] = {}

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._streams.keys() | self._to_begin.keys())

    def __len__(self) -> int:
        return len(self._streams) + len(self._to_begin)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """They begin with the next `begin`."""
        self._to_begin.update(dict.fromkeys(partitions))

    def begin(self, deadline: Deadline) -> None:
        """Begins to read what was added. Raises `NoOffset`, `BrokerError` or `DeadlineExceeded`; may be repeated."""
        if not self._to_begin:
            return
        undecided = [key for key, offset in self._to_begin.items() if offset is None]
        found = committed_offsets(self._client, self._config, undecided, deadline)
        committed = {key: each.offset for key, each in found.items()}
        epochs = {key: each.leader_epoch for key, each in found.items()}
        missing = [key for key in undecided if key not in committed]
        reset = reset_offsets(self._client, self._config, missing, deadline)
        sought = {key: offset for key, offset in self._to_begin.items() if offset is not None}
        begins = {**committed, **reset, **sought}
        self._streams.update(self._consumer.consume_partitions(begins, deadline, epochs=epochs))
        self._committed.update(committed)
        self._to_begin.clear()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Ends reading them; iterations over them end."""
        for key in partitions:
            self._to_begin.pop(key, None)
            self._committed.pop(key, None)
            if (stream := self._streams.pop(key, None)) is not None:
                stream.close()

    def __getitem__(self, key: TopicPartition) -> PartitionStream:
        if key not in self._streams:
            raise UsageError(f"{key[0]}-{key[1]} is not assigned to this consumer")
        return self._streams[key]

    def seek(self, key: TopicPartition, offset: int) -> None:
        """Also of one that has not begun; there `EARLIEST` and `LATEST` are understood, too."""
        if key in self._to_begin:
            self._to_begin[key] = offset
        else:
            self[key].seek(offset)

    def positions(self, *, moved: bool = False) -> dict[TopicPartition, CommittedOffset]:
        """Positions of the partitions that have begun; with `moved` those that may differ from the group's offsets."""
        return {
            key: CommittedOffset(stream.position, stream.last_epoch)
            for key, stream in self._streams.items()
            if not moved or self._committed.get(key) != stream.position
        }

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """These are handed on to be committed."""
        self._committed.update((key, to.offset) for key, to in offsets.items() if key in self._streams)

    def poll(self, timeout_ms: float) -> tuple[TopicPartition, pa.RecordBatch] | None:
        """As `Consumer.poll`; None also when something was lost, and is gone on with."""
        try:
            read = self._consumer.poll(timeout_ms)
        except DataLoss as loss:
            self.recover(loss)
            return None
        return None if read is None else ((read[0].topic, read[0].partition), read[1])

    def recover(self, loss: DataLoss) -> None:
        """Goes on where the log is still the one that was read, else where `auto.offset.reset` says; or raises."""
        key = loss.context["topic"], loss.context["partition"]
        if self._config.auto_offset_reset == "none":
            raise loss
        if isinstance(loss, LogTruncated):
            offset = loss.context["end_offset"]
        else:
            offset = reset_offsets(self._client, self._config, [key], self._client.deadline())[key]
        log.warning("%s; reading goes on at offset %d", loss, offset)
        if (stream := self._streams.get(key)) is not None:
            stream.seek(offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for key in partitions:
            self[key].pause()

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        for key in partitions:
            self[key].resume()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(key for key, stream in self._streams.items() if stream.paused)

    @property
    def streams(self) -> Mapping[TopicPartition, PartitionStream]:
        return self._streams

    def close(self, deadline: Deadline | None = None) -> None:
        self._consumer.close(deadline)
