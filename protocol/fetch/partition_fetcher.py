"""Fetch open partitions in threads: one per broker, and one that resolves leaders.

A Fetch that waits at one broker delays no other. The threads carry out what `fetch_schedule` and `fetch_failures`
decide, and put replies, undecoded, into each partition's `fetch_buffer`.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping

from protocol.base.clock import Deadline
from protocol.base.condition import Condition, Lock
from protocol.base.interrupts import join, start
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import ConnectFailed, ConnectionLost, DataLoss, KafkaError, UsageError
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_failures import Action, InvalidPosition, Retry, decide, log_retry
from protocol.fetch.fetch_position import CompletedFetch, FetchPosition, due_for_leaders
from protocol.fetch.fetch_request import FetchRequestBuilder, FetchResult
from protocol.fetch.fetch_schedule import BrokerState, Fetch, FetchSchedule, RequestedBuffers
from protocol.fetch.leaders import decide_with_leader, receive_fetch, resolve_leaders, send_fetch
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import TopicPartition
from protocol.metrics import definitions
from protocol.metrics.client_sensors import Tags
from protocol.net.connection import Connection
from protocol.wire.messages.m01_fetch import FETCH, FIRST_WITH_SESSIONS

log = logging.getLogger(__name__)

_CLOSE_SESSION_MS = 1_000
_OVERDUE_CHECK_S = 1.0
_MAX_WAIT_S = 60.0

Completed = Iterable[tuple[FetchPosition, CompletedFetch]]
Failed = Iterable[tuple[FetchPosition, Action]]

_numbers = itertools.count()


class PartitionFetcher:
    """The open partitions of one `Consumer`, and the threads that fetch them.

    `buffer_memory_bytes`: as for `Consumer`.
    `lock`: guards everything here, and the buffers. Requests, and decisions that send some, run without it. Their
    results apply only if the requested position is still the `source` of its buffer, which a seek replaces.

    `on_change` follows every call that pauses, resumes, seeks, closes, expires, empties or revives a buffer;
    `_wake_reader` follows every reply and error.
    """

    def __init__(self, client: Client, config: ConsumerConfig, buffer_memory_bytes: int) -> None:
        self.lock = Lock()
        self.closed = False
        self._client = client
        self._config = config
        self._name = f"consumer-{next(_numbers)}"
        self.leader_work = Condition(self.lock)
        self._arrival = Condition(self.lock)
        # In order of arrival. `Consumer.poll` reads the reply of the first one to its end before the next one, so that
        # few decompressed replies are in memory.
        self._arrived: dict[FetchBuffer, None] = {}
        self._overdue_checked_at_s = 0.0
        self._consumers: dict[FetchBuffer, PartitionConsumer] = {}
        self._keys: set[TopicPartition] = set()  # of `_consumers`
        self.schedule = FetchSchedule(config, buffer_memory_bytes, client.config.metadata_max_age_ms)
        """Buffers by broker, and what to fetch next. Guarded by `lock`."""
        self._threads: dict[Broker, _BrokerThread] = {}
        # Error of the leader thread, which has ended.
        self._fault: str | None = None
        client.sensors.use([definitions.FETCH])
        client.sensors.add_gauge("records-lag", self, PartitionFetcher._lags)
        self._leader_thread = _LeaderThread(self, client, f"{self._name}-leaders")

    # -- called by the consumer -----------------------------------------------------------------

    def add(self, consumers: Mapping[TopicPartition, PartitionConsumer]) -> None:
        """Start to fetch partitions.

        Raises `UsageError`: the consumer is closed, its leader thread has ended with an error, or a partition is
        already being fetched. `ConnectFailed`: this process has too many threads.
        """
        with self.lock:
            if self.closed:
                raise UsageError("this consumer is closed")
            if self._fault is not None:
                raise UsageError(self._fault)
            for topic, partition in consumers.keys() & self._keys:
                raise UsageError(f"{topic}-{partition} is being consumed already; close its stream first")
            if self._leader_thread.ident is None:
                start(self._leader_thread)
            self._consumers.update((consumer.buffer, consumer) for consumer in consumers.values())
            self._keys.update(consumers)
            self.leader_work.notify()

    @property
    def consumers(self) -> dict[TopicPartition, PartitionConsumer]:
        """Open partitions by (topic, partition)."""
        with self.lock:
            return {buffer.source.topic_partition: consumer for buffer, consumer in self._consumers.items()}

    def _lags(self) -> Iterator[tuple[Tags, float]]:
        """Yield the known lags by the tags of their metric."""
        for (topic, partition), stream in self.consumers.items():
            if (lag := stream.lag) is not None:
                yield ((definitions.TOPIC, topic), (definitions.PARTITION, str(partition))), lag

    @property
    def requests(self) -> int:
        """Number of Fetch requests of the running threads."""
        with self.lock:
            return sum(thread.builder.requests for thread in self._threads.values())

    def next_arrived(self, deadline: Deadline) -> PartitionConsumer | None:
        """Return the partition to read next, for the thread that reads all of them; None after the deadline."""
        with self.lock:
            while not self.closed:
                if (overdue := self._next_overdue()) is not None:
                    return overdue
                while self._arrived:
                    buffer = next(iter(self._arrived))
                    if buffer.readable and (consumer := self._consumers.get(buffer)) is not None:
                        return consumer
                    del self._arrived[buffer]
                # A thread that waits for all partitions is not slow: expired partitions are fetched again.
                for buffer in list(self.schedule.with_replies):
                    if buffer.expired and not buffer.paused:
                        buffer.revive()
                        self.on_change(buffer)
                if self._arrived:
                    continue
                if not self.schedule.poll_waits:
                    self.schedule.poll_waits = True
                    for thread in self._threads.values():
                        thread.work.notify()
                remaining_s = deadline.remaining_s()
                if remaining_s <= 0:
                    return None
                self._arrival.wait(min(remaining_s, _OVERDUE_CHECK_S))
        return None

    def _next_overdue(self) -> PartitionConsumer | None:
        """Return a consumer whose brokers have failed for too long. Checked once a second, since there may be many."""
        now_s = self._client.clock.now_s()
        if now_s - self._overdue_checked_at_s < _OVERDUE_CHECK_S:
            return None
        overdue = next((consumer for buffer, consumer in self._consumers.items() if buffer.overdue), None)
        if overdue is None:
            self._overdue_checked_at_s = now_s
        return overdue

    def end_turn(self, buffer: FetchBuffer, *, error_delivered: bool = False) -> None:
        """Move a partition behind the others that have arrived, after its reply was read or its error was raised.

        `error_delivered`: leave the partition out if it would only raise the same error again.
        """
        with self.lock:
            self._arrived.pop(buffer, None)
            if buffer.readable and not (error_delivered and buffer.error):
                self._announce(buffer)

    def close(self, deadline: Deadline) -> None:
        """Close all partitions, fetch sessions and connections, and stop the threads."""
        with self.lock:
            self.closed = True
            threads, consumers = list(self._threads.values()), list(self._consumers.values())
            self._consumers.clear()
            self._keys.clear()
            self.leader_work.notify_all()
            self._arrival.notify_all()
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.interrupt()
        for fetch_thread in [*threads, self._leader_thread]:
            if fetch_thread.ident is None:
                continue
            if not join(fetch_thread, deadline.remaining_s()):
                log.warning("%s still waits for a broker; it ends with the reply or its timeout", fetch_thread.name)

    # -- called by `PartitionConsumer`, under the lock -------------------------------------------

    def on_read(self, buffer: FetchBuffer) -> None:
        """Handle that a reply is being read. Wake only threads with work: each wake-up checks all of their buffers."""
        for thread in self._threads.values():
            if thread.state.record_read(buffer):
                thread.work.notify()

    def on_change(self, buffer: FetchBuffer) -> None:
        """Handle that a partition was paused, resumed, moved, closed, expired or revived."""
        if buffer.closed and self._consumers.pop(buffer, None) is not None:
            self._keys.discard(buffer.source.topic_partition)
            self._arrived.pop(buffer, None)
        if buffer.readable and not buffer.expired:
            self._announce(buffer)
        for thread in self._threads.values():
            if thread.state.has_work_after(buffer):
                thread.work.notify()
        if self._fault is not None and not buffer.closed:
            self._stop(buffer, UsageError(f"{buffer.name}: {self._fault}"))
        if buffer.source.broker is None:
            self.leader_work.notify()

    def _announce(self, buffer: FetchBuffer) -> None:
        self._arrived[buffer] = None
        self.schedule.poll_waits = False
        self._arrival.notify()

    def _stop(self, buffer: FetchBuffer, error: KafkaError, *, raise_once: bool = False) -> None:
        buffer.stop(error, raise_once=raise_once)
        self._wake_reader(buffer)

    def _wake_reader(self, buffer: FetchBuffer) -> None:
        if (consumer := self._consumers.get(buffer)) is not None:
            consumer.wake()
        self._announce(buffer)

    # -- called by the threads ----------------------------------------------------------------

    def next_fetch(self, thread: _BrokerThread) -> Fetch | None:
        """Return the next request of a broker's thread; None if it must end."""
        with self.lock:
            while not self.closed:
                decision = self.schedule.next(thread.state, self._client.clock.now_s())
                for buffer in decision.changed:
                    if buffer.expired:
                        log.debug("%s: not read for max.processing.time.ms, so no longer fetched", buffer.name)
                    self.on_change(buffer)
                if decision.fetch is not None:
                    return decision.fetch
                if decision.wait_s is None:
                    del self._threads[thread.state.broker]
                    break
                thread.work.wait(decision.wait_s)
        return None

    def deliver(self, completed: Completed, buffers: RequestedBuffers) -> None:
        """Add the records of a reply to the buffers, and have replicas that it names resolved."""
        with self.lock:
            for partition, fetched in completed:
                if (buffer := buffers[partition]).source is partition:
                    self.schedule.put(buffer, fetched, self._client.clock.now_s())
                    self._wake_reader(buffer)
            self._wake_leader_thread(buffers)

    def handle_failures(self, failed: Failed, buffers: RequestedBuffers) -> None:
        """Carry out the decisions about the failures of a request."""
        with self.lock:
            self._handle_failures(failed, buffers)
            self._wake_leader_thread(partition for partition, _ in failed)

    def _wake_leader_thread(self, partitions: Iterable[FetchPosition]) -> None:
        if any(partition.broker is None for partition in partitions):
            self.leader_work.notify()

    def abandon(self, thread: _BrokerThread, error: KafkaError) -> None:
        """Handle the end of a broker's thread by an internal error: stop its partitions, which would wait forever."""
        with self.lock:
            self._threads.pop(thread.state.broker, None)
            for buffer in self.schedule.buffers_of(thread.state.broker):
                buffer.source.leave_broker()
                self._stop(buffer, error)

    def next_without_leader(self) -> RequestedBuffers | None:
        """Return the partitions whose brokers must be resolved now; None if the leader thread must end."""
        with self.lock:
            while not self.closed:
                now_s = self._client.clock.now_s()
                sources = {buffer.source: buffer for buffer in self._consumers if buffer.error is None}
                if due := due_for_leaders(sources, now_s):
                    return {partition: sources[partition] for partition in due}
                waits = (source.retry_at_s - now_s for source in sources if source.broker is None)
                self.leader_work.wait(min([_MAX_WAIT_S, *waits]))
        return None

    def leaders_resolved(self, failures: Mapping[FetchPosition, KafkaError], buffers: RequestedBuffers) -> None:
        """Record failures, and start missing threads."""
        with self.lock:
            self._handle_failures(
                [(position, decide(position, error)) for position, error in failures.items()], buffers
            )
            for buffer in buffers.values():
                self.schedule.add_resolved(buffer)
            for broker in {buffer.source.broker for buffer in buffers.values()}:
                if broker is not None and (error := self._wake_thread(broker)) is not None:
                    retry = Retry(error, refresh_metadata=False)
                    self._handle_failures(
                        [(position, retry) for position in buffers if position.broker == broker], buffers
                    )

    def leaders_failed(self, error: Exception, buffers: RequestedBuffers) -> None:
        """Handle an internal error in resolving leaders: raise it to the readers of these partitions."""
        with self.lock:
            for buffer in buffers.values():
                if not buffer.closed:
                    buffer.source.leave_broker()
                    self._stop(buffer, UsageError(f"resolving the broker of {buffer.name} has failed: {error!r}"))

    def fail(self, error: Exception) -> None:
        """Handle the end of the leader thread: partitions without a broker would wait forever."""
        with self.lock:
            self._fault = f"this consumer cannot continue: resolving brokers has failed: {error!r}"
            for buffer in self._consumers:
                self._stop(buffer, UsageError(f"{buffer.name}: {self._fault}"))

    def _handle_failures(self, failed: Failed, buffers: RequestedBuffers) -> None:
        """Back off after retriable errors; stop the partitions of other errors, which their readers raise."""
        for partition, action in failed:
            if (buffer := buffers[partition]).source is not partition:
                continue
            if isinstance(action, Retry):
                log_retry(partition, action.error)
                buffer.postpone(action.error, self._client.clock.now_s(), at_once=action.at_once)
                if action.refresh_metadata:
                    self._client.expire_metadata([partition.topic])
            elif isinstance(action, InvalidPosition):
                self._stop(buffer, _data_loss(partition, action))
            else:
                self._stop(buffer, action.error, raise_once=True)

    def _wake_thread(self, broker: Broker) -> ConnectFailed | None:
        """Wake the thread of a broker, or start it; return an error if the process has too many threads."""
        if self.closed:  # `close` would not wait for a new thread
            return None
        if broker not in self._threads:
            builder = FetchRequestBuilder(broker, self._config, sessions=True)
            thread = _BrokerThread(self, self._client, builder, f"{self._name}-{broker.node_id}")
            try:
                start(thread)
            except ConnectFailed as error:
                return error
            self._threads[broker] = thread
        self._threads[broker].work.notify()
        return None


def _data_loss(partition: FetchPosition, lost: InvalidPosition) -> DataLoss:
    """Return the error for the reader. A cause keeps its context, which `seek` and consumers need to continue."""
    if isinstance(lost.cause, DataLoss):
        return lost.cause
    where = {"topic": partition.topic, "partition": partition.partition, "offset": partition.offset}
    if lost.bounds is not None:
        where |= {"log_start_offset": lost.bounds.start, "log_end_offset": lost.bounds.latest.offset}
    return lost.kind(f"{lost.reason}. Call `seek` to continue", **where)


class _LeaderThread(threading.Thread):
    """Resolves the brokers of partitions, many with one request."""

    def __init__(self, fetcher: PartitionFetcher, client: Client, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._fetcher = fetcher
        self._client = client

    def run(self) -> None:
        try:
            while (buffers := self._fetcher.next_without_leader()) is not None:
                self._resolve(buffers)
        except Exception as error:
            # An internal error, or no more threads.
            log.exception("%s: resolving brokers has failed", self.name)
            self._fetcher.fail(error)

    def _resolve(self, buffers: RequestedBuffers) -> None:
        try:
            deadline = self._client.deadline(self._client.config.request_timeout_ms)
            self._fetcher.leaders_resolved(resolve_leaders(self._client, buffers.keys(), deadline), buffers)
        except Exception as error:
            log.exception("%s: resolving brokers has failed", self.name)
            self._fetcher.leaders_failed(error, buffers)


class _BrokerThread(threading.Thread):
    """Sends one broker the requests that the schedule decides."""

    def __init__(self, fetcher: PartitionFetcher, client: Client, builder: FetchRequestBuilder, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.builder = builder
        self.work = Condition(fetcher.lock)
        self.state = BrokerState(builder.broker)
        self._fetcher = fetcher
        self._client = client
        # An own connection: replies of a connection are ordered, so another Fetch must not wait there. And this thread
        # closes it at its end, when the next one for the same broker may run already.
        self._purpose = f"{name}-{next(_numbers)}"
        self._connection: Connection | None = None

    def run(self) -> None:
        try:
            while (fetch := self._fetcher.next_fetch(self)) is not None:
                result = self._fetch(fetch)
                # Before the decisions, which may wait for other brokers.
                self._fetcher.deliver(result.completed, fetch.buffers)
                failed = [(partition, self._decide(partition, error)) for partition, error in result.failed]
                self._fetcher.handle_failures(failed, fetch.buffers)
        except Exception as error:
            log.exception("%s: reading from %s has failed", self.name, self.state.broker)
            self._fetcher.abandon(self, UsageError(f"reading from {self.state.broker} has failed: {error!r}"))
        finally:
            self._close_session()

    def interrupt(self) -> None:
        """Wake the thread from any wait; it then sees that the fetcher is closed."""
        with self.work:
            self.work.notify()
        if self._connection is not None:
            self._connection.close()

    def _fetch(self, fetch: Fetch) -> FetchResult[FetchPosition]:
        deadline = self._client.deadline(self._client.config.request_timeout_ms)
        request = self.builder.build(list(fetch.buffers), max_bytes=fetch.max_bytes, max_wait_ms=fetch.max_wait_ms)
        try:
            connection = self._client.connection(self.state.broker, self._purpose, deadline)
            with self.work:
                self._connection = connection
                if self._fetcher.closed:
                    raise ConnectionLost(f"{self.state.broker}: the consumer is closed")
            reply = send_fetch(self._client, request, deadline, purpose=self._purpose)
            result = receive_fetch(self._client, request, reply.result(deadline))
            now_s = self._client.clock.now_s()
            self.state.record_reply(result.throttle_ms, now_s, by_id=request.by_id)
            if result.completed:
                self._client.sensors.fetches.record((now_s, result.record_bytes))
        except KafkaError as error:
            result = request.handle_loss(error)
        return result

    def _decide(self, partition: FetchPosition, error: KafkaError) -> Action:
        """Decide what a failure means. May send requests, so it must not hold the lock."""
        deadline = self._client.deadline(self._client.config.request_timeout_ms)
        return decide_with_leader(self._client, partition, error, deadline)

    def _close_session(self) -> None:
        self._client.hang_up(self._purpose)
        try:
            # On another connection: on this one the broker would first answer the last Fetch, which may wait there.
            if (body := self.builder.close()) is not None:
                broker, deadline = self.state.broker, self._client.deadline(_CLOSE_SESSION_MS)
                self._client.ask(broker, FETCH, body, deadline, at_least=FIRST_WITH_SESSIONS)
        except KafkaError as error:
            log.debug("%s: the fetch session was not closed: %s", self.state.broker, error)
