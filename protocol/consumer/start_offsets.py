"""Look up start offsets in threads: a broker that does not respond delays only the partitions that need it.

A start offset is the group's committed offset, or that of `auto.offset.reset`, which a leader lists.
`assigned_partitions` decides what is looked up, and starts the partitions.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from protocol.base.clock import Deadline, StoppableClock
from protocol.base.condition import Event
from protocol.base.interrupts import start
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.consumer.group_consumer_config import GroupConsumerConfig
from protocol.errors import BrokerError, ConnectFailed, DeadlineExceeded, NoOffset
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_positions
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
from protocol.position import Position

# A lookup that has run for this time is no longer waited for: its offsets are used when they arrive.
_WAIT_S = 0.05


class StartLookup(ABC):
    """A lookup of the start offsets of some partitions, which runs in its own thread, called `name`.

    Thread rule: `positions` may be called at any time, `error_of` once the lookup has ended.

    `timeout_ms` limits all requests. With `is_retry` the caller does not wait, since a broker may be silent.
    `started_at_s` is a time of the client's clock.
    """

    def __init__(
        self,
        client: Client,
        partitions: Collection[TopicPartition],
        timeout_ms: float,
        name: str,
        *,
        is_retry: bool = False,
    ) -> None:
        self.partitions = frozenset(partitions)
        self.started_at_s = client.clock.now_s()
        self._is_retry = is_retry
        self._client = client
        self._clock = StoppableClock(client.clock)
        self._deadline = Deadline.after_ms(timeout_ms, self._clock)
        self._error: Exception | None = None
        self._ended = Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. If this process has too many, the lookup has failed, as without a reply."""
        try:
            start(self._thread)
        except ConnectFailed as error:
            self._error = DeadlineExceeded(str(error))
            self._ended.set()

    def _run(self) -> None:
        try:
            self._look_up()
        except Exception as error:  # raised by the consumer
            self._error = error
        finally:
            self._ended.set()

    @abstractmethod
    def _look_up(self) -> None:
        """Send the requests, and keep the results."""

    @abstractmethod
    def positions(self) -> Mapping[TopicPartition, Position]:
        """Return the positions that have arrived."""

    def error_of(self, key: TopicPartition) -> Exception | None:
        """Return why a partition has no offset; None if it needs another kind of lookup."""
        return self._error or DeadlineExceeded(f"the start offset of {key[0]}-{key[1]} is unknown")

    @property
    def ended(self) -> bool:
        """Return True if no more results arrive."""
        return self._ended.is_set()

    @property
    def is_worth_waiting_for(self) -> bool:
        """Return True if the lookup is worth waiting for."""
        if self._is_retry or self.ended:
            return False
        return self._client.clock.now_s() - self.started_at_s < _WAIT_S

    def wait(self, timeout_s: float = _WAIT_S) -> None:
        """Wait for the end, at most 50 ms: offsets may have arrived meanwhile."""
        self._ended.wait(min(timeout_s, _WAIT_S))

    def cancel(self) -> None:
        """Send no further request."""
        self._clock.stop()


class CommittedLookup(StartLookup):
    """Fetches the group's offsets, with the ids of their topics."""

    def __init__(
        self,
        client: Client,
        group: str,
        partitions: Collection[TopicPartition],
        timeout_ms: float,
        *,
        is_retry: bool = False,
    ) -> None:
        super().__init__(client, partitions, timeout_ms, f"start offsets of {group}", is_retry=is_retry)
        self._group = group
        self._positions: dict[TopicPartition, CommittedOffset] = {}
        self._pending: set[TopicPartition] = set()
        self._without_commit: frozenset[TopicPartition] = frozenset()
        # Partitions of topics for which the coordinator refuses the request, such as those without a Describe ACL.
        self._refused: dict[TopicPartition, BrokerError] = {}

    def _look_up(self) -> None:
        pending = self._pending
        while partitions := self.partitions - self._refused.keys():
            try:
                self._positions, of_unknown_topics = fetch_positions(
                    self._client, self._group, partitions, self._deadline, pending=pending
                )
            except BrokerError as error:
                refused = [key for key in partitions if key[0] == error.context.get("topic")]
                if not refused:
                    raise
                self._refused.update(dict.fromkeys(refused, error))
            else:
                self._without_commit = partitions - self._positions.keys() - of_unknown_topics.keys() - pending
                return

    def positions(self) -> Mapping[TopicPartition, Position]:
        """Return the committed offsets, once the lookup has ended."""
        return self._positions

    def error_of(self, key: TopicPartition) -> Exception | None:
        """Return why an offset is not known yet; None if the group has none."""
        if (error := self._refused.get(key) or self._error) is not None:
            return error
        if key in self._without_commit:
            return None
        name = f"{key[0]}-{key[1]}"
        if key in self._pending:
            return DeadlineExceeded(f"the offset of {name} is in an open transaction")
        return DeadlineExceeded(f"the coordinator does not know the topic of {name}")


class ListingLookup(StartLookup):
    """Lists offsets by time at the leaders; each leader gets one request, or two with `by_duration`.

    An offset belongs to the topic that the metadata had before the request: if a new topic has replaced it since, the
    first Fetch tells, and the offset is not used.
    """

    def __init__(
        self,
        client: Client,
        config: GroupConsumerConfig,
        times: Mapping[TopicPartition, int],
        timeout_ms: float,
        *,
        is_retry: bool = False,
    ) -> None:
        super().__init__(client, times.keys(), timeout_ms, "start offsets", is_retry=is_retry)
        self._times = times
        self._isolation_level = config.consumer.isolation_level
        self._topic_ids: dict[str, bytes] = {}
        self._listed: dict[TopicPartition, ListedOffset] = {}

    def _look_up(self) -> None:
        topics = {topic for topic, _ in self._times}
        topics_now = self._client.snapshot(topics, self._deadline).topics
        self._topic_ids = {
            name: topic.topic_id for name, topic in topics_now.items() if topic.error_code == ErrorCode.NONE
        }
        try:
            self._list(self._times, self._listed)
        finally:
            if ends := {key: LATEST for key, offset in self._listed.items() if offset.offset < 0}:
                self._list_ends(ends)

    def _list_ends(self, times: Mapping[TopicPartition, int]) -> None:
        """Start at the ends of logs without records at or after the time, unless some were written meanwhile."""
        ends: dict[TopicPartition, ListedOffset] = {}
        written: dict[TopicPartition, ListedOffset] = {}
        self._list(times, ends)
        self._list({key: self._times[key] for key in ends}, written)
        self._listed.update((key, offset if offset.offset >= 0 else ends[key]) for key, offset in written.items())

    def _list(self, times: Mapping[TopicPartition, int], into: dict[TopicPartition, ListedOffset]) -> None:
        options: dict[str, Any] = {"isolation_level": self._isolation_level, "max_attempts": 1}
        list_offsets(self._client, times, into=into, deadline=self._deadline, **options)

    def positions(self) -> Mapping[TopicPartition, Position]:
        """Return the positions that have arrived; where there is no record at or after the time, the log's end."""
        ids = self._topic_ids
        return {
            key: Position(offset.offset, topic_id=ids[key[0]])
            for key, offset in self._listed.copy().items()
            if offset.offset >= 0 and key[0] in ids
        }


def reset_times(
    config: GroupConsumerConfig, partitions: Collection[TopicPartition], wall_ms: int
) -> dict[TopicPartition, int]:
    """Return the times that `auto.offset.reset` selects, for `ListingLookup`; raise `NoOffset` if it is `none`."""
    reset = config.auto_offset_reset
    if reset == "none" and partitions:
        names = listed([f"{topic}-{partition}" for topic, partition in sorted(partitions)])
        problem = f"{names}: no start offset, and auto.offset.reset is none; call seek, or set auto.offset.reset"
        raise NoOffset(problem, settings=("auto.offset.reset",))
    if isinstance(reset, timedelta):
        return dict.fromkeys(partitions, wall_ms - int(reset.total_seconds() * 1000))
    return dict.fromkeys(partitions, EARLIEST if reset == "earliest" else LATEST)
