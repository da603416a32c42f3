"""The partitions that one consumer reads, and their start offsets.

Start offsets are the group's offsets, else those of `auto.offset.reset`, which also applies to positions that the log
has lost. A partition without a leader starts later and does not delay others. Partitions are added, started and dropped
in one thread; each partition is read by one thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from types import MappingProxyType

import pyarrow as pa

from protocol.clock import Backoff, Deadline
from protocol.cluster.client import Client
from protocol.consumer.consumer import Consumer
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.log_offsets import LeaderEpochs, ListedOffset
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.consumer_group.group_consumer_config import GroupConsumerConfig
from protocol.errors import DataLoss, DeadlineExceeded, KafkaError, LogTruncated, NoOffset, TopicRecreated, UsageError
from protocol.group.committed_offsets import CommittedOffset, fetch_offsets_and_ids
from protocol.interrupts import DeferredInterrupts
from protocol.kafka_terms import EARLIEST, LATEST, NO_LEADER_EPOCH, TopicPartition

log = logging.getLogger(__name__)

_FIRST_TRY_MS = 1_000.0


class AssignedPartitions:
    """The partitions that one consumer reads; not thread-safe.

    Parameters
    ----------
    client : Client
        The client of the cluster.
    config : GroupConsumerConfig
        The configuration of the consumer.
    columns : collection of str
        Names of columns to decode, see `KafkaConsumer`.
    """

    def __init__(self, client: Client, config: GroupConsumerConfig, columns: Collection[str]) -> None:
        self._client = client
        self._config = config
        self.reader = Consumer(client, config.consumer, columns=columns)
        client.sensors.add_gauge("assigned-partitions", self, lambda this: [((), len(this))])
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        # Partitions that have not started, with the position set by `seek`.
        self._not_started: dict[TopicPartition, CommittedOffset | None] = {}
        # Of these, the partitions without a committed offset, and the paused ones.
        self._without_commit: set[TopicPartition] = set()
        self._paused_not_started: set[TopicPartition] = set()
        # Partitions whose committed offsets were in an open transaction when they were last fetched.
        self._pending: set[TopicPartition] = set()
        # Partitions whose position is not in the log, until the offset reset is known.
        self._lost: dict[TopicPartition, DataLoss] = {}
        settings = client.config
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._retry_at_s = 0.0
        self._failing_since_s = 0.0
        # Committed offsets: fetched at the start, or committed by this consumer since.
        self._committed: dict[TopicPartition, int] = {}
        # How often reading has moved from a deleted topic to a new one of its name.
        self._recreations: dict[TopicPartition, int] = {}

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Return all added partitions."""
        return frozenset(self._consumers.keys() | self._not_started.keys())

    def __len__(self) -> int:
        return len(self._consumers) + len(self._not_started)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions; the next `start_added` starts them."""
        self._not_started.update(dict.fromkeys(partitions))
        self._retry_at_s = 0.0

    def start_added(self, deadline: Deadline) -> None:
        """Start to read the added partitions that have a leader; a later call retries the others, after a back-off.

        Parameters
        ----------
        deadline : Deadline
            Time limit of all requests.

        Raises
        ------
        NoOffset, BrokerError
            A partition cannot start; the others have started.
        DeadlineExceeded
            The coordinator does not respond by `deadline`, or the start offset of a partition is unknown for
            `default.api.timeout.ms`; raised again after each such period.
        """
        if not (self._not_started or self._lost) or self._client.clock.now_s() < self._retry_at_s:
            return
        committed, topic_ids = self._fetch_committed(deadline)
        missing = [key for key, sought in self._not_started.items() if sought is None and key in self._without_commit]
        sought = {key: each for key, each in self._not_started.items() if each is not None}
        symbolic = {key: each.offset for key, each in sought.items() if each.offset < 0}
        starts = committed | {key: each for key, each in sought.items() if each.offset >= 0}
        offsets = {key: each.offset for key, each in starts.items()}
        epochs = {key: each.leader_epoch for key, each in starts.items()}
        self._start_consumers(offsets, deadline, epochs, topic_ids)
        listed, failure = try_list_offsets(self._client, self._config, symbolic, deadline, max_attempts=1)
        self._start_consumers(listed, deadline)
        without = [*missing, *self._lost]
        reset, failure_of_reset = list_reset_offsets(self._client, self._config, without, deadline, max_attempts=1)
        for key in reset.keys() & self._lost.keys():
            self._resume_at(self._lost.pop(key), reset.pop(key))
        self._start_consumers(reset, deadline)
        unknown = self._not_started.keys() - self._without_commit - sought.keys()
        if unknown:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(unknown)[:5])
            what = f"the offset of {names} is in an open transaction"
            if not unknown <= self._pending:
                what = f"the coordinator does not know the topic of {names}"
            failure = failure or DeadlineExceeded(what)
        failures = [each for each in (failure, failure_of_reset) if each is not None]
        failures.sort(key=lambda each: isinstance(each, DeadlineExceeded))  # others are raised
        self._retry_later(failures[0] if failures else None)

    def await_position(self, key: TopicPartition, deadline: Deadline) -> None:
        """Call `start_added` until this partition has started; raise its errors, and `DeadlineExceeded`."""
        while key in self._not_started:
            try:
                self.start_added(deadline)
            except KafkaError:
                if key in self._not_started:
                    raise
            else:
                self._wait_to_retry(key, deadline)

    def _wait_to_retry(self, key: TopicPartition, deadline: Deadline) -> None:
        if key in self._not_started:
            if deadline.passed:
                raise DeadlineExceeded(f"{key[0]}-{key[1]} has no start offset yet: its leader does not respond")
            wait_s = self._retry_at_s - self._client.clock.now_s()
            self._client.clock.sleep_s(min(wait_s, deadline.remaining_s()))

    def _fetch_committed(
        self, deadline: Deadline
    ) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, bytes]]:
        """Fetch the group's offsets and the ids of their topics, once per partition; retries are for leaders only.

        Offsets of topics that the coordinator does not know, and those in open transactions, are left out, and fetched
        again.
        """
        group = self._config.consumer.group_id
        asked = [key for key, sought in self._not_started.items() if sought is None and key not in self._without_commit]
        if not group or not asked:
            self._without_commit.update(asked)
            return {}, {}
        self._pending.clear()
        found, topic_ids = fetch_offsets_and_ids(self._client, group, asked, deadline, pending=self._pending)
        self._without_commit.update(set(asked) - found.keys() - self._pending)
        found = {key: each for key, each in found.items() if key in topic_ids}
        self._committed.update((key, each.offset) for key, each in found.items())
        return found, topic_ids

    def _start_consumers(
        self,
        offsets: Mapping[TopicPartition, int],
        deadline: Deadline,
        epochs: Mapping[TopicPartition, int] = MappingProxyType({}),
        topic_ids: Mapping[TopicPartition, bytes] = MappingProxyType({}),
    ) -> None:
        if not offsets:
            return
        try:
            self.reader.consume_partitions(offsets, deadline, epochs=epochs, topic_ids=topic_ids)
        finally:  # also after Ctrl-C, which may come when they have started: they cannot start again
            with DeferredInterrupts():
                started = self.reader.streams
                for key in offsets.keys() & started.keys():
                    self._consumers[key] = started[key]
                    # Checked after the insertion, since another thread may call `pause`.
                    if key in self._paused_not_started:
                        self._consumers[key].pause()
                    self._remove_not_started(key)

    def _remove_not_started(self, key: TopicPartition) -> None:
        self._not_started.pop(key, None)
        self._without_commit.discard(key)
        self._paused_not_started.discard(key)

    def _retry_later(self, failure: KafkaError | None) -> None:
        now_s = self._client.clock.now_s()
        if failure is None:
            self._backoff.reset()
            return
        if not self._backoff.tries:
            self._failing_since_s = now_s
        self._retry_at_s = now_s + self._backoff.next_s()
        log.debug("%d partition(s) start later: %s", len(self._not_started) + len(self._lost), failure)
        if not isinstance(failure, DeadlineExceeded):
            raise failure
        timeout_s = self._client.config.default_api_timeout_ms / 1000
        if now_s - self._failing_since_s >= timeout_s:
            self._failing_since_s = now_s
            raise DeadlineExceeded(f"no start offset for {timeout_s:.0f} s: {failure}") from failure

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading partitions; iterations over them end."""
        for key in partitions:
            self._remove_not_started(key)
            self._lost.pop(key, None)
            self._committed.pop(key, None)
            self._recreations.pop(key, None)
            if (consumer := self._consumers.pop(key, None)) is not None:
                consumer.close()

    def __getitem__(self, key: TopicPartition) -> PartitionConsumer:
        if key not in self._consumers:
            raise UsageError(f"{key[0]}-{key[1]} is not assigned to this consumer")
        return self._consumers[key]

    def seek(self, key: TopicPartition, offset: int, epoch_before: int = NO_LEADER_EPOCH) -> None:
        """Set the position, see `PartitionConsumer.seek`.

        `EARLIEST` and `LATEST` are allowed before the partition has started.
        """
        if key in self._not_started:
            self._not_started[key] = CommittedOffset(offset, epoch_before)
            self._retry_at_s = 0.0
        else:
            self[key].seek(offset, epoch_before)
            self._lost.pop(key, None)

    def rewind(self, key: TopicPartition, offset: int, epoch_before: int) -> None:
        """Seek back to a record that the user did not get, unless its topic was recreated: the new one has others."""
        if not isinstance(self._lost.get(key), TopicRecreated):
            self.seek(key, offset, epoch_before)

    def positions(self, *, moved: bool = False) -> dict[TopicPartition, CommittedOffset]:
        """Return positions to commit: of started partitions, unless in a recreated topic.

        With `moved` only positions that may differ from the group's offsets.
        """
        recreated = self.recreated
        return {
            key: CommittedOffset(consumer.position, consumer.last_epoch)
            for key, consumer in self._consumers.items()
            if key not in recreated and (not moved or self._committed.get(key) != consumer.position)
        }

    @property
    def recreated(self) -> frozenset[TopicPartition]:
        """Return partitions that are known to be at a position in a deleted topic, while a new topic has its name."""
        consumers = list(self._consumers.items())
        return frozenset(
            key for key, consumer in consumers if consumer.recreated or isinstance(self._lost.get(key), TopicRecreated)
        )

    @property
    def topic_ids(self) -> dict[TopicPartition, bytes]:
        """Return the ids of the topics that are read, for commits; zeros if unknown."""
        return {key: consumer.topic_id for key, consumer in list(self._consumers.items())}

    @property
    def recreations(self) -> Mapping[TopicPartition, int]:
        """Return how often reading has moved to a recreated topic, for partitions where it has."""
        return self._recreations

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Record offsets that are being committed."""
        self._committed.update((key, to.offset) for key, to in offsets.items() if key in self._consumers)

    def poll(
        self, timeout_ms: float, max_rows: int | None = None
    ) -> tuple[TopicPartition, pa.RecordBatch, LeaderEpochs] | None:
        """Return the next record batch of any partition, see `Consumer.poll`, with the leader epochs of its records.

        None also means lost data: the next `start_added` finds the offset to continue at.
        """
        try:
            read = self.reader.poll(timeout_ms, max_rows)
        except DataLoss as loss:
            key = self._check_reset(loss)
            if isinstance(loss, LogTruncated):
                self._resume_at(loss, *end_of_common_log(loss))
            else:
                self._lost[key] = loss
                self._retry_at_s = 0.0
            return None
        # No further call: a signal handler that raises there would lose the batch.
        return None if read is None else ((read[0].topic, read[0].partition), read[1], read[0].buffer.leader_epochs)

    def recover(self, loss: DataLoss) -> CommittedOffset | None:
        """Seek after lost data: to the last common offset, else by `auto.offset.reset`. Return the new position.

        Raises the loss if the reset is `none`. Waits for the leader, up to `default.api.timeout.ms`; returns None if
        the partition is dropped meanwhile. Called in the thread that reads the partition.
        """
        key = self._check_reset(loss)
        if isinstance(loss, LogTruncated):
            offset, leader_epoch = end_of_common_log(loss)
        elif (reset := self._await_reset_offset(key)) is not None:
            offset, leader_epoch = reset, NO_LEADER_EPOCH
        else:
            return None
        self._resume_at(loss, offset, leader_epoch)
        return CommittedOffset(offset, leader_epoch)

    def _await_reset_offset(self, key: TopicPartition) -> int | None:
        deadline, settings, limit_ms = self._client.deadline(), self._client.config, _FIRST_TRY_MS
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        while key in self._consumers:
            # Dropping the partition waits for one try: it may last twice as long as the one before it.
            at_most = deadline.at_most_ms(limit_ms)
            found, failure = list_reset_offsets(self._client, self._config, [key], at_most, max_attempts=1)
            if failure is None:
                return found[key]
            if deadline.passed or not isinstance(failure, DeadlineExceeded):
                raise failure
            self._client.clock.sleep_s(min(backoff.next_s(), deadline.remaining_s()))
            limit_ms *= 2
        return None

    def _check_reset(self, loss: DataLoss) -> TopicPartition:
        if self._config.auto_offset_reset == "none":
            raise loss
        return loss.context["topic"], loss.context["partition"]

    def _resume_at(self, loss: DataLoss, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        log.warning("%s; reading continues at offset %d", loss, offset)
        key = loss.context["topic"], loss.context["partition"]
        # Brokers delete the committed offsets of a deleted topic.
        self._committed.pop(key, None)
        if (consumer := self._consumers.get(key)) is not None:
            if isinstance(loss, TopicRecreated):
                self._recreations[key] = self._recreations.get(key, 0) + 1
            consumer.seek(offset, leader_epoch)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Pause partitions, also before they have started."""
        for key in partitions:
            if key in self._not_started:
                self._paused_not_started.add(key)
            if key in self._consumers or key not in self._not_started:
                self[key].pause()

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Resume partitions."""
        for key in partitions:
            self._paused_not_started.discard(key)
            if key not in self._not_started:
                self[key].resume()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(key for key, consumer in self._consumers.items() if consumer.paused) | self._paused_not_started

    @property
    def consumers(self) -> Mapping[TopicPartition, PartitionConsumer]:
        """Return the consumers of started partitions."""
        return self._consumers

    def close(self, deadline: Deadline | None = None) -> None:
        """Stop reading, and end the fetches."""
        self.reader.close(deadline)


def end_of_common_log(loss: LogTruncated) -> tuple[int, int]:
    """Return the offset at which to continue after a truncation, and the leader epoch of the record before it.

    With the epoch, a second truncation is detected before any record is read from the offset.
    """
    return loss.context["end_offset"], loss.context.get("end_epoch", NO_LEADER_EPOCH)


_NO_RECORD = -1

Listed = tuple[dict[TopicPartition, int], KafkaError | None]
"""Offsets by partition, and one error of the other partitions."""


def list_reset_offsets(
    client: Client,
    config: GroupConsumerConfig,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    *,
    max_attempts: int | None = None,
) -> Listed:
    """Return the offsets that `auto.offset.reset` selects; raise `NoOffset` if that is `none`."""
    if not partitions:
        return {}, None
    reset = config.auto_offset_reset
    if reset == "none":
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
        what = f"{names}: no start offset, and auto.offset.reset is none; call seek, or set auto.offset.reset"
        raise NoOffset(what, settings=("auto.offset.reset",))

    def listed(time: int, of: Collection[TopicPartition]) -> Listed:
        return try_list_offsets(client, config, dict.fromkeys(of, time), deadline, max_attempts=max_attempts)

    if not isinstance(reset, timedelta):
        return listed(EARLIEST if reset == "earliest" else LATEST, partitions)
    found, failure = listed(client.clock.wall_ms() - int(reset.total_seconds() * 1000), partitions)
    without = [key for key, offset in found.items() if offset == _NO_RECORD]
    ends, failure_of_ends = listed(LATEST, without)
    found = {key: offset for key, offset in found.items() if offset != _NO_RECORD}
    return {**found, **ends}, failure or failure_of_ends


def try_list_offsets(
    client: Client,
    config: GroupConsumerConfig,
    times: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    max_attempts: int | None = None,
) -> Listed:
    """Return offsets by time for the partitions whose leaders respond.

    Parameters
    ----------
    client : Client
        The client of the cluster.
    config : GroupConsumerConfig
        The configuration of the consumer.
    times : mapping of (str, int) to int
        Timestamps in milliseconds by partition, or `EARLIEST` or `LATEST`.
    deadline : Deadline
        Time limit.
    max_attempts : int, optional
        Maximum number of requests per leader; None: until `deadline`.
    """
    found: dict[TopicPartition, ListedOffset] = {}
    failure: KafkaError | None = None
    if times:
        isolation_level = config.consumer.isolation_level
        options = {"isolation_level": isolation_level, "deadline": deadline, "max_attempts": max_attempts}
        try:
            list_offsets(client, times, found=found, **options)  # type: ignore[arg-type]
        except KafkaError as error:
            failure = error
    return {key: each.offset for key, each in found.items()}, failure
