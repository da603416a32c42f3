"""Sends record batches, and handles replies, retries and deadlines.

Java's `Sender`, sarama's dispatcher. Only `producer_thread` uses the partitions' queues and the brokers' connections,
so they need no lock. Callers put batches into the inbox and wake the thread (`SelfPipe`). One poll waits for replies,
for callers, and for the next time at which something is due. Results go to `pending_rows`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

from protocol.base.clock import Backoff, Deadline, StoppableClock
from protocol.base.condition import Event
from protocol.cluster.client import PRODUCE, Client
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import Broker
from protocol.config import ProducerConfig
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.net.readiness import SelfPipe, ready
from protocol.producer.broker_producer import BrokerProducer
from protocol.producer.idempotence import ProducerSession
from protocol.producer.partition_producer import Encode, PartitionProducer
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.retry_backoff import BackoffFunction, FunctionBackoff
from protocol.producer.topics import Leaders

# Interval of the checks for unresponsive brokers while requests are in flight.
_MAX_WAIT_S = 1.0

_numbers = itertools.count()


class Sender:
    """The batches of one producer from `put` to their result.

    `busy` has the partitions with unsent or unacknowledged batches; it is one dictionary for the life of the sender.
    Other threads may look keys up in it, and must not iterate. `purpose` is the name of the connections in the pool,
    and of the thread. `stop_error` says why the thread stops, unless it fails.
    """

    def __init__(
        self,
        client: Client,
        config: ProducerConfig,
        session: ProducerSession,
        pending: PendingRows,
        encode: Encode,
        retry_backoff: BackoffFunction | None = None,
    ) -> None:
        self.busy: dict[TopicPartition, PartitionProducer] = {}
        self._client = client
        self._config = config
        self._session = session
        self._pending = pending
        self._encode = encode
        self._retry_backoff = retry_backoff
        self._clock = StoppableClock(client.clock)
        # Replies of a connection are ordered: with its own connections, it never waits for another producer's replies.
        self.purpose = f"{PRODUCE}-{next(_numbers)}"
        self._partitions: dict[TopicPartition, PartitionProducer] = {}
        self._brokers: dict[Broker, BrokerProducer] = {}
        self._requests_to_departed = 0
        self._expired_at_s: dict[str, float] = {}  # by topic, within the last back-off, in order of time
        self._inbox: deque[ProducerBatch] = deque()
        self._end_error: KafkaError | None = None
        self.stop_error = UsageError(
            "this producer is closed: rows without an acknowledgement are dropped; those in flight may be written"
        )
        self._resets: deque[Event] = deque()
        self._self_pipe = SelfPipe()

    # -- for callers --------------------------------------------------------------------------

    def put(self, batches: Sequence[ProducerBatch], freed_bytes: int = 0) -> None:
        """Add record batches, in order within each partition. Thread-safe.

        Also those that have failed already, since results are reported in the producer's thread. After the end of that
        thread nothing is taken in: `PendingRows` has failed all rows. Their memory replaces `freed_bytes`.
        """
        self._pending.add(batches, freed_bytes)
        self._inbox.extend(batches)
        self.wake()

    def wake(self) -> None:
        """Wake the thread. Thread-safe."""
        self._self_pipe.wake()

    def stop(self, error: UsageError | None = None) -> None:
        """Let the thread stop, and fail unacknowledged batches with this error. Thread-safe, without a lock."""
        self.stop_error = error or self.stop_error
        self._clock.stop()
        self.wake()

    @property
    def stopped(self) -> bool:
        """True after `stop`."""
        return self._clock.stopped

    def reset_sequences(self, deadline: Deadline) -> None:
        """Drop unsent batches, wait for replies to those in flight, then restart all sequence numbers at 0.

        Raises `DeadlineExceeded` if some batches are still in flight (the reset continues), `KafkaError` if the sender
        has ended.
        """
        done = Event()
        self._resets.append(done)
        if self._end_error is not None:  # after `append`: `fail_batches` sets it, then `close` completes all resets
            raise self._end_error
        self.wake()
        if not done.wait(deadline.remaining_s()):
            raise DeadlineExceeded("batches in flight were not answered in time")
        if self._end_error is not None:  # perhaps before the replies
            raise self._end_error

    @property
    def in_flight(self) -> int:
        """Number of unanswered requests."""
        return sum(broker.in_flight for broker in list(self._brokers.values()))

    @property
    def requests(self) -> int:
        """Number of Produce requests sent."""
        return self._requests_to_departed + sum(broker.requests for broker in list(self._brokers.values()))

    # -- the thread ---------------------------------------------------------------------------

    def work(self) -> None:
        """Take in batches, handle arrived replies, and send until no broker accepts more."""
        self._take_in()
        if self._resets:
            self._reset_sequences()
        else:
            self._work()

    def fail_batches(self, end: KafkaError) -> None:
        """Fail all batches, and refuse resets of sequence numbers."""
        self._end_error = end
        self._take_in()
        for partition in self._partitions.values():
            partition.drop(end)
        self._complete_taken(self._partitions.values())

    def close(self) -> None:
        """End waiting resets, and close the connections."""
        for done in list(self._resets):
            done.set()
        try:
            self._client.hang_up(self.purpose)
        finally:
            self._self_pipe.close()

    def _complete(self, completed: Sequence[ProducerBatch]) -> None:
        if completed:
            for batch in completed:
                if batch.result is not None and batch.result.error is not None:
                    failed = self._client.sensors.failed[batch.topic]
                    failed.record((self._client.clock.now_s(), batch.record_count))
            self._pending.complete(completed)

    def _take_in(self) -> None:
        failed: list[ProducerBatch] = []
        while self._inbox:
            batch = self._inbox.popleft()
            if batch.result is None:
                self._partition((batch.topic, batch.partition)).append(batch)
            else:
                failed.append(batch)
        self._complete(failed)

    def _partition(self, key: TopicPartition) -> PartitionProducer:
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = PartitionProducer(
                *key,
                max_in_flight=self._config.max_in_flight_requests_per_connection,
                retries=self._config.retries,
                delivery_timeout_s=self._config.delivery_timeout_ms / 1000,
                backoff=self._backoff(),
                encode=self._encode,
            )
        self.busy[key] = partition
        return partition

    def _backoff(self) -> Backoff:
        limits_ms = self._client.config.retry_backoff_ms, self._client.config.retry_backoff_max_ms
        if self._retry_backoff is None:
            return Backoff(*limits_ms)
        return FunctionBackoff(*limits_ms, function=self._retry_backoff, retries=self._config.retries)

    # -- requests and replies -----------------------------------------------------------------

    def deadline(self) -> Deadline:
        """Return the deadline of a request that blocks the producer's thread: `stop` ends the wait.

        Meanwhile no reply is handled, and no batch expires. So it may take until the first batch expires, or
        `request.timeout.ms` if that is longer.
        """
        config, now_s = self._client.config, self._client.clock.now_s()
        expires_s = min((producer.expires_at_s for producer in self.busy.values()), default=float("inf"))
        left_ms = max((expires_s - now_s) * 1000, config.request_timeout_ms)
        return Deadline.after_ms(min(config.default_api_timeout_ms, left_ms), self._clock)

    def _work(self) -> None:
        self._take_replies()
        while not self._clock.stopped and self._send_round():
            self._take_replies()
        for partition in self.busy.values():
            partition.expire(self._client.clock.now_s())
        self._complete_taken(self.busy.values())
        for key in [key for key, partition in self.busy.items() if partition.idle]:
            del self.busy[key]

    def _reset_sequences(self) -> None:
        resets = len(self._resets)  # those until now: batches put before a later one may not be taken in yet
        self._take_in()  # batches put just before the reset
        self._take_replies()
        if any(broker.in_flight for broker in self._brokers.values()):
            return
        for partition in self._partitions.values():
            partition.drop(UsageError("the transaction was aborted: this was not sent, or not acknowledged"))
            self._complete(partition.take_completed())
        self._partitions.clear()
        self.busy.clear()
        for _ in range(resets):
            self._resets.popleft().set()

    def _complete_taken(self, partitions: Iterable[PartitionProducer]) -> None:
        self._complete([batch for partition in partitions for batch in partition.take_completed()])

    def _send_round(self) -> bool:
        """Send at most one request to each broker; return True if any was sent."""
        sent = False
        now_s = self._client.clock.now_s()
        deadline = self.deadline()
        due = [partition for partition in self.busy.values() if partition.next_batch(now_s) is not None]
        topics = {partition.topic for partition in due}
        leaders = Leaders(self._client, topics, deadline.at_most_ms(self._client.config.request_timeout_ms))
        for broker, partitions in self._sendable(due, leaders, now_s, deadline).items():
            try:
                self._session.before_produce(
                    [(partition.topic, partition.partition) for partition in partitions], deadline
                )
                producer = self._broker(broker)  # again: newer metadata may have shown that it has left
            except KafkaError as error:
                self._postpone_or_abandon(partitions, error)
                continue
            # Longest wait first, so that every partition gets its turn.
            partitions.sort(key=lambda partition: partition.sent_at_s)
            sent |= producer.send(partitions, leaders.topic_ids)
        return sent

    def _sendable(
        self, due: Iterable[PartitionProducer], leaders: Leaders, now_s: float, deadline: Deadline
    ) -> dict[Broker, list[PartitionProducer]]:
        """Return partitions with a batch to send, by leader, for leaders that accept a request now."""
        by_broker: dict[Broker, list[PartitionProducer]] = {}
        for partition in due:
            try:
                broker = leaders.leader(partition)
                if not self._broker(broker).can_send(now_s):
                    continue
                if partition.in_flight and partition.leader_id != broker.node_id:
                    # Wait for the old leader's replies first, to keep the order at the new leader.
                    continue
                self._identify(partition, deadline)
            except KafkaError as error:
                self._postpone_or_abandon([partition], error)
                continue
            by_broker.setdefault(broker, []).append(partition)
        return by_broker

    def _postpone_or_abandon(self, partitions: Sequence[PartitionProducer], error: KafkaError) -> None:
        """Back off after a retriable error; fail the partitions after another one."""
        for partition in partitions:
            if is_retriable(error):
                self._stale(partition.topic)
                partition.postpone(error, self._client.clock.now_s())
            else:
                partition.abandon(error)

    def _identify(self, partition: PartitionProducer, deadline: Deadline) -> None:
        """Begin its sequence numbers, before its first batch and after each restart. May send a request."""
        if partition.sequences is not None:
            return
        if partition.broken_identity is None:
            partition.begin(self._session.identity(deadline))
        else:
            partition.begin(self._session.successor(partition.broken_identity, deadline))

    def _broker(self, broker: Broker) -> BrokerProducer:
        """Return the requests to a broker. Those of others may be forgotten: look each up again before its use."""
        producer = self._brokers.get(broker)
        if producer is None:
            self._forget_departed()
            producer = self._brokers[broker] = BrokerProducer(
                self._client, broker, self._config, self._session, self._clock, self.purpose, self._stale
            )
        return producer

    def _forget_departed(self) -> None:
        """Remove brokers that have left their address and have no unanswered request."""
        current = set(self._client.brokers(self.deadline()).values())
        for broker, producer in list(self._brokers.items()):
            if broker not in current and not producer.in_flight:
                self._requests_to_departed += producer.requests
                del self._brokers[broker]

    def _take_replies(self, wait_s: float = 0.0, self_pipe: SelfPipe | None = None) -> None:
        """Handle arrived replies, waiting at most `wait_s`. An overdue reply counts as arrived."""
        timeout_ms = self._client.config.default_api_timeout_ms
        deadline = Deadline.after_ms(timeout_ms, self._clock) if wait_s else None
        while not self._clock.stopped and (
            waiting := [broker for broker in self._brokers.values() if broker.in_flight]
        ):
            oldest = [reply for broker in waiting if (reply := broker.oldest_reply) is not None]
            ready_ids = {id(reply) for reply in ready(oldest, wait_s, deadline, self_pipe)}
            due = [broker for broker in waiting if id(broker.oldest_reply) in ready_ids or broker.overdue]
            if not due:
                return
            for broker in due:
                broker.receive_reply()
            wait_s, deadline, self_pipe = 0.0, None, None

    def wait(self, due_s: float | None, looked_at_s: float) -> None:
        """Wait for a reply, a wake-up, or the next due time after `looked_at_s`."""
        moments = [due_s, *(partition.due_s(looked_at_s) for partition in self.busy.values())]
        moments += [broker.due_s(looked_at_s) for broker in self._brokers.values()]
        next_s = min((at_s for at_s in moments if at_s is not None), default=float("inf"))
        wait_s = max(0.0, next_s - self._client.clock.now_s())
        if any(broker.in_flight for broker in self._brokers.values()):
            self._take_replies(min(wait_s, _MAX_WAIT_S), self._self_pipe)
        else:
            ready([], wait_s, self_pipe=self._self_pipe)

    def _stale(self, topic: str) -> None:
        """Expire a topic's metadata, once per back-off for all partitions that fail together."""
        now_s = self._client.clock.now_s()
        earliest_s = now_s - self._client.config.retry_backoff_ms / 1000
        while self._expired_at_s and next(iter(self._expired_at_s.values())) <= earliest_s:
            del self._expired_at_s[next(iter(self._expired_at_s))]
        if topic not in self._expired_at_s:
            self._expired_at_s[topic] = now_s
            self._client.expire_metadata([topic])
