"""`Processor`: the records of a group's topics, handled by a thread pool beside the polling thread.

`consumer_loop` polls, pauses and commits; `worker_pool` calls the handler; `lanes` and `offset_tracker` decide the
order and the offsets to commit.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal, get_args

from protocol.base.clock import Deadline
from protocol.base.condition import Event, Lock
from protocol.base.interrupts import BackgroundCall, Deferred, join
from protocol.cluster.client import Client, open_client
from protocol.consumer.group_consumer_config import GroupConsumerConfig, parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import UsageError
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.processing.consumer_loop import ConsumerLoop, LoopConfig, Order
from protocol.processing.failures import RetryPolicy, dead_letter_headers
from protocol.processing.worker_pool import ProcessorMetrics, WorkerPool
from protocol.producer.producer import Producer
from protocol.settings.secret import hide_variables

log = logging.getLogger(__name__)

# Per partition, for single records: a key whose record waits for its retry delays 1/1024 of the others.
_LANES = 1024
_LANES_PER_THREAD = 4
_AUTO_COMMIT = "enable.auto.commit"
# Limit of the wait for threads whose handlers were waited for before.
_STOP_MS = 1_000

OnFailure = Literal["stop", "skip"]

Topics = Collection[str] | re.Pattern[str]


class Processor:
    """Calls a handler for the records of topics, in a thread pool, and commits the offsets of handled records.

    Each consumer is a member of the group and is polled by a separate thread. Records are handled in the pool, in
    the requested order. The committed offset of a partition is that of the lowest record that is not finished, so a
    record is handled at least once. A partition with too many such records is paused; the consumer polls on, so a slow
    handler does not cost the membership.

    Also a context manager that calls `close`. Thread-safe; `close` may be called in a signal handler and in the
    handler itself.

    Parameters
    ----------
    consumer : KafkaConsumer, Client or mapping, optional
        A consumer with `enable.auto.commit=false`, which stays open after the end; a `Client`, which stays open; or
        properties in Kafka's names, such as `bootstrap.servers` and `group.id`.
    handler : callable
        `handler(message)` is called with each `ConsumerMessage`; with `batch_size` with a `ConsumerBatch`, whose
        `columns` is a `pyarrow.RecordBatch`. The record is finished when it returns.
    topics : collection of str or re.Pattern, optional
        Topics to subscribe to; a pattern matches whole names. None: those of the given consumer.
    config : GroupConsumerConfig or mapping, optional
        Consumer properties, if a `Client` is given.
    threads : int
        Number of threads that call the handler, for all consumers together.
    consumers : int
        Number of consumers, each a member of the group. With `group.instance.id` each appends `-1`, `-2`, ...
    order : {"key", "partition", "none"}
        Records with the same key in a partition, or all records of a partition, are handled one after another. By key,
        records without a key have no order.
    batch_size : int, optional
        The most records of one call of the handler. By default single records.
    max_in_flight : int
        The most records of a consumer that are read and not committable, divided by its partitions. A partition may
        exceed its part by the record batch that fills it.
    max_in_flight_bytes : int
        The same in bytes.
    retry : RetryPolicy, optional
        Retries of a failing handler; by default three.
    on_failure : {"stop", "skip"}
        After the last attempt: `run` raises the handler's exception, or the record is logged and counted. With
        `batch_size` and "skip" or a dead letter topic, a failing batch is bisected down to the failing records.
    dead_letter_topic : str, optional
        Topic for records whose last attempt has failed, instead of `on_failure`.
    producer : Producer, optional
        Producer for the dead letters, which stays open. By default one with Kafka's default properties.
    drain_timeout_ms : float
        The longest wait for handlers when partitions are revoked, for the running ones and those of unfinished records
        before finished ones, and for running ones at the end; at most half of `max.poll.interval.ms`. Afterwards their
        results are dropped.
    listener : ConsumerRebalanceListener, optional
        Called after the handlers of revoked partitions have returned and their offsets are committed.
    **properties
        More properties, with `_` for `.`; see `open_client`.

    Raises
    ------
    UsageError
        `group.id` is not set, `enable.auto.commit` is true, or a parameter has a wrong value.
    ConfigurationError
        A property is unknown or invalid.

    Notes
    -----
    Offsets are committed every `auto.commit.interval.ms`, before partitions are revoked and at the end.
    """

    @hide_variables
    def __init__(
        self,
        consumer: KafkaConsumer | Client | Mapping[str, object] | None = None,
        handler: Callable[[Any], object] | None = None,
        topics: Topics | None = None,
        *,
        config: GroupConsumerConfig | Mapping[str, object] | None = None,
        threads: int = 4,
        consumers: int = 1,
        order: Order = "key",
        batch_size: int | None = None,
        max_in_flight: int = 10_000,
        max_in_flight_bytes: int = 64 << 20,
        retry: RetryPolicy | None = None,
        on_failure: OnFailure = "stop",
        dead_letter_topic: str | None = None,
        producer: Producer | None = None,
        drain_timeout_ms: float = 30_000,
        listener: ConsumerRebalanceListener | None = None,
        **properties: object,
    ) -> None:
        if handler is None:
            raise UsageError("a Processor needs a handler")
        _check_words(order, on_failure)
        _check_positive(
            threads=threads,
            consumers=consumers,
            batch_size=1 if batch_size is None else batch_size,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
        )
        if producer is not None and dead_letter_topic is None:
            raise UsageError("a producer is given, but no dead_letter_topic")
        self._topics = topics
        self._dead_letter_topic = dead_letter_topic
        self._producer = producer
        self._owns_consumers = not isinstance(consumer, KafkaConsumer)
        self._closing, self._ended = Event(), Event()
        self._lock = Lock()
        # The threads of `run`, of the further consumers and of the end; None before `run` or `close`.
        self._running_in: set[int] | None = None
        self._threads: list[threading.Thread] = []
        self._process_id: int | None = None
        self._failure: BaseException | None = None
        self._listener = listener
        self._given_listener: ConsumerRebalanceListener | None = None
        with ExitStack() as resources:
            with Deferred():  # else a consumer may be left open
                made, settings = self._open(resources, consumer, config, properties, topics, consumers)
                self._pool = WorkerPool(
                    handler,
                    threads,
                    whole_runs=batch_size is not None,
                    retry=retry or RetryPolicy(),
                    recover=self._recover if on_failure == "skip" or dead_letter_topic is not None else None,
                    on_failure=self._fail,
                    clock=self._client.clock,
                )
                loop_config = LoopConfig(
                    order=order,
                    lanes=_LANES if batch_size is None else _LANES_PER_THREAD * threads,
                    batch_size=batch_size,
                    max_in_flight=max_in_flight,
                    max_in_flight_bytes=max_in_flight_bytes,
                    drain_timeout_ms=min(drain_timeout_ms, settings.consumer.max_poll_interval_ms / 2),
                    commit_interval_ms=settings.auto_commit_interval_ms,
                )
                self._loops = [
                    ConsumerLoop(consumer, self._pool, loop_config, self._closing, listener) for consumer in made
                ]
            self._resources = resources.pop_all()

    def _open(
        self,
        resources: ExitStack,
        consumer: KafkaConsumer | Client | Mapping[str, object] | None,
        config: GroupConsumerConfig | Mapping[str, object] | None,
        properties: Mapping[str, object],
        topics: Topics | None,
        consumers: int,
    ) -> tuple[list[KafkaConsumer], GroupConsumerConfig]:
        """Set the client, and return the consumers; `resources` closes the consumers created here."""
        if isinstance(consumer, KafkaConsumer):
            if config is not None or properties or consumers != 1:
                raise UsageError("a KafkaConsumer is given: it has its own properties, and consumers must be 1")
            _check_settings(consumer.config)
            _check_topics(consumer, topics)
            self._client = consumer.client
            return [consumer], consumer.config
        if topics is None:
            raise UsageError("a Processor needs topics")
        self._client, owned, settings = open_client(consumer, config, properties, _parse)
        if owned:
            resources.callback(self._client.close)
        _check_settings(settings)
        made = [KafkaConsumer(self._client, setting) for setting in _settings_of_members(settings, consumers)]
        for opened in made:
            resources.callback(opened.close)
        return made, settings

    def __enter__(self) -> Processor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def metrics(self) -> ProcessorMetrics:
        """A copy of the counters."""
        return self._pool.metrics

    # -- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Handle records until `close` is called or a failure stops the processing. Call it once.

        The first consumer is polled in this thread. On return all running handlers have ended or `drain_timeout_ms` is
        over, the offsets of finished records are committed, and the members have left the group. After Ctrl-C, which
        ends this call within 100 ms, a background thread does so; `close` waits for it.

        Raises
        ------
        Exception
            The exception of the handler that has stopped the processing.
        KafkaError
            A consumer cannot be a member of the group or read a partition, or a dead letter could not be written.
        UsageError
            `run` or `close` was called before.
        """
        with Deferred():
            with self._lock:
                if self._running_in is not None:
                    raise UsageError("this Processor was run or closed before; make a new one")
                self._running_in = {threading.get_ident()}
                self._process_id = os.getpid()
            try:
                self._run()
            finally:
                self._running_in.discard(threading.get_ident())
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        first, *further = self._loops
        self._threads = [
            threading.Thread(target=self._run_further, args=(loop,), name=f"processor-consumer-{number}", daemon=True)
            for number, loop in enumerate(further, 2)
        ]
        try:
            if self._dead_letter_topic is not None and self._producer is None:
                self._producer = Producer(self._client, {})
                self._resources.callback(self._producer.abort)  # handlers have waited for all that counts
            self._subscribe()
            self._pool.start()
            for thread in self._threads:
                thread.start()
            self._run_loop(first)
        except Exception as error:
            self._fail(error)
        finally:
            self._halt()
            ending = BackgroundCall(self._release, "end of a processor")
        ending.wait()

    def _release(self) -> None:
        """End all threads, and leave the group also after Ctrl-C."""
        assert self._running_in is not None
        self._running_in.add(threading.get_ident())
        try:
            for thread in self._threads:
                if thread.ident is not None:
                    join(thread)
            if self._owns_consumers:
                for loop in self._loops:
                    try:
                        loop.shut_down()
                    except Exception as error:
                        self._fail(error)
            self._pool.stop(Deadline.after_ms(_STOP_MS))
        finally:
            try:
                self._resources.close()
            finally:
                self._ended.set()

    def _subscribe(self) -> None:
        for loop in self._loops:
            if self._topics is not None:
                loop.consumer.subscribe(self._topics, loop.listener)
            else:
                self._given_listener = loop.consumer.replace_listener(loop.listener)
                if self._listener is None:
                    loop.listener.user = self._given_listener

    def _run_further(self, loop: ConsumerLoop) -> None:
        """Run a loop in its own thread; `run` raises the exception."""
        assert self._running_in is not None
        self._running_in.add(threading.get_ident())
        try:
            self._run_loop(loop)
        except BaseException as error:  # such as SystemExit of the user's listener
            self._fail(error)
        finally:
            self._running_in.discard(threading.get_ident())

    def _run_loop(self, loop: ConsumerLoop) -> None:
        """Run a loop, and end its consumer in the same thread. After Ctrl-C, `_release` does so."""
        try:
            loop.run()
        except Exception as error:
            self._fail(error)
        except BaseException:
            self._halt()
            if not self._owns_consumers:
                loop.hand_back(self._given_listener, at_once=True)
            raise
        self._halt()
        if self._owns_consumers:
            loop.shut_down()
            loop.consumer.close()
        else:
            loop.hand_back(self._given_listener)

    def close(self) -> None:
        """End `run`, and wait for its end. Further calls have no effect.

        Records that no handler has begun are not handled. In a handler, and in a signal handler that interrupts `run`,
        this call does not wait. Ctrl-C ends the wait, and that for handlers: their results are dropped.

        Raises
        ------
        UsageError
            `run` was called before a fork of this process.
        """
        if self._process_id not in (None, os.getpid()):  # its threads do not exist here, and one may hold a lock
            raise UsageError("this Processor was used before a fork: make one in this process")
        self._halt()
        with Deferred():
            with self._lock:
                unused = self._running_in is None
                if self._running_in is None:
                    self._running_in = set()
            if unused:
                BackgroundCall(self._release, "end of a processor").wait()
            elif threading.get_ident() not in self._running_in and not self._pool.in_worker:
                try:
                    self._ended.wait()
                except BaseException:  # Ctrl-C
                    self._pool.end_waits()
                    raise

    # -- failures -----------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error
            elif self._failure is not error:
                log.error("another failure while the processing stops: %r", error, exc_info=error)
        self._halt()

    def _halt(self) -> None:
        self._closing.set()
        self._pool.halt()

    def _recover(self, message: ConsumerMessage, error: BaseException) -> None:
        """Skip a record, or write it to the dead letter topic and wait for the acknowledgement."""
        place = f"{message.topic}-{message.partition}, offset {message.offset}"
        if self._dead_letter_topic is None:
            log.error("%s: the handler has failed; the record is skipped", place, exc_info=error)
            self._pool.count(skipped=1)
            return
        assert self._producer is not None
        time_ms = message.timestamp_ms
        self._producer.send_and_wait(
            self._dead_letter_topic,
            message.value,
            key=message.key,
            headers=dead_letter_headers(message, error),
            timestamp_ms=None if time_ms is None or time_ms < 0 else time_ms,
        )
        log.warning("%s: the handler has failed: %r; written to %s", place, error, self._dead_letter_topic)
        self._pool.count(dead_letters=1)


def _parse(properties: Mapping[str, object]) -> GroupConsumerConfig:
    return parse_group_consumer({_AUTO_COMMIT: False, **properties})


def _check_settings(settings: GroupConsumerConfig) -> None:
    if settings.consumer.group_id is None:
        raise UsageError("a Processor needs group.id", settings=("group.id",))
    if settings.enable_auto_commit:
        raise UsageError(
            f"{_AUTO_COMMIT} is true: it would commit records that are not handled; set it to false",
            settings=(_AUTO_COMMIT,),
        )


def _check_topics(consumer: KafkaConsumer, topics: Topics | None) -> None:
    subscribed = bool(consumer.subscription.names or consumer.subscription.pattern)
    if subscribed and topics is not None:
        raise UsageError("the given consumer is subscribed to topics; leave out topics")
    if topics is None and not (subscribed or consumer.assignment):
        raise UsageError("the given consumer is not subscribed to topics; give topics")


def _check_words(order: str, on_failure: str) -> None:
    for name, word, allowed in (
        ("order", order, get_args(Order)),
        ("on_failure", on_failure, get_args(OnFailure)),
    ):
        if word not in allowed:
            raise UsageError(f"{name} is {word!r}; allowed: {', '.join(allowed)}")


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise UsageError(f"{name} is {number}; it must be at least 1")


def _settings_of_members(settings: GroupConsumerConfig, consumers: int) -> list[GroupConsumerConfig]:
    """Return the configuration of each consumer: static members need different ids."""
    instance_id = settings.consumer.group_instance_id
    if instance_id is None or consumers == 1:
        return [settings] * consumers
    return [
        replace(settings, consumer=replace(settings.consumer, group_instance_id=f"{instance_id}-{number}"))
        for number in range(1, consumers + 1)
    ]
