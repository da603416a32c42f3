"""Read records of a topic: a range, from an offset on without end, or as a member of a group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import pyarrow as pa

from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.consumer import Consumer
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.position import Position
from spark_kafka_source.cli.connection import Cluster
from spark_kafka_source.cli.new_offsets import named_partitions
from spark_kafka_source.cli.positions import FROM_LATEST, Span, list_ends, resolve
from spark_kafka_source.cli.stop_signals import CHECK_MS, StopRequest


class Receiver(Protocol):
    """Receives the records of a command, and decides when it has enough."""

    @property
    def done(self) -> bool:
        """True if no more records are needed."""

    def take(self, key: TopicPartition, batch: pa.RecordBatch) -> int | None:
        """Process a batch; return the offset of its first unprocessed record, None if there is none."""


def span_positions(
    cluster: Cluster, topic: str, partitions: tuple[int, ...] | None, span: Span
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, Position]]:
    """Return the start and the end of a span in each partition; without an end in the span, the log ends.

    `partitions`: None means all of the topic. Ends have the topic's id. Raises as `named_partitions`.
    """
    client, consumer, deadline = cluster.client, cluster.consumer, cluster.deadline
    keys = named_partitions(client, [(topic, partitions)], deadline)
    former = client.remembered_topic(topic)  # before the offsets: those of another topic of this name are refused
    topic_id = NO_TOPIC_ID if former is None else former.topic_id
    logs = list_ends(client, consumer, keys, deadline)
    starts = resolve(client, consumer, span.start, logs, deadline)
    ends = resolve(client, consumer, span.end or FROM_LATEST, logs, deadline)
    return {key: Position(starts[key]) for key in keys}, {
        key: Position(ends[key], logs.ends[key].leader_epoch, topic_id=topic_id) for key in keys
    }


def ranges_between(starts: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, Position]) -> list[Range]:
    """Return the ranges that are not empty."""
    return [Range.between(key, starts[key], end) for key, end in ends.items() if starts[key].offset < end.offset]


def read_ranges(
    cluster: Cluster, ranges: Collection[Range], columns: Collection[str], receiver: Receiver, stop: StopRequest
) -> bool:
    """Read ranges in parallel. Return False if stopped before the receiver has enough or the ranges end."""
    reader = BoundedReader(
        cluster.client,
        cluster.consumer,
        list(ranges),
        columns=columns,
        poll_timeout_ms=cluster.client.config.default_api_timeout_ms,
    )
    for source_range, batch in reader:
        receiver.take(source_range.topic_partition, batch)
        if receiver.done:
            return True
        if stop:
            return False
    return True


def follow(
    cluster: Cluster,
    starts: Mapping[TopicPartition, Position],
    columns: Collection[str],
    receiver: Receiver,
    stop: StopRequest,
) -> None:
    """Read partitions from positions on until stopped."""
    with Consumer(cluster.client, cluster.consumer, columns=columns) as consumer:
        consumer.consume_partitions(starts, cluster.deadline)
        while not (stop or receiver.done):
            if (arrived := consumer.poll(CHECK_MS)) is not None:
                stream, batch = arrived
                receiver.take((stream.topic, stream.partition), batch)


def read_as_member(
    cluster: Cluster,
    properties: Mapping[str, object],
    topic: str,
    columns: Collection[str],
    receiver: Receiver,
    stop: StopRequest,
    *,
    exit_at_end: bool,
    complete: Callable[[], None] | None = None,
) -> None:
    """Read as a member of the group in `properties`; the offsets of processed records are committed.

    With `complete`, which completes the output, they are committed only after it.
    """
    if complete is not None:
        properties = {**properties, "enable.auto.commit": "false"}
    if exit_at_end:
        # Without its topic, a member would wait for an end.
        named_partitions(cluster.client, [(topic, None)], cluster.deadline)
    with KafkaConsumer(cluster.client, properties, columns=columns) as consumer:
        consumer.subscribe([topic])
        _read_as_member(consumer, receiver, stop, exit_at_end=exit_at_end)
        if complete is not None:
            complete()
            if consumer.assignment:
                consumer.commit_sync()


def _read_as_member(consumer: KafkaConsumer, receiver: Receiver, stop: StopRequest, *, exit_at_end: bool) -> None:
    while not (stop or receiver.done):
        records = consumer.poll(CHECK_MS)
        unread = {key: _first_offset(batches[0]) for key, batches in records.items()}
        try:
            for key, batches in records.items():
                for batch in batches:
                    if unread[key] is None:
                        unread[key] = _first_offset(batch)
                    if receiver.done:
                        break
                    unread[key] = receiver.take(key, batch)
        finally:
            # `close` commits positions: those of records that were not processed must not be included.
            for key, offset in unread.items():
                if offset is not None:
                    consumer.seek(key, offset)
        owned = consumer.assignment
        if exit_at_end and not records and owned and all(consumer.current_lag(key) == 0 for key in owned):
            return


def _first_offset(batch: pa.RecordBatch) -> int | None:
    return int(batch.column("offset")[0].as_py())
