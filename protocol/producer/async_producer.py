"""Columns in, acknowledged record batches out: sarama's `AsyncProducer`, for Arrow columns.

Rows are partitioned, gathered until a record batch is full, encoded, and sent to the partitions' leaders, several
requests under way per broker. Used by Spark's sink (one producer per task) and by any program. It has no thread:
`send_columns` sends and takes answers as it goes, `flush` waits for the rest. Not safe for several threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

import pyarrow as pa

from protocol.clock import Backoff, Deadline, PausableClock
from protocol.cluster.client import Client
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import Broker
from protocol.config import ProducerConfig
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.net.readiness import ready
from protocol.producer.accumulator import Accumulator, Gathered, check_sizes
from protocol.producer.broker_producer import BrokerProducer
from protocol.producer.idempotence import AnonymousSession, IdempotentSession, ProducerSession
from protocol.producer.partition_choice import GivenPartitions, PartitionChoice
from protocol.producer.partition_producer import PartitionProducer, ProducedRange, ProducerBatch
from protocol.producer.partitioner import PartitionFunction
from protocol.producer.topics import Leaders
from protocol.records.encode import encode_batches, record_sizes
from protocol.records.record_columns import record_columns

log = logging.getLogger(__name__)

# Another producer on the same connection may have read our answer: look again, whatever the socket says.
_LONGEST_WAIT_S = 0.1
# Of the time that a caller takes between two calls, so much counts as waiting for brokers.
_LONGEST_PAUSE_S = 1.0


class AsyncProducer:
    """Writes columns to topics.

    With idempotence (the default) every row is written once, and in order within its partition, whatever breaks on
    the way, or `flush` raises. Rows wait until their partition has `batch.size` bytes of them, or `flush`; with
    `linger.ms` above 0 also no longer than that, as seen by the next call of `send_columns` or `poll`.

    `buffer.memory` bounds what is not acknowledged yet: `send_columns` waits when there is more.
    Of the time between two calls only a second counts towards `delivery.timeout.ms`: what fails while the caller is
    away has its next try when it comes back.
    `partitioner` chooses partitions in place of what `config` says; see `PartitionFunction`.
    `session` is for transactions (`TransactionalProducer`); None is an idempotent or anonymous one, as `config` says.
    """

    def __init__(
        self,
        client: Client,
        config: ProducerConfig,
        *,
        partitioner: PartitionFunction | None = None,
        session: ProducerSession | None = None,
    ) -> None:
        if config.transactional_id is not None and session is None:
            raise UsageError("transactional.id is for a TransactionalProducer", settings=("transactional.id",))
        self._client = client
        self._config = config
        self._session = session or (IdempotentSession(client) if config.enable_idempotence else AnonymousSession())
        self._accumulator = Accumulator(config.batch_size_bytes)
        self._encode = partial(encode_batches, compression=config.compression_type, level=config.compression_level)
        self._partitions: dict[TopicPartition, PartitionProducer] = {}
        self._busy: dict[TopicPartition, PartitionProducer] = {}
        self._choice = PartitionChoice(client, config, self._busy, partitioner)
        self._brokers: dict[Broker, BrokerProducer] = {}
        self._expired_at_s: dict[str, float] = {}
        # Of the time in which record batches are to be delivered.
        self._clock = PausableClock(client.clock)
        self._failures: list[KafkaError] = []
        self._flushed = False
        self._closed = False

    def __enter__(self) -> AsyncProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # -- in -----------------------------------------------------------------------------------

    def send_columns(self, topic: str, columns: pa.RecordBatch, partitions: GivenPartitions | None = None) -> None:
        """Takes rows in; waits while too much is unacknowledged.

        Parameters
        ----------
        columns : `value: binary` (null: a tombstone), and if wanted `key: binary`, `timestamp_ms: int64` (null: now)
            and `headers: list<struct<key: string, value: binary>>`.
        partitions : the partition of each row; where it is null, and without it, the partitioner chooses.

        Raises
        ------
        UsageError : wrong columns, a partition the topic does not have, a record above `max.request.size`; nothing of
            these columns was sent then.
        KafkaError : an earlier row could not be written (as `flush` would say), or the topic is not there.
        """
        self._raise_if_unusable()
        rows = record_columns(columns, self._client.clock.wall_ms())
        if not rows.num_rows:
            return
        sizes = record_sizes(rows)
        check_sizes(topic, sizes, self._config.max_request_size_bytes)
        with self._clock.running(_LONGEST_PAUSE_S):
            known, named = self._choice.look_up(topic, rows.num_rows, partitions)
            chosen = self._choice.choose(known, rows, sizes, named)
            self._begin_account()
            self._enqueue(self._accumulator.append(topic, rows, chosen, sizes, self._client.clock.now_s()))
            self._go_on()
            self._wait_for_memory()
        self._raise_if_unusable()

    def poll(self) -> None:
        """Sends what is due and takes the answers that have come; waits for nothing."""
        with self._clock.running(_LONGEST_PAUSE_S):
            self._go_on()

    def _go_on(self) -> None:
        if self._config.linger_ms:
            before_s = self._client.clock.now_s() - self._config.linger_ms / 1000
            self._enqueue(self._accumulator.waited_since(before_s))
        self._work(self._client.deadline())

    # -- out ----------------------------------------------------------------------------------

    def take_answers(self) -> None:
        """Takes the answers that have come into `acknowledged`; sends nothing and waits for nothing."""
        self._take_replies()

    @property
    def acknowledged(self) -> dict[TopicPartition, ProducedRange]:
        """What brokers have confirmed, by (topic, partition): after a flush, what that flush brought.

        The account begins anew with what follows a flush.
        """
        return {key: each.acknowledged for key, each in self._partitions.items() if each.acknowledged.count}

    @property
    def requests(self) -> int:
        """How many Produce requests went out."""
        return sum(broker.requests for broker in self._brokers.values())

    def flush(self, deadline: Deadline | None = None) -> None:
        """Sends everything and waits until it is acknowledged; by default as long as `delivery.timeout.ms` allows.

        Raises the first failure since the last one raised. It names topic, partition, broker, the last cause, and how
        many records have an unknown outcome. `DeadlineExceeded`: the deadline came first; what is unacknowledged is
        still being written, and `flush` may be called again.
        """
        self._raise_if_unusable()
        with self._clock.running(_LONGEST_PAUSE_S):
            self._begin_account()
            # A batch may outlast delivery.timeout.ms by the request that it is in.
            patience_ms = self._config.delivery_timeout_ms + self._client.config.request_timeout_ms
            deadline = deadline or self._client.deadline(patience_ms)
            self._enqueue(self._accumulator.drain())
            self._work(deadline)
            while self._busy and not self._failures:
                if deadline.passed:
                    waiting = next(iter(self._busy.values()))
                    raise DeadlineExceeded(
                        f"flush: {len(self._busy)} partitions are not acknowledged in time, {waiting.name} among them"
                        f"{waiting.trouble}",
                        topic=waiting.topic,
                        partition=waiting.partition,
                    ) from waiting.failure
                self._wait(deadline)
                self._work(deadline)
        self._raise_if_unusable()
        self._flushed = True

    def close(self, deadline: Deadline | None = None) -> None:
        """Flushes, then takes nothing more. The client stays open: it belongs to the caller."""
        if not self._closed:
            try:
                self.flush(deadline)
            finally:
                self.abort()

    def abort(self) -> None:
        """Drops what is not sent yet; what is under way may still be written. Takes nothing more."""
        self._closed = True
        self._accumulator.clear()
        self._busy.clear()
        for broker in self._brokers.values():
            broker.forget()

    def begin_anew(self) -> None:
        """Drops what is not sent yet, and waits for the answers to what is; then every partition counts from 0 again.

        For a new epoch of the session's identity: nothing of the one before is under way any more.
        """
        self._accumulator.clear()
        while any(broker.in_flight for broker in self._brokers.values()):
            self._take_replies(_LONGEST_WAIT_S, self._client.deadline())
        self._partitions.clear()
        self._busy.clear()
        self._failures = []

    def _begin_account(self) -> None:
        if self._flushed:
            self._flushed = False
            for partition in self._partitions.values():
                partition.acknowledged = ProducedRange()

    def _raise_if_unusable(self) -> None:
        if self._failures:
            first, *others = self._failures
            self._failures = []
            for other in others:
                log.warning("another write failed: %s", self._client.words(other))
            raise first
        if self._closed:
            raise UsageError("this producer is closed")

    # -- rows to record batches ---------------------------------------------------------------

    def _enqueue(self, gathered: Iterable[Gathered]) -> None:
        now_s = self._clock.now_s()
        for together in gathered:
            records = self._encode(together.rows, [cut.count for cut in together.cuts])
            for cut, batch in zip(together.cuts, records, strict=True):
                partition = self._partition((cut.topic, cut.partition))
                partition.append(ProducerBatch(batch, cut.count, now_s))

    def _partition(self, key: TopicPartition) -> PartitionProducer:
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = PartitionProducer(
                *key,
                max_in_flight=self._config.max_in_flight_requests_per_connection,
                retries=self._config.retries,
                delivery_timeout_s=self._config.delivery_timeout_ms / 1000,
                backoff=Backoff(self._client.config.retry_backoff_ms, self._client.config.retry_backoff_max_ms),
                encode=self._encode,
            )
        self._busy[key] = partition
        return partition

    def _wait_for_memory(self) -> None:
        while self._held_bytes() > self._config.buffer_memory_bytes and not self._failures:
            if self._accumulator.held_bytes > self._config.buffer_memory_bytes // 2:
                self._enqueue(self._accumulator.drain())
            else:
                self._wait(self._client.deadline())
            self._work(self._client.deadline())

    def _held_bytes(self) -> int:
        return self._accumulator.held_bytes + sum(partition.held_bytes for partition in self._busy.values())

    # -- sending and answers ------------------------------------------------------------------

    def _work(self, deadline: Deadline) -> None:
        """Takes the answers that are there, and sends until no broker takes more."""
        self._take_replies(deadline=deadline)
        while self._send_round(deadline):
            self._take_replies(deadline=deadline)
        for key, partition in list(self._busy.items()):
            partition.expire(self._clock.now_s())
            if partition.failures:
                for error in partition.failures:
                    self._session.failed(error)
                self._failures += partition.failures
                partition.failures = []
            if partition.idle:
                del self._busy[key]

    def _send_round(self, deadline: Deadline) -> bool:
        """One request to each broker that takes one; whether any went out."""
        sent = False
        now_s = self._client.clock.now_s()
        leaders = Leaders(self._client, deadline.at_most_ms(self._client.config.request_timeout_ms))
        for broker, partitions in self._sendable(leaders, now_s).items():
            producer = self._brokers[broker]
            try:
                self._session.before_produce([(each.topic, each.partition) for each in partitions], deadline)
            except KafkaError as error:
                for partition in partitions:
                    partition.abandon(error)
                continue
            # Whoever has waited longest comes first, so that each gets its turn.
            partitions.sort(key=lambda each: each.sent_at_s)
            sent |= producer.send(partitions, leaders.topic_ids)
        return sent

    def _sendable(self, leaders: Leaders, now_s: float) -> dict[Broker, list[PartitionProducer]]:
        """Partitions that have something to send, by leader, where the leader takes a request now."""
        by_broker: dict[Broker, list[PartitionProducer]] = {}
        for partition in self._busy.values():
            if partition.next_batch(now_s) is None:
                continue
            try:
                broker = leaders.of(partition)
                if broker is None or not self._broker(broker).can_send(now_s):
                    continue
                if partition.in_flight and partition.leader_id != broker.node_id:
                    # The old leader's answers first: the new one must get everything in order.
                    continue
                self._identify(partition)
            except KafkaError as error:
                if not is_retriable(error):
                    partition.abandon(error)
                    continue
                self._stale(partition.topic)
                partition.postpone(error, now_s)
                continue
            by_broker.setdefault(broker, []).append(partition)
        return by_broker

    def _identify(self, partition: PartitionProducer) -> None:
        if partition.sequences is not None:
            return
        deadline = self._client.deadline()
        if partition.broken_identity is None:
            partition.begin(self._session.identity(deadline))
        else:
            partition.begin(self._session.successor(partition.broken_identity, deadline))

    def _broker(self, broker: Broker) -> BrokerProducer:
        known = self._brokers.get(broker)
        if known is None:
            known = self._brokers[broker] = BrokerProducer(
                self._client, broker, self._config, self._session, self._clock, self._stale
            )
        return known

    def _take_replies(self, wait_s: float = 0.0, deadline: Deadline | None = None) -> None:
        """Takes what has come; `wait_s` and `deadline` as for `ready`. A reply that is overdue counts as come."""
        while waiting := [broker for broker in self._brokers.values() if broker.in_flight]:
            oldest = [reply for broker in waiting if (reply := broker.oldest) is not None]
            come = {id(reply) for reply in ready(oldest, wait_s, deadline)}
            due = [broker for broker in waiting if id(broker.oldest) in come or broker.overdue]
            if not due:
                return
            for broker in due:
                broker.take_reply()
            wait_s = 0.0

    def _wait(self, deadline: Deadline) -> None:
        """Until an answer comes, or time lets something be sent again, or the deadline."""
        now_s = self._client.clock.now_s()
        moments = [now_s + deadline.remaining_s(), now_s + _LONGEST_WAIT_S]
        moments += [at_s for each in self._busy.values() if (at_s := each.wakes_at_s) is not None and at_s > now_s]
        moments += [each.muted_until_s for each in self._brokers.values() if each.muted_until_s > now_s]
        wait_s = max(0.0, min(moments) - now_s)
        if any(broker.in_flight for broker in self._brokers.values()):
            self._take_replies(wait_s, deadline)
        else:
            self._client.clock.sleep_s(wait_s)

    def _stale(self, topic: str) -> None:
        """The next look at this topic asks the brokers, though not for every partition that fails at the same time."""
        now_s = self._client.clock.now_s()
        if now_s - self._expired_at_s.get(topic, float("-inf")) >= self._client.config.retry_backoff_ms / 1000:
            self._expired_at_s[topic] = now_s
            self._client.expire_metadata([topic])
