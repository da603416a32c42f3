"""Pending rows: the order of results and acknowledged ranges, and the memory of split batches; results of a call."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from protocol.base.clock import Deadline
from protocol.errors import KafkaError, UsageError
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.results import BatchResult, ProducedRange, SentColumns, SentRows
from protocol.testing.fake_kafka.clock import ManualClock
from tests.support.background import background


def calls_of(pending: PendingRows, rows: int, count: int = 1) -> list[SentColumns]:
    """Return calls with this number of rows for partition 1."""
    ones, zeros = np.ones(rows, np.int32), np.zeros(rows, np.int64)
    return [SentColumns("orders", ones, zeros, pending.forget_failures) for _ in range(count)]


def added(pending: PendingRows, *rows: SentRows) -> ProducerBatch:
    """Return a record batch of 100 bytes, which is pending."""
    batch = ProducerBatch("orders", 1, bytearray(100), sum(part.rows for part in rows), 0.0, list(rows))
    pending.add([batch])
    return batch


def complete(pending: PendingRows, batch: ProducerBatch, result: BatchResult) -> None:
    batch.result = result
    pending.complete([batch])


def complete_part(pending: PendingRows, batch: ProducerBatch, first: int, count: int, result: BatchResult) -> None:
    complete(pending, ProducerBatch("orders", 1, bytearray(50), count, 0.0, original=batch, first_row=first), result)


def test_acknowledged_range_is_updated_before_the_call_is_completed() -> None:
    pending, ranges = PendingRows(), list[ProducedRange]()

    class RecordingCall(SentColumns):
        def complete(self, partition: int, first: int, count: int, result: BatchResult) -> None:
            ranges.append(pending.acknowledged_now()["orders", partition])

    call = RecordingCall("orders", np.ones(3, np.int32), np.zeros(3, np.int64))
    complete(pending, added(pending, SentRows(call, 0, 3)), BatchResult(base_offset=7))
    assert ranges == [ProducedRange(7, 9, 3)]


def test_memory_of_a_split_batch_is_held_until_all_parts_are_complete() -> None:
    pending = PendingRows()
    (call,) = calls_of(pending, 3)
    batch = added(pending, SentRows(call, 0, 3))
    for first, count in ((0, 1), (1, 2)):
        assert (pending.empty, pending.held_bytes, call.done) == (False, 100, False)
        complete_part(pending, batch, first, count, BatchResult(base_offset=10 + first))
    assert (pending.empty, pending.held_bytes) == (True, 0)
    assert call.result()["offset"].to_pylist() == [10, 11, 12]


def test_calls_of_other_threads_do_not_extend_the_wait_for_memory() -> None:
    pending, ended = PendingRows(), threading.Event()

    def disturb() -> None:
        while not ended.wait(0.02):
            pending.wake()

    with background(disturb):
        deadline = Deadline.after_ms(20_000)
        has_room = pending.wait_for_room(lambda: False, 0.2, despite_failures=True, deadline=deadline)
        ended.set()
    assert (has_room, deadline.passed) == (False, False)


def test_completed_batch_extends_the_wait_for_memory() -> None:
    clock = ManualClock()
    pending = PendingRows(clock=clock)
    (call,) = calls_of(pending, 2)
    first, _ = (added(pending, SentRows(call, row, 1)) for row in (0, 1))
    looked_at_s: list[float] = []

    def fits() -> bool:
        """Let two seconds pass; the first batch is completed after two, the second never."""
        looked_at_s.append(clock.now_s())
        clock.at_s += 2
        if len(looked_at_s) == 1:
            complete(pending, first, BatchResult(base_offset=7))
        else:
            pending.wake()
        return False

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pending.wait_for_room, fits, 5.0, despite_failures=True)
        while not waiting.done():
            pending.wake()
        assert not waiting.result()
    assert looked_at_s[-1] - looked_at_s[0] == 6


@pytest.mark.parametrize("requested", [0, 1, 2])
def test_failure_of_two_calls_is_unreported_until_both_results_were_requested(requested: int) -> None:
    """The calls of a record batch fail with one error object."""
    pending, error = PendingRows(), KafkaError("refused")
    calls = calls_of(pending, 2, count=2)
    complete(pending, added(pending, *(SentRows(call, 0, 2) for call in calls)), BatchResult(error=error))
    for call in calls[:requested]:
        assert call.errors() == {0: error, 1: error}
    assert pending.take_failures() == ([error] if requested < 2 else [])


def test_part_of_a_split_batch_fails_only_the_calls_of_its_rows() -> None:
    pending = PendingRows()
    calls = calls_of(pending, 2, count=2)
    batch = added(pending, *(SentRows(call, 0, 2) for call in calls))
    complete_part(pending, batch, 0, 2, BatchResult(base_offset=10))
    complete_part(pending, batch, 2, 2, BatchResult(error=KafkaError("too large")))
    assert calls[0].errors() == {}
    assert len(calls[1].errors()) == 2
    assert pending.take_failures() == []


class TestFailRest:
    """The rows 0 to 3 have the partitions 0, 1, 0 and 0."""

    def sent_columns(self, counted: list[tuple[int, int]]) -> SentColumns:
        """Return rows whose second reported result raises an error."""

        def on_result(topic: str, partition: int, count: int, result: BatchResult) -> None:
            counted.append((partition, count))
            if len(counted) == 2:
                raise MemoryError("as if")

        return SentColumns("orders", np.array([0, 1, 0, 0], np.int32), np.zeros(4, np.int64), on_result=on_result)

    def test_keeps_results_and_may_be_repeated(self) -> None:
        counted, error = list[tuple[int, int]](), UsageError("as if")
        sent = self.sent_columns(counted)
        sent.complete(0, 1, 1, BatchResult(base_offset=7))
        with pytest.raises(MemoryError):
            sent.fail_rest(error)
        assert sent.done
        sent.fail_rest(error)
        sent.fail_rest(UsageError("too late"))
        assert sent.errors(0) == {0: error, 1: error, 3: error}
        assert sent.columns()["offset"].to_pylist() == [-1, -1, 7, -1]
        assert counted == [(0, 1), (1, 1), (0, 1), (0, 1)]

    def test_later_results_have_no_effect(self) -> None:
        sent = self.sent_columns([])
        with suppress(MemoryError):
            sent.fail_rest(UsageError("as if"))
        sent.fail_rest(UsageError("as if"))
        sent.complete(0, 0, 3, BatchResult(base_offset=7))
        assert sorted(sent.errors(0)) == [0, 1, 2, 3]
        assert sent.columns()["offset"].to_pylist() == [-1] * 4

    def test_two_threads_give_each_row_one_result(self) -> None:
        begun, go_on, counted = threading.Event(), threading.Event(), list[int]()

        def on_result(topic: str, partition: int, count: int, result: BatchResult) -> None:
            begun.set()
            assert go_on.wait(20)
            counted.append(count)

        sent = SentColumns("orders", np.zeros(4, np.int32), np.zeros(4, np.int64), on_result=on_result)
        with ThreadPoolExecutor(2) as threads:
            threads.submit(sent.complete, 0, 0, 3, BatchResult(base_offset=7))
            assert begun.wait(20)
            threads.submit(sent.fail_rest, UsageError("as if"))
            go_on.set()
        assert sorted(counted) == [1, 3]
        assert list(sent.errors(0)) == [3]
