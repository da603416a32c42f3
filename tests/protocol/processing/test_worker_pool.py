"""The pool alone: which rows are handled, retried, bisected, stolen and dropped, without a consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol import RetryPolicy
from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.processing.lanes import LanePartition, Run
from protocol.processing.offset_tracker import OffsetTracker
from protocol.processing.polled_batch import PolledBatch
from protocol.processing.worker_pool import ProcessorMetrics, WorkerPool
from tests.support.wait_until import wait_until

WAIT_MS = 30_000
AT_ONCE = RetryPolicy(retries=2, backoff_ms=1)
NEVER = RetryPolicy(retries=0)


class Setup:
    """A pool, and one partition with a batch of rows whose offsets and values are their numbers.

    With `recovers`, records that have failed for good are in `recovered`, with their errors.
    """

    def __init__(
        self,
        handler: Callable[[Any], object],
        rows: int,
        *,
        threads: int = 1,
        batches: bool = False,
        retry: RetryPolicy = NEVER,
        recovers: bool = False,
    ) -> None:
        self.failures: list[BaseException] = []
        self.recovered: list[tuple[int, str]] = []
        self.pool = WorkerPool(
            handler, threads, whole_runs=batches, retry=retry, recover=self.recover if recovers else None,
            on_failure=self.failures.append, clock=SYSTEM_CLOCK,
        )  # fmt: skip
        self.partition = LanePartition()
        self.tracker = OffsetTracker()
        offsets = np.arange(rows)
        columns = pa.RecordBatch.from_pydict(
            {"offset": pa.array(offsets), "value": pa.array([b"%d" % offset for offset in offsets], pa.binary())}
        )
        self.batch = PolledBatch(("orders", 0), columns, self.tracker.append(offsets))

    def recover(self, message: ConsumerMessage, error: BaseException) -> None:
        self.recovered.append((message.offset, repr(error)))

    def add(self, *runs: Sequence[int], lane: int | None = None) -> None:
        self.pool.add([Run(self.partition, self.batch, rows, lane) for rows in runs])

    @property
    def committable(self) -> int:
        self.tracker.advance()
        assert self.tracker.committable is not None
        return self.tracker.committable.offset

    def wait_for_end(self) -> None:
        """Wait until no thread has a run and none waits."""
        wait_until(lambda: self.partition.running == 0 and not self.partition.waiting)

    def stop(self, timeout_ms: int = WAIT_MS) -> None:
        self.pool.stop(Deadline.after_ms(timeout_ms))

    def wait_for(self, committable: int) -> None:
        wait_until(lambda: self.committable == committable, lambda: f"{self.committable} {self.failures}")


Create = Callable[..., Setup]


@pytest.fixture
def create() -> Iterator[Create]:
    """Yield `create(handler, rows, ...)`, whose pools are started, and stopped after the test."""
    with ExitStack() as made:

        def call(*arguments: Any, **options: Any) -> Setup:
            setup = Setup(*arguments, **options)
            setup.pool.start()
            made.callback(setup.stop)
            return setup

        yield call


class Calls:
    """Notes the values of records or batches; fails and blocks some."""

    def __init__(self, failing: dict[int, int] | None = None, blocked: Sequence[int] = ()) -> None:
        self.failing = dict(failing or {})
        self.blocked = {number: threading.Event() for number in blocked}
        self.lock = threading.Lock()
        self.begun: list[list[int]] = []
        self.ended: list[int] = []
        self.threads: set[str] = set()

    def __call__(self, inputs: Any) -> None:
        numbers = [inputs.offset] if isinstance(inputs, ConsumerMessage) else inputs.columns["offset"].to_pylist()
        with self.lock:
            self.begun.append(numbers)
            self.threads.add(threading.current_thread().name)
        for number in numbers:
            if number in self.blocked:
                assert self.blocked[number].wait(30)
        for number in numbers:
            if self.failing.get(number, 0) > 0:
                self.failing[number] -= 1
                raise ZeroDivisionError(number)
        with self.lock:
            self.ended += numbers


# -- handling -------------------------------------------------------------------------------------


def test_consecutive_rows_of_a_batch_are_not_copied() -> None:
    setup = Setup(Calls(), 6)
    addresses = [
        setup.batch.select(rows).columns["value"].buffers()[2].address for rows in ([0, 1, 2, 3, 4, 5], [2, 3], [2, 4])
    ]
    assert addresses[0] == addresses[1] != addresses[2]
    assert setup.batch.select([2, 4]).columns["offset"].to_pylist() == [2, 4]
    assert setup.batch.select([4]).columns["offset"].to_pylist() == [4]


def test_metrics_are_a_copy(create: Create) -> None:
    setup = create(Calls(), 1)
    setup.pool.metrics.handled = 7
    setup.pool.count(handled=1, skipped=2, dead_letters=3)
    setup.pool.count(handled=1, skipped=2, dead_letters=3)
    assert setup.pool.metrics == ProcessorMetrics(2, 0, 4, 6)


@pytest.mark.parametrize("rows", [2, 3, 10])
def test_idle_thread_takes_half_of_the_rows_without_order(create: Create, rows: int) -> None:
    """The thread with the blocked row has begun it and holds the first half of the others."""
    calls = Calls(blocked=[0])
    setup = create(calls, rows, threads=2)
    setup.add(range(rows))
    wait_until(lambda: len(calls.ended) == rows - 1)
    assert sorted(calls.ended) == list(range(1, rows))
    assert len(calls.threads) == 2
    calls.blocked[0].set()
    setup.wait_for(rows)
    assert len(calls.begun) == rows, "each row once"
    setup.wait_for_end()


def test_rows_of_a_dropped_partition_are_not_taken_from_their_thread(create: Create) -> None:
    """The dropped partition has more rows left than the other one."""
    calls = Calls(blocked=[0, 100])
    setup = create(calls, 101, threads=1)
    second = Setup(calls, 3)
    second.pool = setup.pool
    setup.add([100, *range(1, 100)])
    wait_until(lambda: calls.begun)
    setup.pool.drop([setup.partition])
    helpers = [threading.Thread(target=setup.pool._run) for _ in range(2)]
    for helper in helpers:
        helper.start()
    second.add([0, 1, 2])
    wait_until(lambda: sorted(calls.ended) == [1, 2])
    for event in calls.blocked.values():
        event.set()
    second.wait_for(3)
    setup.stop()
    for helper in helpers:
        helper.join(30)
    assert sorted(calls.ended) == [0, 1, 2, 100]


# -- failures -------------------------------------------------------------------------------------


def test_row_without_order_that_is_retried_cannot_be_stolen(create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even before its thread begins it: the other thread would not know its failed attempts."""
    messages, stealable = PolledBatch.messages, list[bool]()

    def before_the_row(batch: PolledBatch) -> list[ConsumerMessage]:
        stealable.append(setup.pool._has_stealable)
        return messages(batch)

    monkeypatch.setattr(PolledBatch, "messages", before_the_row)
    setup: Setup = create(Calls(failing={0: 99}), 1, retry=AT_ONCE, recovers=True)
    setup.add([0])
    wait_until(lambda: setup.recovered)
    assert stealable == [True, False, False]


def test_retries_end_after_the_time_from_the_first_failure(create: Create) -> None:
    calls = Calls(failing={0: 10_000, 1: 1})
    retry = RetryPolicy(retries=10_000, timeout_ms=300, backoff_ms=20, backoff_max_ms=20)
    setup = create(calls, 2, retry=retry, recovers=True)
    setup.add([0, 1], lane=0)
    setup.wait_for(2)
    assert setup.recovered == [(0, "ZeroDivisionError(0)")]
    assert calls.ended == [1], "the time of the second row begins with its own failure"


@pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
def test_failure_without_a_recovery_stops_the_pool(
    create: Create, caplog: pytest.LogCaptureFixture, batches: bool
) -> None:
    calls = Calls(failing={2: 99})
    setup = create(calls, 6, batches=batches)
    setup.add([0, 1], [2, 3], [4, 5], lane=0)
    wait_until(lambda: setup.failures)
    setup.stop()
    assert [repr(failure) for failure in setup.failures] == ["ZeroDivisionError(2)"]
    assert calls.ended == [0, 1]
    assert setup.committable == 2
    assert setup.partition.running == 0
    place = "orders-0, 2 records from offset 2" if batches else "orders-0, offset 2"
    assert f"{place}: the handler has failed, and the processing stops" in caplog.text


def test_failure_of_the_recovery_stops_the_pool(create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(setup: Setup, message: ConsumerMessage, error: BaseException) -> None:
        raise OSError(f"no place for {message.offset}")

    monkeypatch.setattr(Setup, "recover", recover)
    setup = create(Calls(failing={0: 9}), 2, recovers=True)
    setup.add([0, 1], lane=0)
    wait_until(lambda: setup.failures)
    assert str(setup.failures[0]) == "no place for 0"
    assert setup.committable == 0


# -- dropped partitions ---------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
def test_failure_in_a_dropped_partition_is_not_retried(
    create: Create, caplog: pytest.LogCaptureFixture, batches: bool
) -> None:
    calls = Calls(failing={0: 99}, blocked=[0])
    setup = create(calls, 2, batches=batches, retry=RetryPolicy(retries=9, backoff_ms=1), recovers=True)
    setup.add([0, 1], lane=0)
    wait_until(lambda: calls.begun)
    setup.pool.drop([setup.partition])
    with caplog.at_level(logging.WARNING):
        calls.blocked[0].set()
        assert setup.pool.wait([setup.partition], Deadline.after_ms(WAIT_MS))
    assert "has failed while it was waited for; not retried here" in caplog.text
    assert len(calls.begun) == 1
    assert (setup.recovered, setup.failures, setup.pool.metrics.retries) == ([], [], 0)
    assert setup.committable == 0


@pytest.mark.parametrize(("batches", "retries"), [(False, True), (True, True), (True, False)])
def test_wait_ends_if_the_partition_is_dropped_during_a_failure(create: Create, batches: bool, retries: bool) -> None:
    """Dropped after the pool has seen that it is not, and before the failed run is delayed or bisected."""
    ended: list[bool] = []

    class Dropping(RetryPolicy):
        def wait_s(self, error: BaseException, attempts: int, failing_s: float) -> float | None:
            setup.pool.drop([setup.partition])
            waiting.start()
            wait_until(lambda: setup.pool._left_a_run.waiting)
            return 0.001 if retries else None

    def wait() -> None:
        ended.append(setup.pool.wait([setup.partition], Deadline.after_ms(WAIT_MS)))

    waiting = threading.Thread(target=wait)
    calls = Calls(failing={0: 99})
    setup: Setup = create(calls, 2, batches=batches, retry=Dropping(), recovers=True)
    setup.add([0, 1], lane=0)
    wait_until(lambda: ended)
    assert ended == [True]
    assert setup.partition.running == 0
    assert len(calls.begun) == 1


def test_halted_pool_begins_no_further_record_and_names_threads_left_behind(
    create: Create, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(blocked=[0])
    setup = create(calls, 3)
    setup.add([0, 1, 2], lane=0)
    wait_until(lambda: calls.begun)
    setup.stop(20)
    assert "processor-0: a handler has not returned in time; its thread is left behind" in caplog.text
    calls.blocked[0].set()
    setup.stop()
    assert calls.ended == [0]
    assert setup.committable == 1
