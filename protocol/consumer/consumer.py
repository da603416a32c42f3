"""Read any number of partitions without a group; partitions can be added, moved and removed at any time.

sarama's `Consumer`. One thread per broker fetches all its partitions together, so a Fetch that waits at one broker
delays no other; `fetch_schedule` decides the requests. One more thread resolves leaders. Replies are queued undecoded,
two per partition, and decoded in the reader's thread.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa

from protocol.clock import Backoff, Deadline
from protocol.cluster.client import Client, open_client
from protocol.cluster.metadata import Broker
from protocol.condition import Condition
from protocol.config import ConsumerConfig, parse_consumer
from protocol.consumer.fetch_failures import Action, Fail, InvalidPosition, Retry, decide, log_retry
from protocol.consumer.fetch_position import CompletedFetch, FetchPosition, due_for_leaders
from protocol.consumer.fetch_request import FetchRequestBuilder, FetchResult
from protocol.consumer.fetch_schedule import Asked, BrokerState, Fetch, FetchSchedule
from protocol.consumer.leaders import decide_with_leader, resolve_leaders, send_fetch
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.errors import ConnectionLost, DataLoss, KafkaError, UsageError
from protocol.kafka_terms import EARLIEST, LATEST, NO_LEADER_EPOCH, TopicPartition
from protocol.net.connection import Connection
from protocol.records.decode import ALL_COLUMNS
from protocol.wire.messages.m01_fetch import FETCH, FIRST_WITH_SESSIONS

log = logging.getLogger(__name__)

BUFFER_MEMORY_BYTES = 64 * 1024 * 1024
_CLOSE_SESSION_MS = 1_000
_LOOK_FOR_LATE_S = 1.0
_LONGEST_WAIT_S = 60.0

Failed = Iterable[tuple[FetchPosition, Action]]

_numbers = itertools.count()


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
        Approximate limit of the records fetched ahead for all readers, besides those being read. When it is full and a
        reader waits, streams not read for `max.processing.time.ms` free their memory.
    **properties
        Kafka's properties with `_` for `.`.

    Raises
    ------
    ConfigurationError
        A property is wrong.
    """

    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: ConsumerConfig | Mapping[str, object] | None = None,
        *,
        columns: Collection[str] = ALL_COLUMNS,
        buffer_memory_bytes: int = BUFFER_MEMORY_BYTES,
        **properties: object,
    ) -> None:
        self._client, self._owns_client, settings = open_client(client, config, properties, parse_consumer)
        self._config = settings
        self._columns = frozenset(columns) | {"offset"}
        # Own connections: replies of a connection are ordered, and another consumer's Fetch may wait at the broker.
        self._purpose = f"consumer-{next(_numbers)}"
        self._lock = threading.RLock()
        self._unrouted = Condition(self._lock)
        self._arrival = Condition(self._lock)
        # In order of arrival. `poll` reads the first one to its end, so that few replies are decompressed in memory.
        self._arrived: dict[PartitionConsumer, None] = {}
        self._looked_for_late_s = 0.0
        self._streams: dict[TopicPartition, PartitionConsumer] = {}
        self._schedule = FetchSchedule(settings, buffer_memory_bytes, self._client.config.metadata_max_age_ms)
        self._threads: dict[Broker, _BrokerThread] = {}
        self._closed = False
        # Error of the router thread, which has ended.
        self._fault: str | None = None
        self._router = threading.Thread(target=self._route_all, name=f"{self._purpose}-router", daemon=True)
        self._router.start()

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
        offsets: Mapping[TopicPartition, int],
        deadline: Deadline | None = None,
        *,
        epochs: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> dict[TopicPartition, PartitionConsumer]:
        """Start to read partitions.

        Parameters
        ----------
        offsets : mapping of TopicPartition to int
            Start offsets, or `EARLIEST` or `LATEST` as of now.
        deadline : Deadline, optional
        epochs : mapping of TopicPartition to int
            Known leader epochs of the records before the offsets. They let the reader notice that the log was truncated
            below the offset (KIP-320).

        Returns
        -------
        dict of TopicPartition to PartitionConsumer
            Reading an offset that is out of range raises `DataLoss` there.

        Raises
        ------
        UsageError
            A partition is already being read, or the consumer is closed.
        DeadlineExceeded
            An offset could not be listed.
        """
        symbolic = {key: offset for key, offset in offsets.items() if offset < 0}
        for (topic, partition), offset in symbolic.items():
            if offset not in (EARLIEST, LATEST):
                raise UsageError(f"{topic}-{partition}: {offset} is not an offset")
        listed = list_offsets(self._client, symbolic, isolation_level=self._config.isolation_level, deadline=deadline)
        begins = {**offsets, **{key: each.offset for key, each in listed.items()}}
        streams = {key: self._stream(key, offset, epochs.get(key, NO_LEADER_EPOCH)) for key, offset in begins.items()}
        with self._lock:
            if self._closed:
                raise UsageError("this consumer is closed")
            if self._fault is not None:
                raise UsageError(self._fault)
            for topic, partition in streams.keys() & self._streams.keys():
                raise UsageError(f"{topic}-{partition} is being consumed already; close its stream first")
            self._streams.update(streams)
            self._unrouted.notify()
        return streams

    def _stream(self, key: TopicPartition, offset: int, last_epoch: int) -> PartitionConsumer:
        settings = self._client.config
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        return PartitionConsumer(
            FetchPosition(*key, offset, self._config, last_epoch=last_epoch, backoff=backoff),
            self._lock,
            self._client.clock,
            patience_s=settings.default_api_timeout_ms / 1000,
            read_committed=self._config.isolation_level == "read_committed",
            decode=lambda fetched, name: fetched.decode(self._config, self._columns, name),
            on_read=self._was_read,
            on_change=self._changed,
        )

    @property
    def streams(self) -> Mapping[TopicPartition, PartitionConsumer]:
        """Open streams by (topic, partition)."""
        with self._lock:
            return dict(self._streams)

    @property
    def fetches(self) -> int:
        """Number of Fetch requests sent by the current threads."""
        with self._lock:
            return sum(thread.builder.requests for thread in self._threads.values())

    # -- one thread for all streams -----------------------------------------------------------

    def poll(self, timeout_ms: float | None = None) -> tuple[PartitionConsumer, pa.RecordBatch] | None:
        """Return the next record batch of any stream, with its stream.

        Only one thread may call this, and no other thread may read a stream then.

        Parameters
        ----------
        timeout_ms : float, optional
            None waits without limit.

        Returns
        -------
        (PartitionConsumer, pyarrow.RecordBatch) or None
            None after the timeout, or if the consumer is closed.

        Raises
        ------
        KafkaError
            As reading the stream.
        """
        deadline = Deadline.after_ms(float("inf") if timeout_ms is None else timeout_ms, self._client.clock)
        while (stream := self._next_arrived(deadline)) is not None:
            try:
                if (batch := stream.poll_reply()) is not None:
                    return stream, batch
            except KafkaError:
                self._end_turn(stream, told=True)
                raise
            self._end_turn(stream)
        return None

    def _end_turn(self, stream: PartitionConsumer, *, told: bool = False) -> None:
        """Give other streams their turn after a reply or an error; an error is raised only once here."""
        with self._lock:
            self._arrived.pop(stream, None)
            if stream.readable and not (told and stream.error):
                self._announce(stream)

    def _next_arrived(self, deadline: Deadline) -> PartitionConsumer | None:
        with self._lock:
            while not self._closed:
                if (late := self._late()) is not None:
                    return late
                while self._arrived:
                    stream = next(iter(self._arrived))
                    if stream.readable:
                        return stream
                    del self._arrived[stream]
                # This thread waits for all streams, so none of them is unread.
                for stream in list(self._schedule.unread):
                    if stream.expired and not stream.paused:
                        stream.revive()
                if self._arrived:
                    continue
                if not self._schedule.wanted:
                    self._schedule.wanted = True
                    for thread in self._threads.values():
                        thread.work.notify()
                remaining_s = deadline.remaining_s()
                if remaining_s <= 0:
                    return None
                self._arrival.wait(min(remaining_s, _LOOK_FOR_LATE_S))
        return None

    def _late(self) -> PartitionConsumer | None:
        """Return a stream whose brokers have failed for too long. Checked once a second, since there may be many."""
        now_s = self._client.clock.now_s()
        if now_s - self._looked_for_late_s < _LOOK_FOR_LATE_S:
            return None
        late = next((stream for stream in self._streams.values() if stream.overdue), None)
        if late is None:
            self._looked_for_late_s = now_s
        return late

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
        deadline = deadline or self._client.deadline()
        with self._lock:
            self._closed = True
            threads, streams = list(self._threads.values()), list(self._streams.values())
            self._streams.clear()
            self._unrouted.notify_all()
            self._arrival.notify_all()
        for stream in streams:
            stream.close()
        for thread in threads:
            thread.end()
        for each in [*threads, self._router]:
            each.join(deadline.remaining_s())
            if each.is_alive():
                log.warning("%s still waits for a broker; it ends with the reply or its timeout", each.name)
        if self._owns_client:
            self._client.close()

    # -- called by streams and threads, under the lock ------------------------------------------

    def _was_read(self, stream: PartitionConsumer) -> None:
        """Handle that a reply is being read. Wake only threads with work: a decision checks all of their streams."""
        for thread in self._threads.values():
            if thread.state.was_read(stream):
                thread.work.notify()

    def _changed(self, stream: PartitionConsumer) -> None:
        """Handle that a stream was paused, resumed, moved, closed, expired or revived."""
        key = (stream.topic, stream.partition)
        if stream.closed and self._streams.get(key) is stream:
            del self._streams[key]
            self._arrived.pop(stream, None)
        if stream.readable and not stream.expired:
            self._announce(stream)
        for thread in self._threads.values():
            if thread.state.was_changed(stream):
                thread.work.notify()
        if self._fault is not None and not stream.closed:
            self._stop(stream, UsageError(f"{stream.name}: {self._fault}"))
        if stream.source.broker is None:
            self._unrouted.notify()

    def _announce(self, stream: PartitionConsumer) -> None:
        self._arrived[stream] = None
        self._schedule.wanted = False
        self._arrival.notify()

    def _deliver(self, completed: Iterable[tuple[FetchPosition, CompletedFetch]], failed: Failed, asked: Asked) -> None:
        with self._lock:
            for partition, fetched in completed:
                if (stream := asked[partition]).source is partition:
                    self._schedule.put(stream, fetched, self._client.clock.now_s())
                    self._announce(stream)
            self._handle_failures(failed, asked)
            if any(partition.broker is None for partition in asked):
                self._unrouted.notify()

    def _handle_failures(self, failed: Failed, asked: Asked) -> None:
        """Back off after retriable errors; stop the streams of other errors, which their readers raise."""
        for partition, action in failed:
            if (stream := asked[partition]).source is not partition:
                continue
            if isinstance(action, Retry):
                log_retry(partition, action.error)
                stream.postpone(action.error, self._client.clock.now_s())
                if action.refresh_metadata:
                    self._client.expire_metadata([stream.topic])
            elif isinstance(action, InvalidPosition):
                self._stop(stream, _data_loss(partition, action))
            else:
                self._stop(stream, action.error, retry=True)

    def _stop(self, stream: PartitionConsumer, error: KafkaError, *, retry: bool = False) -> None:
        stream.stop(error, retry=retry)
        self._announce(stream)

    # -- the router thread ----------------------------------------------------------------------

    def _route_all(self) -> None:
        try:
            while (streams := self._wait_for_unrouted()) is not None:
                self._route(streams)
        except Exception as error:
            # An internal error, or no more threads. Streams without a broker would wait forever.
            log.exception("%s: resolving brokers has failed", self._purpose)
            with self._lock:
                self._fault = f"this consumer cannot continue: resolving brokers has failed: {error!r}"
                for stream in self._streams.values():
                    self._stop(stream, UsageError(f"{stream.name}: {self._fault}"))

    def _wait_for_unrouted(self) -> Asked | None:
        with self._lock:
            while not self._closed:
                now_s = self._client.clock.now_s()
                sources = {each.source: each for each in self._streams.values() if each.error is None}
                if due := due_for_leaders(sources, now_s):
                    return {partition: sources[partition] for partition in due}
                waits = (each.retry_at_s - now_s for each in sources if each.broker is None)
                self._unrouted.wait(min([_LONGEST_WAIT_S, *waits]))
        return None

    def _route(self, streams: Asked) -> None:
        """Resolve the brokers of partitions with one request, record failures, and start missing broker threads."""
        try:
            deadline = self._client.deadline(self._client.config.request_timeout_ms)
            failures = resolve_leaders(self._client, streams.keys(), deadline)
            with self._lock:
                self._handle_failures([(each, decide(each, error)) for each, error in failures.items()], streams)
                for stream in streams.values():
                    self._schedule.route(stream)
                for broker in {stream.source.broker for stream in streams.values()}:
                    if broker is not None:
                        self._wake(broker)
        except Exception as error:
            log.exception("%s: resolving brokers has failed", self._purpose)
            with self._lock:
                for stream in streams.values():
                    stream.source.broker = None
                    self._stop(stream, UsageError(f"resolving the broker of {stream.name} has failed: {error!r}"))

    def _wake(self, broker: Broker) -> None:
        if broker not in self._threads:
            thread = _BrokerThread(self, broker)
            thread.start()
            self._threads[broker] = thread
        self._threads[broker].work.notify()


class _BrokerThread(threading.Thread):
    """Sends one broker the requests that the schedule decides."""

    def __init__(self, owner: Consumer, broker: Broker) -> None:
        super().__init__(name=f"{owner._purpose}-{broker.node_id}", daemon=True)
        self.builder = FetchRequestBuilder(broker, owner._config, sessions=True)
        self.work = Condition(owner._lock)
        self.state = BrokerState(broker)
        self._owner = owner
        self._client = owner._client
        self._connection: Connection | None = None

    def run(self) -> None:
        try:
            while (fetch := self._next_fetch()) is not None:
                result = self._ask(fetch)
                failed = [(partition, self._decide(partition, error)) for partition, error in result.failed]
                self._owner._deliver(result.completed, failed, fetch.asked)
        except Exception as error:
            # An internal error. Streams without a thread would wait forever.
            log.exception("%s: reading from %s has failed", self.name, self.state.broker)
            self._abandon(UsageError(f"reading from {self.state.broker} has failed: {error!r}"))
        finally:
            self._hang_up()

    def end(self) -> None:
        """Wake the thread from any wait; it then sees that the consumer is closed."""
        with self._owner._lock:
            self.work.notify()
        if self._connection is not None:
            self._connection.close()

    def _abandon(self, error: KafkaError) -> None:
        with self._owner._lock:
            self._owner._threads.pop(self.state.broker, None)
            for stream in self._owner._schedule.routed(self.state.broker):
                stream.source.broker = None
                self._owner._stop(stream, error)

    def _next_fetch(self) -> Fetch | None:
        """Return the next request; None if the thread must end."""
        with self._owner._lock:
            while not self._owner._closed:
                decision = self._owner._schedule.next(self.state, self._client.clock.now_s())
                if decision is None:
                    del self._owner._threads[self.state.broker]
                    break
                if isinstance(decision, Fetch):
                    return decision
                self.work.wait(decision)
        return None

    def _ask(self, fetch: Fetch) -> FetchResult[FetchPosition]:
        deadline = self._client.deadline(self._client.config.request_timeout_ms)
        request = self.builder.build(list(fetch.asked), max_bytes=fetch.max_bytes, max_wait_ms=fetch.max_wait_ms)
        try:
            connection = self._client.connection(self.state.broker, self._owner._purpose, deadline)
            with self._owner._lock:
                self._connection = connection
                if self._owner._closed:
                    raise ConnectionLost(f"{self.state.broker}: the consumer is closed")
            reply = send_fetch(self._client, request, deadline, purpose=self._owner._purpose)
            result = request.handle_response(reply.result(deadline))
            self.state.answered(result.throttle_ms, self._client.clock.now_s())
        except KafkaError as error:
            result = request.handle_loss(error)
        return result

    def _decide(self, partition: FetchPosition, error: KafkaError) -> Retry | InvalidPosition | Fail:
        """Decide what a failure means. May send requests, so it must not hold the lock."""
        deadline = self._client.deadline(self._client.config.request_timeout_ms)
        return decide_with_leader(self._client, partition, error, deadline)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._client.disconnect(self._connection)
        try:
            # On another connection, since the broker may hold back the last Fetch on this one.
            if (body := self.builder.close()) is not None:
                broker, deadline = self.state.broker, self._client.deadline(_CLOSE_SESSION_MS)
                self._client.ask(broker, FETCH, body, deadline, at_least=FIRST_WITH_SESSIONS)
        except KafkaError as error:
            log.debug("%s: the fetch session was not closed: %s", self.state.broker, error)


def _data_loss(partition: FetchPosition, lost: InvalidPosition) -> DataLoss:
    if isinstance(lost.cause, DataLoss):
        return lost.cause
    where = {"topic": partition.topic, "partition": partition.partition, "offset": partition.position}
    if lost.log is not None:
        where |= {"log_start_offset": lost.log.start, "log_end_offset": lost.log.latest.offset}
    return lost.kind(f"{lost.reason}. Call `seek` to continue", **where)
