"""Read any number of partitions without a group; partitions can be added, moved and removed at any time.

Corresponds to sarama's `Consumer`. A stream is the `PartitionConsumer` of one partition. `partition_fetcher` has a
thread per broker and one that resolves leaders. Replies are queued undecoded, two per partition, and decoded in the
thread that reads the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from protocol.base.clock import Backoff, Deadline
from protocol.base.interrupts import Deferred
from protocol.base.once import warn_once
from protocol.checked_values import checked_offset, checked_partition
from protocol.cluster.client import Client, open_client
from protocol.config import ConsumerConfig, parse_consumer
from protocol.errors import KafkaError
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_position import FetchPosition
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.fetch.partition_fetcher import PartitionFetcher
from protocol.kafka_terms import EARLIEST, LATEST, NO_TOPIC_ID, NO_TOPIC_IDS, TopicIds, TopicPartition
from protocol.metrics.client_sensors import Metric
from protocol.metrics.definitions import CLIENT_GROUPS, CONSUMER_GROUPS
from protocol.position import Position
from protocol.records.decode import ALL_COLUMNS
from protocol.settings.secret import hide_variables

BUFFER_MEMORY_BYTES = 64 * 1024 * 1024


class Consumer:
    """Reads partitions until closed.

    Thread rule: thread-safe, except that each stream is read by one thread at a time.

    Parameters
    ----------
    client : Client or mapping, optional
        A shared client, which remains open when the consumer is closed, or Kafka's properties.
    config : ConsumerConfig or mapping, optional
        Consumer properties, if `client` is a shared one.
    columns : collection of str
        Columns of record batches, see `protocol.records.decode`; `offset` is always included.
    buffer_memory_bytes : int
        Approximate limit, in bytes, of the replies fetched ahead for all streams, without those being read. If the
        limit is reached while a reader waits, replies of other streams are dropped and fetched again later: of paused
        ones, and of those not read for `max.processing.time.ms`.
    **properties
        Kafka's properties with `_` for `.`.

    Raises
    ------
    ConfigurationError
        A property is wrong.
    """

    @hide_variables
    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: ConsumerConfig | Mapping[str, object] | None = None,
        *,
        columns: Collection[str] = ALL_COLUMNS,
        buffer_memory_bytes: int = BUFFER_MEMORY_BYTES,
        **properties: object,
    ) -> None:
        self._client, self._owns_client, settings = open_client(client, config, properties, _parse)
        self._config = settings
        self._columns = frozenset(columns) | {"offset"}
        self._fetcher = PartitionFetcher(self._client, settings, buffer_memory_bytes)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- partitions ---------------------------------------------------------------------------

    def consume_partition(self, topic: str, partition: int, offset: int = LATEST) -> PartitionConsumer:
        """Start to read a partition at `offset`, or at `EARLIEST` or `LATEST`; see `consume_partitions`."""
        return self.consume_partitions({(topic, partition): offset})[topic, partition]

    def consume_partitions(
        self,
        offsets: Mapping[TopicPartition, int | Position],
        deadline: Deadline | None = None,
        *,
        topic_ids: TopicIds = NO_TOPIC_IDS,
    ) -> dict[TopicPartition, PartitionConsumer]:
        """Start to read partitions.

        Parameters
        ----------
        offsets : mapping of TopicPartition to int or Position
            Start offsets, or `EARLIEST` or `LATEST` as of now. With the leader epoch of a position, the reader notices
            that the log was truncated below it (KIP-320); with its topic id, that the topic was recreated.
        deadline : Deadline, optional
            Limit for listing `EARLIEST` and `LATEST`; by default `default.api.timeout.ms` from now.
        topic_ids : mapping of TopicPartition to bytes, optional
            Ids of the topics to read: at a position in another topic of the name, reading raises `TopicRecreated`.

        Returns
        -------
        dict of TopicPartition to PartitionConsumer
            The streams. If the start offset is out of range, reading the stream raises `DataLoss`.

        Raises
        ------
        UsageError
            A partition is already being read, the consumer is closed, or a start offset is negative and neither
            `EARLIEST` nor `LATEST`.
        BrokerError, DeadlineExceeded
            An offset could not be listed.
        """
        starts: dict[TopicPartition, Position] = {}
        times: dict[TopicPartition, int] = {}
        for (topic, partition), start in offsets.items():
            key = checked_partition((topic, partition))
            if isinstance(start, Position):
                starts[key] = start
            elif start in (EARLIEST, LATEST):
                times[key] = start
            else:
                starts[key] = Position(checked_offset(start, f"{topic}-{partition}: "))
        listed = list_offsets(self._client, times, isolation_level=self._config.isolation_level, deadline=deadline)
        starts |= {key: Position(entry.offset) for key, entry in listed.items()}
        streams = {key: self._stream(key, starts[key], topic_ids.get(key, NO_TOPIC_ID)) for key in offsets}
        self._fetcher.add(streams)
        return streams

    def _stream(self, key: TopicPartition, start: Position, assigned_topic_id: bytes) -> PartitionConsumer:
        settings, clock = self._client.config, self._client.clock
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        buffer = FetchBuffer(
            FetchPosition(*key, start, self._config, assigned_topic_id=assigned_topic_id, backoff=backoff),
            clock,
            failure_timeout_s=settings.default_api_timeout_ms / 1000,
            decode=lambda fetched, name: fetched.decode(self._config, self._columns, name),
        )
        return PartitionConsumer(
            buffer,
            self._fetcher.lock,
            clock,
            read_committed=self._config.isolation_level == "read_committed",
            on_read=self._fetcher.on_read,
            on_change=self._fetcher.on_change,
            sensors=self._client.sensors,
        )

    @property
    def streams(self) -> Mapping[TopicPartition, PartitionConsumer]:
        """Open streams by (topic, partition)."""
        return self._fetcher.consumers

    @property
    def fetches(self) -> int:
        """Number of Fetch requests sent by the running threads; falls when the thread of an unused broker ends."""
        return self._fetcher.requests

    def metrics(self) -> list[Metric]:
        """Return the metrics of consumers and connections of this consumer's client. Sends no request."""
        return self._client.metrics((*CONSUMER_GROUPS, *CLIENT_GROUPS))

    # -- one thread for all streams -----------------------------------------------------------

    def poll(
        self, timeout_ms: float | None = None, max_rows: int | None = None
    ) -> tuple[PartitionConsumer, pa.RecordBatch] | None:
        """Return the next record batch of any stream, with its stream.

        Only one thread may call this, and no other thread may read a stream of this consumer.

        Parameters
        ----------
        timeout_ms : float, optional
            None waits without limit.
        max_rows : int, optional
            A record batch with more rows is cut; the next read of the stream continues after it.

        Returns
        -------
        (PartitionConsumer, pyarrow.RecordBatch) or None
            None after the timeout, or if the consumer is closed.

        Raises
        ------
        KafkaError
            The next stream could not be read, as in `PartitionConsumer.poll`. Later calls continue with other streams.
        """
        deadline = Deadline.after_ms(float("inf") if timeout_ms is None else timeout_ms, self._client.clock)
        while (stream := self._fetcher.next_arrived(deadline)) is not None:
            try:
                if (batch := stream.poll_reply(max_rows)) is not None:
                    return stream, batch
            except KafkaError:
                self._fetcher.end_turn(stream.buffer, error_delivered=True)
                raise
            self._fetcher.end_turn(stream.buffer)
        return None

    def __iter__(self) -> Iterator[tuple[PartitionConsumer, pa.RecordBatch]]:
        return iter(self.poll, None)

    # -- close --------------------------------------------------------------------------------

    def close(self, deadline: Deadline | None = None) -> None:
        """Close all streams, fetch sessions and connections of this consumer, and stop its threads.

        Iterations end, and unread records are dropped. A shared client remains open.

        Parameters
        ----------
        deadline : Deadline, optional
            By default `default.api.timeout.ms` from now. A thread in a connection attempt may end later.
        """
        with Deferred():  # no gate above: Ctrl-C would leave threads that nothing wakes
            try:
                self._fetcher.close(deadline or self._client.deadline())
            finally:
                if self._owns_client:
                    self._client.close()


def _parse(properties: Mapping[str, object]) -> ConsumerConfig:
    for name in ("auto.offset.reset", "group.id", "group.protocol"):
        if name in properties:
            warn_once(f"{name} has no effect: a Consumer reads given partitions from given offsets, in no group", name)
    return parse_consumer(properties)
