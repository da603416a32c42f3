"""What a session's handlers have marked, until it is committed: by sarama's rules. Pure."""

from __future__ import annotations

from collections.abc import Collection

from protocol.group.offsets import CommittedOffset
from protocol.kafka_terms import TopicPartition


class MarkedOffsets:
    """Who calls it has a lock. What is not dirty is not handed on."""

    def __init__(self) -> None:
        self._marked: dict[TopicPartition, CommittedOffset] = {}
        self._dirty: set[TopicPartition] = set()
        self._taken: set[TopicPartition] = set()

    def begin(self, key: TopicPartition, offset: int) -> None:
        """Where it is read from; nothing before that is marked, unless by `reset`."""
        self._marked.setdefault(key, CommittedOffset(offset))

    def mark(self, key: TopicPartition, to: CommittedOffset) -> None:
        """Only forward."""
        if key not in self._marked or to.offset > self._marked[key].offset:
            self._set(key, to)

    def reset(self, key: TopicPartition, to: CommittedOffset) -> None:
        """Only backward, or to the same offset."""
        if key not in self._marked or to.offset <= self._marked[key].offset:
            self._set(key, to)

    def _set(self, key: TopicPartition, to: CommittedOffset) -> None:
        if self._marked.get(key) != to:
            self._marked[key] = to
            self._dirty.add(key)

    @property
    def dirty(self) -> dict[TopicPartition, CommittedOffset]:
        return {key: self._marked[key] for key in self._dirty}

    def take(self) -> dict[TopicPartition, CommittedOffset]:
        """What was marked since the last time."""
        new = self.dirty
        self._dirty.clear()
        self._taken |= new.keys()
        return new

    @property
    def taken(self) -> dict[TopicPartition, CommittedOffset]:
        """All that was marked by the last `take`, also if an earlier one has had it."""
        return {key: self._marked[key] for key in self._taken - self._dirty}

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """They are not this session's any more."""
        for key in partitions:
            self._marked.pop(key, None)
            self._dirty.discard(key)
            self._taken.discard(key)
