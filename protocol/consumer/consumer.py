"""Reads partitions without a group: any number of them, added, moved and removed at any time.

sarama's `Consumer`. One thread per broker asks it for all its partitions at once (a Fetch that waits at one broker
delays no other), one more finds their leaders. What comes is handed to the partitions' streams undecoded, two replies
ahead of the user for each partition, and decoded in the user's thread.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from protocol.broker_errors import ErrorCode, Refresh
from protocol.clock import Backoff, Deadline
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable, what_to_refresh
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.consumer.broker_consumer import BrokerConsumer, FetchResult, look_up, send_fetch
from protocol.consumer.leader_epochs import look_up_log_bounds
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.partition_consumer import Fetched, PartitionConsumer, is_about_the_log, to_look_up
from protocol.consumer.partition_stream import PartitionStream
from protocol.consumer.position_validation import validate_position
from protocol.errors import BrokerError, ConnectionLost, DataLoss, KafkaError, UsageError
from protocol.kafka_terms import EARLIEST, LATEST, NO_REPLICA, TopicPartition
from protocol.net.connection import Connection
from protocol.records.decode import ALL_COLUMNS
from protocol.wire.messages.m01_fetch import FETCH, FIRST_WITH_SESSIONS

log = logging.getLogger(__name__)

BUFFER_MEMORY_BYTES = 64 * 1024 * 1024
# A broker whose last partition has left keeps its thread for a while: leaders come back, and failures pass.
_LINGER_S = 5.0
_CLOSE_SESSION_MS = 1_000
_LOOK_FOR_LATE_S = 1.0
_LONGEST_WAIT_S = 60.0

_numbers = itertools.count()


class Consumer:
    """Reads from brokers until closed. Safe for several threads, except that one stream is read by one at a time.

    Parameters
    ----------
    columns : of `protocol.records.decode`, what record batches have; `offset` always.
    buffer_memory_bytes : about how much is fetched ahead of all users together, beside what each of them is reading.
        When it is full and somebody waits, streams that have not been read for `max.processing.time.ms` give theirs
        back.
    """

    def __init__(
        self,
        client: Client,
        config: ConsumerConfig,
        *,
        columns: Collection[str] = ALL_COLUMNS,
        buffer_memory_bytes: int = BUFFER_MEMORY_BYTES,
    ) -> None:
        self._client = client
        self._config = config
        self._columns = frozenset(columns) | {"offset"}
        self._buffer_memory_bytes = buffer_memory_bytes
        self._read_committed = config.isolation_level == "read_committed"
        # Connections of its own: replies on one connection come in order, and another consumer's Fetch may wait.
        self._purpose = f"consumer-{next(_numbers)}"
        self._lock = threading.Lock()
        self._unrouted = threading.Condition(self._lock)
        self._arrival = threading.Condition(self._lock)
        # In the order of their arrival.
        self._arrived: dict[PartitionStream, None] = {}
        self._current: PartitionStream | None = None
        # Somebody has asked for any of them and got nothing, since the last reply.
        self._wanted = False
        self._looked_for_late_s = 0.0
        self._streams: dict[TopicPartition, PartitionStream] = {}
        self._threads: dict[Broker, _BrokerThread] = {}
        self._closed = False
        # Why no brokers are looked for any more.
        self._fault: str | None = None
        self._router = threading.Thread(target=self._route_all, name=f"{self._purpose}-router", daemon=True)
        self._router.start()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- partitions ---------------------------------------------------------------------------

    def consume_partition(self, topic: str, partition: int, offset: int = LATEST) -> PartitionStream:
        """Begins to read at `offset`, or at `EARLIEST` or `LATEST`; see `consume_partitions`."""
        return self.consume_partitions({(topic, partition): offset})[topic, partition]

    def consume_partitions(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> dict[TopicPartition, PartitionStream]:
        """Begins to read each (topic, partition) at its offset, or at `EARLIEST` or `LATEST` as of now.

        Raises `UsageError` for a partition that is read already, and `DeadlineExceeded` when its offset cannot be
        looked up. Whether a plain offset is in the log is seen later, by who reads: `DataLoss`.
        """
        symbolic = {key: offset for key, offset in offsets.items() if offset < 0}
        unknown = [key for key, offset in symbolic.items() if offset not in (EARLIEST, LATEST)]
        if unknown:
            raise UsageError(f"{unknown[0][0]}-{unknown[0][1]}: {symbolic[unknown[0]]} is no offset")
        listed = (
            list_offsets(self._client, symbolic, isolation_level=self._config.isolation_level, deadline=deadline)
            if symbolic
            else {}
        )
        streams = {
            key: self._stream(key, listed[key].offset if key in listed else offset) for key, offset in offsets.items()
        }
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

    def _stream(self, key: TopicPartition, offset: int) -> PartitionStream:
        settings = self._client.config
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        return PartitionStream(
            PartitionConsumer(*key, offset, self._config, backoff=backoff),
            self._lock,
            self._client.clock,
            patience_s=settings.default_api_timeout_ms / 1000,
            read_committed=self._read_committed,
            decode=self._decode,
            on_read=self._was_read,
            on_change=self._changed,
        )

    @property
    def streams(self) -> Mapping[TopicPartition, PartitionStream]:
        """What is being read, by (topic, partition)."""
        with self._lock:
            return dict(self._streams)

    @property
    def fetches(self) -> int:
        """How many Fetch requests were sent by the threads that are there."""
        with self._lock:
            return sum(thread.consumer.requests for thread in self._threads.values())

    # -- reading all of them in one thread ----------------------------------------------------

    def poll(self, timeout_ms: float | None = None) -> tuple[PartitionStream, pa.RecordBatch] | None:
        """The next record batch of any stream; None when none came in time, or the consumer is closed.

        For one thread, which then reads no stream by itself. Raises what reading that stream raises.
        """
        deadline = Deadline.after_ms(float("inf") if timeout_ms is None else timeout_ms, self._client.clock)
        while (stream := self._next_arrived(deadline)) is not None:
            # After an error, which is raised once here, the others have their turn.
            self._current = None
            try:
                with self._lock:
                    self._arrived.pop(stream, None)
                batch = stream.poll_reply()
            except KafkaError:
                raise
            except BaseException:
                self._comes_again(stream)
                raise
            if batch is not None:
                self._current = stream
                return stream, batch
            self._comes_again(stream)
        return None

    def _comes_again(self, stream: PartitionStream) -> None:
        with self._lock:
            if stream.readable:
                self._announce(stream)

    def _next_arrived(self, deadline: Deadline) -> PartitionStream | None:
        with self._lock:
            while not self._closed:
                # A reply is read to its end, so that few are in memory unpacked.
                if self._current is not None and self._current.readable:
                    return self._current
                if (late := self._late()) is not None:
                    return late
                while self._arrived:
                    stream = next(iter(self._arrived))
                    if stream.readable:
                        return stream
                    del self._arrived[stream]
                # Somebody waits for all of them, so none of them is left unread.
                for stream in self._streams.values():
                    if stream.expired and not stream.paused:
                        stream.revive()
                if self._arrived:
                    continue
                if not self._wanted:
                    self._wanted = True
                    self._wake_threads()
                remaining_s = deadline.remaining_s()
                if remaining_s <= 0:
                    return None
                self._arrival.wait(min(remaining_s, _LOOK_FOR_LATE_S))
        return None

    def _late(self) -> PartitionStream | None:
        """One whose brokers have been failing for too long; looked for from time to time, since there may be many."""
        now_s = self._client.clock.now_s()
        if now_s - self._looked_for_late_s < _LOOK_FOR_LATE_S:
            return None
        late = next((stream for stream in self._streams.values() if stream.overdue), None)
        if late is None:
            self._looked_for_late_s = now_s
        return late

    def __iter__(self) -> Iterator[tuple[PartitionStream, pa.RecordBatch]]:
        while (read := self.poll()) is not None:
            yield read

    # -- close --------------------------------------------------------------------------------

    def close(self, deadline: Deadline | None = None) -> None:
        """Ends the threads, the fetch sessions and the connections of this consumer, and all iterations.

        What was fetched and not read is dropped. The client stays open: it belongs to the caller. A thread that hangs
        in a connection attempt when the deadline passes (by default `default.api.timeout.ms`) ends by itself later.
        """
        deadline = deadline or self._client.deadline()
        with self._lock:
            self._closed = True
            threads = list(self._threads.values())
            streams = list(self._streams.values())
            self._unrouted.notify_all()
            self._arrival.notify_all()
        for stream in streams:
            stream.close()
        for thread in threads:
            thread.end()
        for each in [*threads, self._router]:
            each.join(deadline.remaining_s())
            if each.is_alive():
                log.warning("%s still waits for a broker; it ends when that answers or its time is over", each.name)

    # -- between streams and threads, under the lock -------------------------------------------

    def _was_read(self, stream: PartitionStream) -> None:
        """A reply is about to be read. Threads look through all streams, so they are woken only when it matters."""
        for thread in self._threads.values():
            if stream.full and thread.broker == stream.source.broker:
                thread.unread -= 1
            if thread.unread <= 0:
                thread.work.notify()

    def _changed(self, stream: PartitionStream) -> None:
        """A stream was resumed, moved, closed, or is read again: its broker's thread may have something to do."""
        key = (stream.topic, stream.partition)
        if stream.closed and self._streams.get(key) is stream:
            del self._streams[key]
            self._arrived.pop(stream, None)
        if stream.readable and not stream.closed:
            self._announce(stream)
        self._wake_threads()
        if self._fault is not None and not stream.closed:
            self._stop(stream, UsageError(f"{stream.name}: {self._fault}"))
        if stream.source.broker is None:
            self._unrouted.notify()

    def _announce(self, stream: PartitionStream) -> None:
        self._arrived[stream] = None
        self._wanted = False
        self._arrival.notify()

    def _wake_threads(self) -> None:
        """All of them: what one stream gives back may be the memory that another broker's thread waits for."""
        for thread in self._threads.values():
            thread.work.notify()

    def _held_bytes(self) -> int:
        return sum(each.records.buffer.nbytes for stream in self._streams.values() for each in stream.ahead)

    def _room_bytes(self, asked: Collection[PartitionStream] = ()) -> int:
        """What may still be fetched ahead. What nobody reads makes room for what somebody waits for."""
        room = self._buffer_memory_bytes - self._held_bytes()
        if room <= 0 and (self._wanted or any(stream.wanted for stream in asked)):
            for stream in self._streams.values():
                if stream.expired or stream.paused:
                    stream.drop_ahead()
            room = self._buffer_memory_bytes - self._held_bytes()
        return room

    def _deliver(self, result: FetchResult, asked: Mapping[PartitionConsumer, PartitionStream]) -> None:
        now_s = self._client.clock.now_s()
        with self._lock:
            for partition, fetched in result.fetched:
                stream = asked[partition]
                if stream.source is partition and not stream.closed:
                    stream.put(fetched, now_s)
                    self._announce(stream)
            for partition, error in result.failed:
                stream = asked[partition]
                if stream.source is partition and not stream.closed:
                    self._handle_failure(stream, error, now_s)
            if any(partition.broker is None for partition in asked):
                self._unrouted.notify()

    def _handle_failure(self, stream: PartitionStream, error: KafkaError, now_s: float) -> None:
        """Puts a partition off until it may work again, or tells its user what cannot."""
        partition = stream.source
        if is_about_the_log(error) and partition.preferred_replica != NO_REPLICA:
            # A follower may be behind: the leader knows.
            stream.postpone(error, now_s)
        elif is_retriable(error):
            log.debug("%s: %s", stream.name, error)
            stream.postpone(error, now_s)
            if what_to_refresh(error) is Refresh.METADATA:
                self._client.expire_metadata([stream.topic])
        else:
            self._stop(stream, error)

    def _stop(self, stream: PartitionStream, error: KafkaError) -> None:
        stream.stop(error)
        self._announce(stream)

    def _decode(self, fetched: Fetched, name: str) -> Iterator[pa.RecordBatch]:
        return fetched.decode(self._config, self._columns, name)

    # -- the thread that finds leaders ---------------------------------------------------------

    def _route_all(self) -> None:
        try:
            while (streams := self._wait_for_unrouted()) is not None:
                self._route(streams)
        except Exception as error:
            # A fault in this client, or no more threads. Streams without a broker would wait for ever.
            log.exception("%s: looking for brokers has failed", self._purpose)
            with self._lock:
                self._fault = f"this consumer cannot go on: looking for brokers has failed: {error!r}"
                for stream in self._streams.values():
                    self._stop(stream, UsageError(f"{stream.name}: {self._fault}"))

    def _wait_for_unrouted(self) -> dict[PartitionConsumer, PartitionStream] | None:
        with self._lock:
            while not self._closed:
                now_s = self._client.clock.now_s()
                sources = {each.source: each for each in self._streams.values() if each.error is None}
                if due := to_look_up(sources, now_s):
                    return {partition: sources[partition] for partition in due}
                waits = (each.retry_at_s - now_s for each in sources if each.broker is None)
                self._unrouted.wait(min([_LONGEST_WAIT_S, *waits]))
        return None

    def _route(self, streams: Mapping[PartitionConsumer, PartitionStream]) -> None:
        """Finds the brokers of partitions, with one question about all of them, or notes why not."""
        try:
            deadline = self._client.deadline(self._client.config.request_timeout_ms)
            try:
                failures = look_up(self._client, streams.keys(), deadline)
            except KafkaError as error:
                failures = dict.fromkeys(streams, error)
            now_s = self._client.clock.now_s()
            with self._lock:
                for partition, failure in failures.items():
                    stream = streams[partition]
                    if stream.source is partition and not stream.closed:
                        self._handle_failure(stream, failure, now_s)
                self._assign()
        except Exception as error:
            log.exception("%s: looking for brokers has failed", self._purpose)
            with self._lock:
                for stream in streams.values():
                    stream.source.broker = None
                    self._stop(stream, UsageError(f"looking for the broker of {stream.name} has failed: {error!r}"))

    def _assign(self) -> None:
        """A thread for every broker that partitions are read from."""
        if self._closed:
            return
        for stream in self._streams.values():
            broker = stream.source.broker
            if broker is not None and broker not in self._threads:
                thread = _BrokerThread(self, broker, f"{self._purpose}-{broker.node_id}")
                thread.start()
                self._threads[broker] = thread
        self._wake_threads()


class _BrokerThread(threading.Thread):
    """Asks one broker, request after request, for those of its partitions whose users have read what came before."""

    def __init__(self, owner: Consumer, broker: Broker, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.consumer = BrokerConsumer(broker, owner._config, sessions=True)
        self.work = threading.Condition(owner._lock)
        self.broker = broker
        # So many streams are full, and their users waited for; 0: something else is, such as memory.
        self.unread = 0
        self._owner = owner
        self._client = owner._client
        self._config = owner._config
        self._clock = owner._client.clock
        self._connection: Connection | None = None
        self._muted_until_s = 0.0

    def run(self) -> None:
        try:
            while (streams := self._wait_for_work()) is not None:
                asked = {stream.source: stream for stream in streams}
                result = self._fetch(asked)
                result.failed = [
                    (partition, self._validate_position(partition, error)) for partition, error in result.failed
                ]
                self._owner._deliver(result, asked)
        except Exception as error:
            # A fault in this client. Streams that nobody fetches for would wait for ever.
            log.exception("%s: reading from %s has failed", self.name, self.broker)
            self._abandon(UsageError(f"reading from {self.broker} has failed: {error!r}"))
        finally:
            self._hang_up()

    def end(self) -> None:
        """Wakes the thread from whatever wait it is in; it sees then that the consumer is closed."""
        with self._owner._lock:
            self.work.notify()
            connection = self._connection
        if connection is not None:
            connection.close()

    def _abandon(self, error: KafkaError) -> None:
        with self._owner._lock:
            self._owner._threads.pop(self.broker, None)
            for stream in self._owner._streams.values():
                if stream.source.broker == self.broker:
                    stream.source.broker = None
                    self._owner._stop(stream, error)

    # -- what to ask for ----------------------------------------------------------------------

    def _wait_for_work(self) -> list[PartitionStream] | None:
        """The streams to ask for; None when there is nothing to do any more."""
        owner = self._owner
        with owner._lock:
            idle_since_s = self._clock.now_s()
            while not owner._closed:
                now_s = self._clock.now_s()
                mine = [each for each in owner._streams.values() if self._reads(each, now_s)]
                if mine:
                    idle_since_s = now_s
                elif now_s - idle_since_s >= _LINGER_S:
                    del owner._threads[self.broker]
                    return None
                wait_s = min(self._expire_unread(owner._streams.values(), now_s), _LINGER_S)
                self.unread = sum(each.full and not (each.paused or each.expired) for each in mine)
                if not self.unread:
                    ready = [each for each in mine if _wants_more(each)]
                    if ready and self._muted_until_s <= now_s and owner._room_bytes(ready) > 0:
                        return ready
                    # Whoever reads, resumes or gives back memory says so.
                    if self._muted_until_s > now_s:
                        wait_s = min(wait_s, self._muted_until_s - now_s)
                self.work.wait(wait_s)
        return None

    def _reads(self, stream: PartitionStream, now_s: float) -> bool:
        partition = stream.source
        if partition.broker != self.broker:
            return False
        max_age_s = self._client.config.metadata_max_age_ms / 1000
        if partition.preferred_replica != NO_REPLICA and now_s - partition.routed_at_s > max_age_s:
            # The leader may name a better replica by now.
            partition.preferred_replica, partition.broker = NO_REPLICA, None
            self._owner._unrouted.notify()
            return False
        return True

    def _expire_unread(self, streams: Collection[PartitionStream], now_s: float) -> float:
        """Leaves out from now on whose user has not read in time, so that the others need not wait for it again.

        Returns how long it is until the next one's time is over (inf: there is none).
        """
        patience_s = self._config.max_processing_time_ms / 1000
        next_s = float("inf")
        for stream in streams:
            if stream.unread and not stream.paused and not stream.expired:
                left_s = stream.unread_since_s + patience_s - now_s
                if left_s > 0:
                    next_s = min(next_s, left_s)
                else:
                    stream.expire()
                    if stream.expired:
                        self._owner._wake_threads()
        return next_s

    # -- one request --------------------------------------------------------------------------

    def _fetch(self, asked: Mapping[PartitionConsumer, PartitionStream]) -> FetchResult:
        deadline = self._client.deadline(self._client.config.request_timeout_ms)
        try:
            with self._owner._lock:
                room_bytes = self._owner._room_bytes()
                impatient = any(
                    each.expired and each.source.broker == self.broker for each in self._owner._streams.values()
                )
            max_wait_ms = self._max_wait_ms(impatient)
            self._connect(deadline)
            reply = send_fetch(
                self._client,
                self.consumer,
                list(asked),
                deadline,
                max_bytes=max(1, min(self._config.fetch_max_bytes, room_bytes)),
                max_wait_ms=max_wait_ms,
                purpose=self._owner._purpose,
            )
            result = self.consumer.handle_response(reply.result(deadline))
        except KafkaError as error:
            self.consumer.lost()
            return FetchResult(failed=[(partition, error) for partition in asked])
        self._muted_until_s = self._clock.now_s() + result.throttle_ms / 1000
        return result

    def _validate_position(self, partition: PartitionConsumer, error: KafkaError) -> KafkaError:
        """What it means when the leader has refused an offset: it is asked, so not under the lock."""
        out_of_range = isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
        if not out_of_range or partition.preferred_replica != NO_REPLICA:
            return error
        try:
            seen = look_up_log_bounds(
                self._client, partition, self._client.deadline(self._client.config.request_timeout_ms)
            )
        except KafkaError as failure:
            return failure
        outcome = validate_position(partition, seen)
        if isinstance(outcome, BrokerError):
            return outcome
        return DataLoss(
            f"{outcome.reason}. `seek` says where to go on",
            topic=partition.topic,
            partition=partition.partition,
            offset=partition.position,
            log_start_offset=seen.start,
            log_end_offset=seen.latest.offset,
        )

    def _connect(self, deadline: Deadline) -> None:
        connection = self._client.connection(self.broker, self._owner._purpose, deadline)
        with self._owner._lock:
            self._connection = connection
            if self._owner._closed:
                raise ConnectionLost(f"{self.broker}: the consumer is closed")

    def _max_wait_ms(self, impatient: bool) -> int:
        """A stream that was left out must not wait long when its user is back; a session must be there to be closed."""
        if not self.consumer.requests:
            return 0
        most_ms = self._config.fetch_max_wait_ms
        return min(most_ms, self._config.max_processing_time_ms) if impatient else most_ms

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._client.disconnect(self._connection)
        body = self.consumer.close()
        if body is None:
            return
        try:
            # On another connection: on its own one the broker may still hold the last Fetch back.
            self._client.ask(
                self.broker, FETCH, body, self._client.deadline(_CLOSE_SESSION_MS), at_least=FIRST_WITH_SESSIONS
            )
        except KafkaError as error:
            log.debug("%s: the fetch session was not closed: %s", self.broker, error)


def _wants_more(stream: PartitionStream) -> bool:
    return not (stream.full or stream.paused or stream.expired or stream.error)
