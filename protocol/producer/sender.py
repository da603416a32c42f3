"""The thread of a producer: record batches to brokers, answers, retries and deadlines, while its callers are away.

Java's `Sender`, sarama's dispatcher. It alone touches the partitions' queues and the brokers' connections, so these
need no lock: callers put record batches into its inbox and wake it (`SelfPipe`). It waits for answers, for callers, and
for the next moment at which something is due, all in one poll.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from protocol.clock import Backoff, Deadline, StoppableClock
from protocol.cluster.client import PRODUCE, Client
from protocol.cluster.dispatch import is_retriable
from protocol.cluster.metadata import Broker
from protocol.condition import Event
from protocol.config import ProducerConfig
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.net.readiness import ready
from protocol.net.self_pipe import SelfPipe
from protocol.producer.broker_producer import BrokerProducer
from protocol.producer.delivery import Deliveries, Ended, Outcome
from protocol.producer.idempotence import ProducerSession
from protocol.producer.partition_producer import Encode, PartitionProducer, ProducerBatch
from protocol.producer.topics import Leaders

log = logging.getLogger(__name__)

# While answers are out: how often brokers that say nothing are looked after.
_LONGEST_WAIT_S = 1.0

_numbers = itertools.count()


class Sender:
    """Runs from `start` until `stop`, or until a fault of this client, which its callers are told of.

    `hand_over_due` lets rows go that have waited for long enough, and says when it is to be called again (None: when
    somebody wakes). `ended` is called at the end of the thread with the reason.
    """

    def __init__(
        self, client: Client, config: ProducerConfig, session: ProducerSession, deliveries: Deliveries, encode: Encode
    ) -> None:
        self.busy: dict[TopicPartition, PartitionProducer] = {}
        """The partitions that have something to send or under way. Others may look."""
        self._client = client
        self._config = config
        self._session = session
        self._deliveries = deliveries
        self._encode = encode
        self._clock = StoppableClock(client.clock)
        # Replies of one connection come in order: with connections of its own it waits for no other producer's.
        self._purpose = f"{PRODUCE}-{next(_numbers)}"
        self._partitions: dict[TopicPartition, PartitionProducer] = {}
        self._brokers: dict[Broker, BrokerProducer] = {}
        self._requests_to_departed = 0
        self._expired_at_s: dict[str, float] = {}  # of the last back-off, in order of time
        self._inbox: deque[ProducerBatch] = deque()
        self._inbox_lock = threading.Lock()
        self._end: KafkaError | None = None
        self._anew: Event | None = None
        self._self_pipe = SelfPipe()
        self._process_id = os.getpid()
        self._hand_over_due: Callable[[], float | None] = lambda: None
        self._on_end: Callable[[KafkaError], None] = lambda error: None
        self._thread = threading.Thread(target=self._run, name=self._purpose, daemon=True)

    # -- for callers --------------------------------------------------------------------------

    def start(self, hand_over_due: Callable[[], float | None], on_end: Callable[[KafkaError], None]) -> None:
        self._hand_over_due, self._on_end = hand_over_due, on_end
        self._thread.start()

    def put(self, batches: Sequence[ProducerBatch]) -> None:
        """Record batches, each partition's in its order."""
        with self._inbox_lock:
            if (end := self._end) is None:
                self._inbox.extend(batches)
        if end is None:
            self.wake()
        else:
            self._fail(batches, end)

    def wake(self) -> None:
        self._self_pipe.wake()

    def stop(self) -> None:
        """What is not acknowledged is given up. Waits for nothing."""
        if self.in_this_process:
            self._clock.stop()
            self._self_pipe.wake()

    def join(self, deadline: Deadline) -> None:
        """Until the thread has ended, or the deadline."""
        if self.in_this_process and not self.is_current_thread:
            self._thread.join(deadline.remaining_s())
            if self._thread.is_alive():
                log.warning("%s still waits for a broker; it ends when that answers or its time is over", self._purpose)

    def begin_anew(self, deadline: Deadline) -> None:
        """Gives up what is not sent, waits for answers to what is; afterwards every partition counts from 0.

        Raises `DeadlineExceeded`; then it is still going on.
        """
        with self._inbox_lock:
            done = self._anew = Event()
            if self._end is not None:
                raise self._end
        self.wake()
        if not done.wait(deadline.remaining_s()):
            raise DeadlineExceeded("what was under way before is not answered in time")

    @property
    def in_this_process(self) -> bool:
        """Not after a fork: threads do not come along."""
        return self._process_id == os.getpid()

    @property
    def is_current_thread(self) -> bool:
        """In a callback."""
        return threading.current_thread() is self._thread

    @property
    def requests(self) -> int:
        """How many Produce requests went out."""
        return self._requests_to_departed + sum(broker.requests for broker in list(self._brokers.values()))

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        end: KafkaError = UsageError("this producer is closed: what was not acknowledged then was given up")
        try:
            while not self._clock.stopped:
                looked_at_s = self._client.clock.now_s()
                due_s = self._hand_over_due()
                self._take_in()
                if self._anew is None:
                    self._work()
                else:
                    self._begin_anew(self._anew)
                self._wait(due_s, looked_at_s)
        except BaseException as error:
            log.exception("%s: sending has failed", self._purpose)
            end = UsageError(f"this producer cannot go on: its sender has failed: {error!r}")
        finally:
            self._finish(end)

    def _finish(self, end: KafkaError) -> None:
        """Nobody waits in vain: whatever is here gets the reason."""
        with self._inbox_lock:
            self._end = end
        self._fail(list(self._inbox), end)
        for partition in self._partitions.values():
            partition.drop(end)
        self._tell(self._partitions.values())
        if self._anew is not None:
            self._anew.set()
        self._on_end(end)
        self._client.hang_up(self._purpose)
        self._self_pipe.close()

    def _fail(self, batches: Sequence[ProducerBatch], error: KafkaError) -> None:
        for batch in batches:
            batch.outcome = Outcome(error=error)
        self._settle(batches)

    def _settle(self, ended: Sequence[ProducerBatch]) -> None:
        told = [
            Ended(batch.delivery, batch.first_row, batch.record_count, batch.outcome)
            for batch in ended
            if batch.delivery is not None and batch.outcome is not None
        ]
        if told:
            self._deliveries.end(told)

    def _take_in(self) -> None:
        with self._inbox_lock:
            batches = list(self._inbox)
            self._inbox.clear()
        for batch in batches:
            assert batch.delivery is not None
            key = (batch.delivery.topic, batch.delivery.partition)
            self._partition(key).append(batch)

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
        self.busy[key] = partition
        return partition

    # -- sending and answers ------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._client.config.default_api_timeout_ms, self._clock)

    def _work(self) -> None:
        """Takes the answers that are there, and sends until no broker takes more."""
        self._take_replies()
        while not self._clock.stopped and self._send_round():
            self._take_replies()
        for partition in self.busy.values():
            partition.expire(self._client.clock.now_s())
        self._tell(self.busy.values())
        for key in [key for key, partition in self.busy.items() if partition.idle]:
            del self.busy[key]

    def _begin_anew(self, done: Event) -> None:
        self._take_in()  # it may have been put just before this was asked for
        self._take_replies()
        if any(broker.in_flight for broker in self._brokers.values()):
            return
        for partition in self._partitions.values():
            partition.drop(UsageError("this was not sent: the transaction was given up"))
            self._settle(partition.take_ended())
        self._partitions.clear()
        self.busy.clear()
        self._anew = None
        done.set()

    def _tell(self, partitions: Iterable[PartitionProducer]) -> None:
        ended = [batch for partition in partitions for batch in partition.take_ended()]
        for error in dict.fromkeys(each.outcome.error for each in ended if each.outcome is not None):
            if error is not None:
                self._session.failed(error)
        self._settle(ended)

    def _send_round(self) -> bool:
        """One request to each broker that takes one; whether any went out."""
        sent = False
        now_s = self._client.clock.now_s()
        deadline = self._deadline()
        leaders = Leaders(self._client, deadline.at_most_ms(self._client.config.request_timeout_ms))
        for broker, partitions in self._sendable(leaders, now_s).items():
            try:
                self._session.before_produce([(each.topic, each.partition) for each in partitions], deadline)
            except KafkaError as error:
                self._put_off(partitions, error)
                continue
            # Whoever has waited longest comes first, so that each gets its turn.
            partitions.sort(key=lambda each: each.sent_at_s)
            sent |= self._brokers[broker].send(partitions, leaders.topic_ids)
        return sent

    def _sendable(self, leaders: Leaders, now_s: float) -> dict[Broker, list[PartitionProducer]]:
        """Partitions that have something to send, by leader, where the leader takes a request now."""
        by_broker: dict[Broker, list[PartitionProducer]] = {}
        for partition in self.busy.values():
            if partition.next_batch(now_s) is None:
                continue
            try:
                broker = leaders.of(partition)
                if not self._broker(broker).can_send(now_s):
                    continue
                if partition.in_flight and partition.leader_id != broker.node_id:
                    # The old leader's answers first: the new one must get everything in order.
                    continue
                self._identify(partition)
            except KafkaError as error:
                self._put_off([partition], error)
                continue
            by_broker.setdefault(broker, []).append(partition)
        return by_broker

    def _put_off(self, partitions: Sequence[PartitionProducer], error: KafkaError) -> None:
        """Until it may work again; for ever, if that is the kind of failure."""
        for partition in partitions:
            if is_retriable(error):
                self._stale(partition.topic)
                partition.postpone(error, self._client.clock.now_s())
            else:
                partition.abandon(error)

    def _identify(self, partition: PartitionProducer) -> None:
        if partition.sequences is not None:
            return
        if partition.broken_identity is None:
            partition.begin(self._session.identity(self._deadline()))
        else:
            partition.begin(self._session.successor(partition.broken_identity, self._deadline()))

    def _broker(self, broker: Broker) -> BrokerProducer:
        known = self._brokers.get(broker)
        if known is None:
            self._forget_departed()
            known = self._brokers[broker] = BrokerProducer(
                self._client, broker, self._config, self._session, self._clock, self._purpose, self._stale
            )
        return known

    def _forget_departed(self) -> None:
        """Drop brokers that have left their address and owe no answer."""
        current = set(self._client.brokers(self._deadline()).values())
        for broker, producer in list(self._brokers.items()):
            if broker not in current and not producer.in_flight:
                self._requests_to_departed += producer.requests
                del self._brokers[broker]

    def _take_replies(self, wait_s: float = 0.0, self_pipe: SelfPipe | None = None) -> None:
        """Takes what has come, after `wait_s` at most. A reply that is overdue counts as come."""
        deadline = self._deadline() if wait_s else None
        while not self._clock.stopped and (waiting := [each for each in self._brokers.values() if each.in_flight]):
            oldest = [reply for broker in waiting if (reply := broker.oldest) is not None]
            come = {id(reply) for reply in ready(oldest, wait_s, deadline, self_pipe)}
            due = [broker for broker in waiting if id(broker.oldest) in come or broker.overdue]
            if not due:
                return
            for broker in due:
                broker.take_reply()
            wait_s, deadline, self_pipe = 0.0, None, None

    def _wait(self, due_s: float | None, looked_at_s: float) -> None:
        """Until an answer comes, somebody wakes, or something is due that was not yet when everything was looked at."""
        moments = [due_s, *(partition.due_s(looked_at_s) for partition in self.busy.values())]
        moments += [broker.due_s(looked_at_s) for broker in self._brokers.values()]
        next_s = min((at_s for at_s in moments if at_s is not None), default=float("inf"))
        wait_s = max(0.0, next_s - self._client.clock.now_s())
        if any(broker.in_flight for broker in self._brokers.values()):
            self._take_replies(min(wait_s, _LONGEST_WAIT_S), self._self_pipe)
        else:
            ready([], wait_s, self_pipe=self._self_pipe)

    def _stale(self, topic: str) -> None:
        """The next look at this topic asks the brokers, though not for every partition that fails at the same time."""
        now_s = self._client.clock.now_s()
        earliest_s = now_s - self._client.config.retry_backoff_ms / 1000
        while self._expired_at_s and next(iter(self._expired_at_s.values())) <= earliest_s:
            del self._expired_at_s[next(iter(self._expired_at_s))]
        if topic not in self._expired_at_s:
            self._expired_at_s[topic] = now_s
            self._client.expire_metadata([topic])
