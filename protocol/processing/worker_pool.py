"""The threads that call the user's handler: they take runs, and mark their records as finished."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocol.clock import Clock, Deadline
from protocol.condition import Condition
from protocol.consumer.partition_consumer import ConsumerMessage
from protocol.processing.failures import NO_RETRIES, RetryPolicy
from protocol.processing.lanes import LanePartition, Lanes, Run
from protocol.processing.polled_batch import PolledBatch

log = logging.getLogger(__name__)

# An idle thread gets half of another's rows if these take longer than this, by the mean time of recent records.
_WORTH_SHARING_S = 0.001
_WEIGHT_OF_LAST = 0.2

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

    Parameters
    ----------
    handler : callable
        Called with a `ConsumerMessage`; with `whole_runs` with a `ConsumerBatch`.
    threads : int
    whole_runs : bool
        Call the handler once per run instead of once per record.
    retry : RetryPolicy
    recover : callable or None
        Called in the thread of the handler with a record that has failed for good. None: the failure stops the pool.
    on_failure : callable
        Called with the exception that has stopped the pool.
    clock : Clock
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
        lock = threading.RLock()
        self._work = Condition(lock)
        self._left_a_run = Condition(lock)
        self._idle = 0
        self._stopped = False
        # Mean time per record; at first everything is worth sharing.
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
        """Wait until no thread handles records of these dropped partitions; False after the deadline."""
        with self._left_a_run:
            while any(partition.running for partition in partitions):
                if deadline.passed:
                    return False
                self._left_a_run.wait(deadline.remaining_s())
        return True

    def stop(self, deadline: Deadline) -> None:
        """End the threads after their present record. One that a handler holds until the deadline is left behind."""
        self._stopped = True
        with self._work:
            self._work.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(deadline.remaining_s())
                if thread.is_alive():
                    log.warning("%s: a handler has not returned in time; its thread is left behind", thread.name)

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
            while not self._stopped:
                now_s = self._clock.now_s()
                if (run := self._lanes.take(now_s)) is not None:
                    return run
                due_s = self._lanes.next_due_s
                self._idle += 1
                try:
                    self._work.wait(None if due_s is None else due_s - now_s)
                finally:
                    self._idle -= 1
        return None

    def _handle_records(self, run: Run[PolledBatch]) -> None:
        """Call the handler for each row; leave the run if its partition is dropped, or a record has to wait."""
        partition, handler = run.partition, self._handler
        messages = run.batch.messages()
        finish = run.batch.tracked.finish
        count, begin_s = 0, self._clock.now_s()
        try:
            while run.at < len(run.rows) and not (partition.dropped or self._stopped):
                if self._idle and run.lane is None:
                    self._share(run)
                row = run.rows[run.at]
                try:
                    handler(messages[row])
                    count += 1
                except BaseException as error:
                    if not self._recovered(run, messages[row], error):
                        return
                finish(row)
                run.at += 1
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
                if not self._bisected(run, error):
                    return
            elif not self._recovered(run, run.batch.message(run.rows[0]), error):
                return
        run.batch.tracked.finish_rows(run.rows)
        self._leave(run)

    def _share(self, run: Run[PolledBatch]) -> None:
        """Give the second half of the remaining rows to an idle thread, if that is worth it."""
        left = len(run.rows) - run.at
        if left < 2 or left * self._record_s < _WORTH_SHARING_S:
            return
        middle = run.at + (left + 1) // 2
        other = Run(run.partition, run.batch, run.rows[middle:])
        run.rows = run.rows[:middle]
        with self._work:
            if not run.partition.dropped:
                self._lanes.add(other)
                self._work.notify()

    def _measure(self, count: int, elapsed_s: float) -> None:
        self._record_s += _WEIGHT_OF_LAST * (elapsed_s / count - self._record_s)
        self.count(handled=count)

    def _leave(self, run: Run[PolledBatch]) -> None:
        with self._work:
            self._lanes.finish(run)
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        if self._left_a_run.waiting:
            self._left_a_run.notify_all()

    # -- failures -----------------------------------------------------------------------------

    def _recovered(self, run: Run[PolledBatch], message: ConsumerMessage, error: BaseException) -> bool:
        """Return True if the record of the next row counts as finished. If not, the thread has left the run."""
        if self._left_or_delayed(run, error, self._retry):
            return False
        place = f"{message.topic}-{message.partition}, offset {message.offset}"
        try:
            if self._recover is None or not isinstance(error, Exception):
                log.error("%s: the handler has failed, and the processing stops", place, exc_info=error)
                raise error
            self._recover(message, error)
        except BaseException as fatal:
            self._leave(run)
            self._fail(fatal)
            return False
        return True

    def _left_or_delayed(self, run: Run[PolledBatch], error: BaseException, retry: RetryPolicy) -> bool:
        """Leave the run if its partition was dropped, or until the next attempt; False if there is none."""
        if run.partition.dropped or self._stopped:
            # The next owner of the partition handles the record.
            self._leave(run)
            return True
        now_s = self._clock.now_s()
        if not run.attempts:
            run.failing_since_s = now_s
        run.attempts += 1
        wait_s = retry.wait_s(error, run.attempts, now_s - run.failing_since_s)
        if wait_s is None:
            return False
        log.debug("attempt %d has failed: %r; next one in %.3f s", run.attempts, error, wait_s)
        with self._work:
            self._metrics.retries += 1
            if run.lane is None and not self._whole_runs:
                self._separate(run)
            self._lanes.delay(run, now_s + wait_s)
            self._work.notify()
            self._tell_waiting()
        return True

    def _separate(self, run: Run[PolledBatch]) -> None:
        """Leave only the failing row in a run without order, so that the others need not wait."""
        rest = run.rows[run.at + 1 :]
        run.rows, run.at = run.rows[run.at : run.at + 1], 0
        if rest and not run.partition.dropped:
            self._lanes.add(Run(run.partition, run.batch, rest))
            self._work.notify()

    def _bisected(self, run: Run[PolledBatch], error: BaseException) -> bool:
        """Return False: the batch is retried, replaced by its halves, or has stopped the pool."""
        if self._left_or_delayed(run, error, NO_RETRIES if run.bisected else self._retry):
            return False
        if self._recover is None or not isinstance(error, Exception):
            first = run.batch.message(run.rows[0])
            place = f"{first.topic}-{first.partition}, {len(run.rows)} records from offset {first.offset}"
            log.error("%s: the handler has failed, and the processing stops", place, exc_info=error)
            self._leave(run)
            self._fail(error)
            return False
        middle = len(run.rows) // 2
        halves = [
            Run(run.partition, run.batch, rows, run.lane, bisected=True)
            for rows in (run.rows[:middle], run.rows[middle:])
        ]
        with self._work:
            self._lanes.replace(run, *halves)
            self._work.notify(len(halves))
            self._tell_waiting()
        return False

    def _fail(self, error: BaseException) -> None:
        self._stopped = True
        self._on_failure(error)
