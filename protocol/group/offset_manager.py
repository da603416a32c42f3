"""Commits a group's offsets in the background: sarama's `OffsetManager`, without a ticker.

`mark` says what is complete; a thread commits it at once, and again and again while the coordinator does not
answer, always the newest marks only. Nobody who marks ever waits for a broker, unless it asks to by `flush`.
For Spark it lives in the driver's process of one query.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.clock import Backoff, Deadline
from protocol.cluster.client import Client
from protocol.errors import KafkaError
from protocol.group.offsets import CommittedOffset, commit_offsets
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)

_ONE_COMMIT_MS = 5_000
_RETRY_INITIAL_MS = 200
_RETRY_MAXIMUM_MS = 5_000


@dataclass(frozen=True)
class CommitCounts:
    """How many commits went through and failed since the start, and the last failure's words."""

    succeeded: int = 0
    failed: int = 0
    last_failure: str | None = None


class OffsetManager:
    """The offsets of one group that this process commits.

    refresh_ms: what has been committed is committed again after this long, although nothing changed, since a
    broker forgets the offsets of a group without members `offsets.retention.minutes` after their last commit.
    """

    def __init__(self, client: Client, group: str, *, refresh_ms: float = 600_000) -> None:
        self.group = group
        self._client = client
        self._refresh_s = refresh_ms / 1000
        self._changed = threading.Condition()
        self._marked: dict[TopicPartition, CommittedOffset] = {}
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._all_committed_at_s = 0.0
        self._counts = CommitCounts()
        self._failing = False
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def counts(self) -> CommitCounts:
        return self._counts

    @property
    def healthy(self) -> bool:
        """Whether the last commit went through (true before the first one)."""
        return not self._failing

    def mark(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """These offsets, and no others, are what the group should hold now. Returns at once."""
        with self._changed:
            self._marked = dict(offsets)
            if self._thread is None and not self._closed:
                self._start()
            self._changed.notify_all()

    def flush(self, deadline: Deadline) -> bool:
        """Waits until everything marked is committed; False when the deadline passed first."""
        with self._changed:
            while self._dirty():
                if deadline.passed or self._closed:
                    return False
                self._changed.wait(min(deadline.remaining_s(), 0.5))
            return True

    def close(self) -> None:
        """Ends the thread without another commit."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    # -- the thread ---------------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"offsets-{self.group}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # No more threads just now: the next mark tries again.
            self._note(error)
        else:
            self._thread = thread

    def _dirty(self) -> bool:
        return any(self._committed.get(key) != entry for key, entry in self._marked.items())

    def _due(self) -> dict[TopicPartition, CommittedOffset]:
        """What to commit now: all that changed, or everything when the last commit is too long ago."""
        if self._client.clock.now_s() - self._all_committed_at_s >= self._refresh_s:
            return dict(self._marked)
        return {key: entry for key, entry in self._marked.items() if self._committed.get(key) != entry}

    def _run(self) -> None:
        backoff = Backoff(_RETRY_INITIAL_MS, _RETRY_MAXIMUM_MS)
        while True:
            with self._changed:
                while not self._closed and not (due := self._due()):
                    self._changed.wait(min(self._refresh_s, 60.0))
                if self._closed:
                    return
            if self._commit(due):
                backoff.reset()
                continue
            with self._changed:
                # Newer marks do not shorten the wait: a coordinator in trouble is not asked more often for them.
                wait_until = Deadline.after_ms(backoff.next_s() * 1000, self._client.clock)
                while not self._closed and not wait_until.passed:
                    self._changed.wait(wait_until.remaining_s())

    def _commit(self, due: dict[TopicPartition, CommittedOffset]) -> bool:
        failure: Exception | None = None
        try:
            commit_offsets(self._client, self.group, due, self._client.deadline(_ONE_COMMIT_MS))
        except Exception as error:  # also a fault in this client: nobody else commits
            failure = error
        with self._changed:
            if failure is None:
                self._committed.update(due)
                if due.keys() == self._marked.keys():
                    self._all_committed_at_s = self._client.clock.now_s()
            self._note(failure)
            self._changed.notify_all()
        return failure is None

    def _note(self, failure: Exception | None) -> None:
        """Counts, and says when it begins to fail and when it works again."""
        counts, was_failing = self._counts, self._failing
        self._failing = failure is not None
        if failure is None:
            self._counts = CommitCounts(counts.succeeded + 1, counts.failed, counts.last_failure)
            if was_failing:
                log.warning("group %s: commits go through again", self.group)
            return
        words = self._client.words(failure) if isinstance(failure, KafkaError) else f"an unexpected fault: {failure!r}"
        self._counts = CommitCounts(counts.succeeded, counts.failed + 1, words)
        if not was_failing:
            fault = None if isinstance(failure, KafkaError) else failure
            log.warning("group %s: a commit failed and will be tried again: %s", self.group, words, exc_info=fault)
