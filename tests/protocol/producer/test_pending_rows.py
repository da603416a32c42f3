"""Pending rows: the order of results and acknowledged ranges, and the memory of split batches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from protocol.base.clock import Deadline
from protocol.errors import KafkaError
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.results import BatchResult, ProducedRange, SentColumns, SentRows
from protocol.testing.fake_kafka.clock import ManualClock


class RecordingCall(SentColumns):
    """Records the acknowledged range when its result arrives."""

    pending: PendingRows
    acknowledged: ProducedRange | None = None

    def complete(self, partition: int, first: int, count: int, result: BatchResult) -> None:
        self.acknowledged = self.pending.acknowledged_now().get(("orders", partition))
        super().complete(partition, first, count, result)


def call_of(rows: int) -> RecordingCall:
    return RecordingCall("orders", np.ones(rows, np.int32), np.zeros(rows, np.int64))


def test_acknowledged_range_is_updated_before_the_call_is_completed() -> None:
    pending, call = PendingRows(), call_of(3)
    call.pending = pending
    batch = ProducerBatch("orders", 1, bytearray(100), 3, 0.0, [SentRows(call, 0, 3)])
    pending.add([batch])
    batch.result = BatchResult(base_offset=7)
    pending.complete([batch])
    assert call.acknowledged == ProducedRange(7, 9, 3)


def test_memory_of_a_split_batch_is_held_until_all_parts_are_complete() -> None:
    pending, call = PendingRows(), call_of(3)
    call.pending = pending
    batch = ProducerBatch("orders", 1, bytearray(100), 3, 0.0, [SentRows(call, 0, 3)])
    pending.add([batch])
    for first, count in ((0, 1), (1, 2)):
        assert (pending.empty, pending.held_bytes, call.done) == (False, 100, False)
        part = ProducerBatch("orders", 1, bytearray(50), count, 0.0, original=batch, first_row=first)
        part.result = BatchResult(base_offset=10 + first)
        pending.complete([part])
    assert (pending.empty, pending.held_bytes) == (True, 0)
    assert call.result()["offset"].to_pylist() == [10, 11, 12]


def test_calls_of_other_threads_do_not_extend_the_wait_for_memory() -> None:
    pending, ended = PendingRows(), threading.Event()

    def disturb() -> None:
        while not ended.wait(0.02):
            pending.wake()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        deadline = Deadline.after_ms(20_000)
        assert not pending.wait_for_room(lambda: False, 0.2, despite_failures=True, deadline=deadline)
        assert not deadline.passed
    finally:
        ended.set()
        thread.join()


def test_completed_batch_extends_the_wait_for_memory() -> None:
    clock = ManualClock()
    pending, call = PendingRows(clock=clock), call_of(2)
    call.pending = pending
    batches = [ProducerBatch("orders", 1, bytearray(100), 1, 0.0, [SentRows(call, row, 1)]) for row in (0, 1)]
    pending.add(batches)
    looked_at_s: list[float] = []

    def fits() -> bool:
        """Let two seconds pass; the first batch is completed after two, the second never."""
        looked_at_s.append(clock.now_s())
        clock.at_s += 2
        if len(looked_at_s) == 1:
            batches[0].result = BatchResult(base_offset=7)
            pending.complete(batches[:1])
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
    calls = [SentColumns("orders", np.ones(2, np.int32), np.zeros(2, np.int64), pending.forget_failures) for _ in "ab"]
    batch = ProducerBatch("orders", 1, bytearray(100), 4, 0.0, [SentRows(call, 0, 2) for call in calls])
    pending.add([batch])
    batch.result = BatchResult(error=error)
    pending.complete([batch])
    for call in calls[:requested]:
        assert call.errors() == {0: error, 1: error}
    assert pending.take_failures() == ([error] if requested < 2 else [])


def test_part_of_a_split_batch_fails_only_the_calls_of_its_rows() -> None:
    pending = PendingRows()
    calls = [SentColumns("orders", np.ones(2, np.int32), np.zeros(2, np.int64), pending.forget_failures) for _ in "ab"]
    batch = ProducerBatch("orders", 1, bytearray(100), 4, 0.0, [SentRows(call, 0, 2) for call in calls])
    pending.add([batch])
    for first, error in ((0, None), (2, KafkaError("too large"))):
        part = ProducerBatch("orders", 1, bytearray(50), 2, 0.0, original=batch, first_row=first)
        part.result = BatchResult(base_offset=10 + first) if error is None else BatchResult(error=error)
        pending.complete([part])
    assert calls[0].errors() == {}
    assert len(calls[1].errors()) == 2
    assert pending.take_failures() == []
