"""Decide when to compare topic ids with metadata, where Fetch names topics (before Kafka 3.1). Sans-IO.

Such a reply may have records of a recreated topic. A broker ends a waiting Fetch if the topic is deleted, so that only
a pause between two requests can hide it. `partition_fetcher` sends the Metadata requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from protocol.cluster.metadata import Broker
from protocol.consumer.fetch_position import FetchPosition, P
from protocol.kafka_terms import NO_TOPIC_ID

# A topic is hardly deleted and created again in less time.
_PAUSE_S = 0.2
# A slow reader pauses before each request: Metadata requests about a topic are at least this far apart.
_LEAST_S = 1.0
# A recreation without such a pause is detected within this time, if the partition is still requested. Also the time
# between two Metadata requests of a thread for that, about all topics with records since.
_MOST_S = 3.0


class TopicIdChecks:
    """Times of the comparisons, by topic id; for the open partitions of one consumer. Not thread-safe."""

    def __init__(self) -> None:
        self._checked_at_s: dict[bytes, float] = {}
        # Last comparison by broker, each of which has its thread.
        self._compared_at_s: dict[Broker, float] = {}
        # Last records of topics since their check.
        self._records_at_s: dict[bytes, float] = {}

    def due(
        self,
        broker: Broker,
        asked: Collection[P],
        with_records: Iterable[P],
        failed: Collection[P],
        asked_at_s: float,
        now_s: float,
        others: Callable[[], Iterable[P]] = tuple,
    ) -> list[P]:
        """Return the partitions whose topic ids must be compared before the records of a reply are used.

        If some must be, others are compared in the same Metadata request, so that they need no further one soon: those
        with records since their comparison, and after a pause all.

        Parameters
        ----------
        broker : Broker
            The broker that has replied.
        asked : collection of FetchPosition
            Partitions of the request.
        with_records : iterable of FetchPosition
            Partitions with records in the reply.
        failed : collection of FetchPosition
            Partitions with errors in the reply.
        asked_at_s, now_s : float
            Times of the request and of the reply.
        others : callable
            Returns all partitions read from this broker.
        """
        has_paused = False
        for each in with_records:
            if each.topic_id != NO_TOPIC_ID:
                self._records_at_s[each.topic_id] = now_s
                if self._has_paused(each, asked_at_s) and now_s - self._last(each.topic_id) >= _LEAST_S:
                    has_paused = True
        candidates = [each for each in asked if each.topic_id != NO_TOPIC_ID and each not in failed]
        if has_paused:
            candidates += {each for each in others() if each.topic_id != NO_TOPIC_ID} - set(asked)
        else:
            candidates = [each for each in candidates if each.topic_id in self._records_at_s]
        is_due = has_paused or self._is_due(broker, candidates, now_s)
        for each in asked:
            if each not in failed and not self._has_paused(each, asked_at_s):
                each.answered_at_s = now_s
        if not is_due:
            return []
        self._compared_at_s[broker] = now_s
        return candidates

    def _is_due(self, broker: Broker, with_records: Iterable[FetchPosition], now_s: float) -> bool:
        """Return True if topics have records since their last comparison, which was long ago."""
        if now_s - self._compared_at_s.get(broker, float("-inf")) < _MOST_S:
            return False
        return any(now_s - self._last(each.topic_id) >= _MOST_S for each in with_records)

    def confirm(self, partitions: Iterable[FetchPosition], asked_at_s: float) -> None:
        """Record that metadata requested at `asked_at_s` have the ids of these partitions."""
        for topic_id in {each.topic_id for each in partitions}:
            self._checked_at_s[topic_id] = max(asked_at_s, self._last(topic_id))
            if self._records_at_s.get(topic_id, asked_at_s) <= asked_at_s:
                self._records_at_s.pop(topic_id, None)

    def drop(self, partitions: Iterable[FetchPosition]) -> None:
        """Forget topics that metadata do not confirm: the next records of their partitions are checked."""
        for topic_id in {each.topic_id for each in partitions}:
            self._checked_at_s.pop(topic_id, None)
            self._records_at_s.pop(topic_id, None)

    def _has_paused(self, partition: FetchPosition, asked_at_s: float) -> bool:
        """Return True if the partition was not requested for a time, and its topic not checked since, or never."""
        if partition.topic_id not in self._checked_at_s:
            return True
        return asked_at_s - max(partition.answered_at_s, self._last(partition.topic_id)) >= _PAUSE_S

    def _last(self, topic_id: bytes) -> float:
        return self._checked_at_s.get(topic_id, float("-inf"))
