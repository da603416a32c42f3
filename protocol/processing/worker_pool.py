"""The threads that call the user's handler: they take runs, and mark their records as finished."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from protocol.base.clock import Clock, Deadline
from protocol.base.condition import Condition, Lock
from protocol.base.interrupts import join
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.processing.failures import NO_RETRIES, RetryPolicy
from protocol.processing.lanes import LanePartition, Lanes, Run
from protocol.processing.polled_batch import PolledBatch

log = logging.getLogger(__name__)

# An idle thread takes half of another's rows if these take longer than this by the mean time of recent records, or
# after this wait.
_WORTH_STEALING_S = 0.001
_IDLE_BEFORE_STEALING_S = 0.005
_WEIGHT_OF_LAST = 0.2

# `halt` wakes no thread.
_HALT_CHECK_S = 0.1

Recover = Callable[[ConsumerMessage, BaseException], None]
"""Handles a record that has failed for good; an exception of it stops the processing."""


@dataclass
class ProcessorMetrics:
    """Counters of a `Processor` since its construction.

    Attributes
    ----------
    handled : int
        Records whose handler has returned.
    retries : int
        Further calls of a handler after an exception.
    skipped : int
        Records given up with `on_failure="skip"`.
    dead_letters : int
        Records written to the dead letter topic.
    """

    handled: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0


class WorkerPool:
    """Threads that handle runs; thread-safe.

    `handler`: called with a `ConsumerMessage`; with `whole_runs` with a `ConsumerBatch`.
    `whole_runs`: call the handler once per run instead of once per record.
    `recover`: called in the thread of the handler with a record that has failed for good. None: the failure stops the
    pool.
    `on_failure`: called with the exception that has stopped the pool.
    """

    def __init__(
        self,
        handler: Callable[[Any], object],
        threads: int,
        *,
        whole_runs: bool,
        retry: RetryPolicy,
        recover: Recover | None,
        on_failure: Callable[[BaseException], None],
        clock: Clock,
    ) -> None:
        self._handler = handler
        self._whole_runs = whole_runs
        self._retry = retry
        self._recover = recover
        self._on_failure = on_failure
        self._clock = clock
        self._lanes: Lanes[PolledBatch] = Lanes()
        lock = Lock()
        self._work = Condition(lock)
        self._left_a_run = Condition(lock)
        self._idle = 0
        self._stopped = False
        self._waits_ended = False
        # True if handlers run after the end of the pool.
        self._left_behind = False
        # Runs that idle threads may steal from: without order, being handled, and no retries.
        self._unordered: set[Run[PolledBatch]] = set()
        # Mean time per record; at first everything is worth stealing.
        self._record_s = 1.0
        self._metrics = ProcessorMetrics()
        self._is_worker = threading.local()
        self._threads = [
            threading.Thread(target=self._run, name=f"processor-{number}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    @property
    def metrics(self) -> ProcessorMetrics:
        """A copy of the counters. Records of the runs that are being handled are not counted yet."""
        with self._work:
            return replace(self._metrics)

    @property
    def in_worker(self) -> bool:
        """True in a thread of this pool."""
        return getattr(self._is_worker, "here", False)

    def add(self, runs: Sequence[Run[PolledBatch]]) -> None:
        """Add runs, in order."""
        with self._work:
            for run in runs:
                self._lanes.add(run)
            self._work.notify(min(len(runs), self._idle))

    def drop(self, partitions: Collection[LanePartition]) -> None:
        """Drop the runs of these partitions; threads leave theirs after the present record."""
        with self._work:
            self._lanes.drop(partitions)

    def wait(self, partitions: Collection[LanePartition], deadline: Deadline) -> bool:
        """Wait until no thread handles records of these dropped partitions; False after the deadline or `end_waits`."""
        with self._left_a_run:
            # A list: an interrupt while a generator is closed would be lost.
            while [partition for partition in partitions if partition.running]:
                if deadline.passed or self._waits_ended:
                    return False
                self._left_a_run.wait(deadline.remaining_s())
        return True

    def finish(self, partitions: Collection[LanePartition], deadline: Deadline) -> None:
        """Wait until all runs in lanes of these partitions are finished or dropped; until the deadline or `halt`."""
        with self._left_a_run:
            while (
                not self._stopped
                and [partition for partition in partitions if partition.waiting]
                and not deadline.passed
            ):
                self._left_a_run.wait(min(_HALT_CHECK_S, deadline.remaining_s()))

    def end_waits(self) -> None:
        """End all calls of `wait`."""
        with self._left_a_run:
            self._waits_ended = True
            self._left_a_run.notify_all()

    def halt(self) -> None:
        """Let the threads begin no further record. Takes no lock, for signal handlers."""
        self._stopped = True

    def stop(self, deadline: Deadline) -> None:
        """End the threads after their present record. One that a handler holds until the deadline is left behind."""
        self.halt()
        with self._work:
            self._work.notify_all()
        for thread in self._threads:
            if thread.ident is not None and not join(thread, deadline.remaining_s()):
                log.warning("%s: a handler has not returned in time; its thread is left behind", thread.name)
                self._left_behind = True

    def count(self, *, handled: int = 0, skipped: int = 0, dead_letters: int = 0) -> None:
        """Add to the counters."""
        with self._work:
            self._metrics.handled += handled
            self._metrics.skipped += skipped
            self._metrics.dead_letters += dead_letters

    # -- in the threads -----------------------------------------------------------------------

    def _run(self) -> None:
        self._is_worker.here = True
        try:
            while (run := self._next()) is not None:
                if self._whole_runs:
                    self._handle_batch(run)
                else:
                    self._handle_records(run)
        except BaseException as error:  # a mistake in this package
            self._fail(error)

    def _next(self) -> Run[PolledBatch] | None:
        with self._work:
            has_waited = False
            while not self._stopped:
                now_s = self._clock.now_s()
                run = self._lanes.take(now_s) or self._steal(any_rows=has_waited)
                if run is not None:
                    if run.lane is None and not self._whole_runs:
                        if not run.attempts:  # a stolen row would lose its failed attempts
                            self._unordered.add(run)
                        if self._idle and (len(run.rows) > 1 or self._has_stealable):
                            self._work.notify()
                    return run
                due_s = self._lanes.next_due_s
                wait_s = None if due_s is None else due_s - now_s
                if has_waited := self._has_stealable:
                    wait_s = _IDLE_BEFORE_STEALING_S if wait_s is None else min(wait_s, _IDLE_BEFORE_STEALING_S)
                self._idle += 1
                try:
                    self._work.wait(wait_s)
                finally:
                    self._idle -= 1
        return None

    @property
    def _has_stealable(self) -> bool:
        """True if a thread holds rows that any thread may handle."""
        return any(run.rows and not run.partition.dropped for run in self._unordered)

    def _steal(self, *, any_rows: bool) -> Run[PolledBatch] | None:
        """Return the second half of the rows that another thread has not begun, if these take long."""
        victim = max(self._unordered, key=lambda run: 0 if run.partition.dropped else len(run.rows), default=None)
        if victim is None or victim.partition.dropped:
            return None
        rows_left = len(victim.rows)
        if not any_rows and rows_left * self._record_s < _WORTH_STEALING_S:
            return None
        rows: deque[int] = deque()
        with suppress(IndexError):  # the other thread goes on meanwhile
            for _ in range((rows_left + 1) // 2):
                rows.appendleft(victim.rows.pop())
        if not rows:
            return None
        victim.partition.running += 1
        return Run(victim.partition, victim.batch, rows)

    def _handle_records(self, run: Run[PolledBatch]) -> None:
        """Call the handler for each row; leave the run if its partition is dropped, or a record has to wait."""
        partition, handler, rows = run.partition, self._handler, run.rows
        messages = run.batch.messages()
        finish = run.batch.tracked.finish
        count, begin_s = 0, self._clock.now_s()
        try:
            while not (partition.dropped or self._stopped):
                try:
                    row = rows.popleft()
                except IndexError:
                    break
                try:
                    handler(messages[row])
                    count += 1
                except BaseException as error:
                    if not self._recovered(run, row, error):
                        return
                finish(row)
                run.attempts = 0
        finally:
            if count:
                self._measure(count, self._clock.now_s() - begin_s)
        self._leave(run)

    def _handle_batch(self, run: Run[PolledBatch]) -> None:
        """Call the handler for the whole run. A part that fails for good is bisected down to the failing records."""
        if run.partition.dropped or self._stopped:
            return self._leave(run)
        try:
            self._handler(run.batch.select(run.rows))
            self.count(handled=len(run.rows))
        except BaseException as error:
            if len(run.rows) > 1:
                return self._retry_or_bisect(run, error)
            if not self._recovered(run, run.rows[0], error):
                return
        run.batch.tracked.finish_rows(run.rows)
        self._leave(run)

    def _measure(self, count: int, elapsed_s: float) -> None:
        self._record_s += _WEIGHT_OF_LAST * (elapsed_s / count - self._record_s)
        self.count(handled=count)

    def _leave(self, run: Run[PolledBatch]) -> None:
        with self._work:
            self._unordered.discard(run)
            self._lanes.finish(run)
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        if self._left_a_run.waiting:
            self._left_a_run.notify_all()

    # -- failures -----------------------------------------------------------------------------

    def _recovered(self, run: Run[PolledBatch], row: int, error: BaseException) -> bool:
        """Return True if the failed row counts as finished. If not, the thread has left the run."""
        message = run.batch.message(row)
        place = f"{message.topic}-{message.partition}, offset {message.offset}"
        if self._left_or_delayed(run, place, error, self._retry, row):
            return False
        try:
            if self._recover is None or not isinstance(error, Exception):
                log.error("%s: the handler has failed, and the processing stops", place, exc_info=error)
                raise error
            self._recover(message, error)
        except BaseException as fatal:
            self.halt()  # first: the next run of its lane must not begin
            self._leave(run)
            self._fail(fatal)
            return False
        return True

    def _left_or_delayed(
        self, run: Run[PolledBatch], place: str, error: BaseException, retry: RetryPolicy, row: int | None = None
    ) -> bool:
        """Leave the run if its partition was dropped, or until the next attempt; False if there is none.

        `row` is the failed one if records are handled one by one; the run does not have it any more.
        """
        if run.partition.dropped or self._stopped or not run.partition.retries:
            log.warning("%s: the handler has failed while it was waited for; not retried here", place, exc_info=error)
            with self._work:
                run.partition.failed = True
                if not run.partition.retries:
                    self._lanes.drop([run.partition])
                self._leave(run)
            return True
        now_s = self._clock.now_s()
        if not run.attempts:
            run.failing_since_s = now_s
        run.attempts += 1
        wait_s = retry.wait_s(error, run.attempts, now_s - run.failing_since_s)
        if wait_s is None:
            return False
        log.debug("%s: attempt %d has failed: %r; next one in %.3f s", place, run.attempts, error, wait_s)
        with self._work:
            self._metrics.retries += 1
            self._unordered.discard(run)
            if row is not None and not self._whole_runs:
                run.rows.appendleft(row)
                if run.lane is None:
                    self._separate(run)
            self._lanes.delay(run, now_s + wait_s)
            self._work.notify()
            self._tell_waiting()
        return True

    def _separate(self, run: Run[PolledBatch]) -> None:
        """Leave only the first row in a run without order, so that the others need not wait for its retry."""
        first = run.rows.popleft()
        if run.rows and not run.partition.dropped:
            self._lanes.add(Run(run.partition, run.batch, run.rows))
            self._work.notify()
        run.rows = deque([first])

    def _retry_or_bisect(self, run: Run[PolledBatch], error: BaseException) -> None:
        """Retry a failed batch later, replace it by its halves, or stop the pool. The thread has left the run."""
        first = run.batch.message(run.rows[0])
        place = f"{first.topic}-{first.partition}, {len(run.rows)} records from offset {first.offset}"
        if self._left_or_delayed(run, place, error, NO_RETRIES if run.bisected else self._retry):
            return
        if self._recover is None or not isinstance(error, Exception):
            log.error("%s: the handler has failed, and the processing stops", place, exc_info=error)
            self.halt()
            self._leave(run)
            self._fail(error)
            return
        rows = list(run.rows)
        middle = len(rows) // 2
        halves = [
            Run(run.partition, run.batch, deque(half), run.lane, bisected=True)
            for half in (rows[:middle], rows[middle:])
        ]
        with self._work:
            self._lanes.replace(run, *halves)
            self._work.notify(len(halves))
            self._tell_waiting()

    def _fail(self, error: BaseException) -> None:
        self.halt()
        if self._left_behind:
            log.warning("a handler that was left behind has failed: %r", error)
        else:
            self._on_failure(error)
