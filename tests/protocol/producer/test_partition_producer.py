"""A partition's queue: replies, failures and time case by case, and against a model of a broker."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, DeadlineExceeded
from protocol.producer.idempotence import ANONYMOUS, ProducerIdentity, sequence_after
from protocol.producer.producer_batch import ProducerBatch
from protocol.records.record_columns import record_columns
from tests.protocol.producer.partition_log import (
    IDENTITY,
    LOST,
    WHERE,
    PartitionLog,
    batch_of,
    confirmed,
    failures_of,
    fill,
    numbers_of_the_rest,
    producer,
    refuse_first,
    send_all,
    values_of,
)
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak


class TestSending:
    def test_at_most_five_batches_are_in_flight_with_consecutive_numbers(self) -> None:
        made, sent = confirmed(7)
        assert [batch.base_sequence for batch in sent] == [10, 20, 30, 40, 50]
        made.written(sent[0], 10)
        assert [batch.base_sequence for batch in send_all(made)] == [60]

    def test_sequence_numbers_wrap_after_the_largest_int32(self) -> None:
        assert sequence_after(2**31 - 5, 10) == 5
        assert sequence_after(2**31 - 10, 10) == 0

    def test_batches_without_idempotence_have_no_sequence_numbers(self) -> None:
        made = producer(identity=ANONYMOUS)
        fill(made, 3)
        assert numbers_of_the_rest(made) == [-1, -1, -1]


class TestRetries:
    def test_failed_batches_are_resent_in_order_after_all_replies(self) -> None:
        made, sent = confirmed(3)
        made.append(batch_of([99]))
        refuse_first(made, sent[:2], ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert made.next_batch(9.0) is None, "the last reply may come"
        refuse_first(made, sent[2:], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert made.next_batch(1.0) is None, "the back-off has not passed"
        assert made.due_s(1.0) == pytest.approx(1.1, abs=0.051)
        again = []
        while not made.idle:
            sent = send_all(made, now_s=1.2)
            assert len(sent) == 1, "a retried batch is alone in flight"
            again += sent
            made.written(sent[0], 0)
        assert [batch.base_sequence for batch in again] == [10, 20, 30, 40]
        assert not failures_of(made)

    def test_unsent_batch_counts_no_attempt(self) -> None:
        made, sent = confirmed(1)
        made.not_sent(sent[0], LOST, 1.0)
        assert sent[0].attempts == 0
        assert not sent[0].maybe_written
        assert send_all(made, 2.0) == sent

    def test_retries_are_limited_by_the_property(self) -> None:
        made = producer(retries=1)
        fill(made, 1)
        for _ in range(2):
            (batch,) = send_all(made, 100.0)
            made.refused(batch, ErrorCode.NOT_ENOUGH_REPLICAS, WHERE, 0.0)
        assert [error.name for error in failures_of(made)] == ["NOT_ENOUGH_REPLICAS"]  # type: ignore[attr-defined]
        assert made.idle

    def test_successful_reply_resets_the_back_off(self) -> None:
        made, sent = confirmed(1)
        for _ in range(5):
            made.not_sent(sent[0], LOST, 0.0)
            sent = send_all(made, 100.0)
        made.written(sent[0], 10)
        made.append(batch_of([1]))
        (batch_sent,) = send_all(made, 100.0)
        made.not_sent(batch_sent, LOST, 200.0)
        assert made.due_s(200.0) == pytest.approx(200.1, abs=0.051)


class TestFailures:
    def test_lost_batch_before_a_failed_one_keeps_its_epoch(self) -> None:
        made, (before, failed, behind) = confirmed(3, rows=1)
        made.lost(before, LOST, 0.0)
        made.refused(failed, ErrorCode.MESSAGE_TOO_LARGE, WHERE, 0.0)
        made.lost(behind, LOST, 0.0)
        assert (send_all(made, 1e9), before.base_sequence) == ([before], 1)
        made.written(before, 1)
        assert made.broken_identity == IDENTITY
        made.begin(ProducerIdentity(7, 1))
        assert numbers_of_the_rest(made) == [0]

    def test_permanently_refused_batch_leaves_no_sequence_gap(self) -> None:
        made, sent = confirmed(3)
        refuse_first(made, sent, ErrorCode.INVALID_RECORD, "record 3: no key")
        assert numbers_of_the_rest(made) == [10, 20]
        (error,) = failures_of(made)
        assert "10 records to t-0 at broker 1" in str(error)
        assert "record 3: no key" in str(error)
        assert error.context["topic"] == "t"

    def test_batches_refused_because_of_a_failed_one_are_resent_without_a_back_off(self) -> None:
        made, sent = confirmed(3)
        refuse_first(made, sent, ErrorCode.INVALID_RECORD)
        assert send_all(made, 1.0) == sent[1:2]

    def test_unknown_outcome_fails_the_following_batches(self) -> None:
        made, sent = confirmed(3)
        refuse_first(made, sent, ErrorCode.UNKNOWN_SERVER_ERROR)
        (error,) = failures_of(made)
        assert error.context["unknown_records"] == 10
        assert error.context["unwritten_records"] == 20
        assert made.idle
        assert made.sequences is None
        assert made.broken_identity == IDENTITY

    def test_out_of_order_error_for_the_next_number_is_a_truncated_log(self) -> None:
        made, sent = confirmed(1)
        refuse_first(made, sent, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        (error,) = failures_of(made)
        assert isinstance(error, BrokerError)
        assert "its log was truncated" in str(error)
        assert "up to offset 9" in str(error)
        assert made.broken_identity == IDENTITY

    def test_unknown_producer_id_restarts_at_0_with_the_next_identity(self) -> None:
        made, sent = confirmed(2)
        for batch in sent:
            made.refused(batch, ErrorCode.UNKNOWN_PRODUCER_ID, WHERE, 1.0)
        assert made.broken_identity == IDENTITY
        assert not failures_of(made)
        made.begin(ProducerIdentity(7, 1))
        assert [batch.base_sequence for batch in send_all(made, 2.0)] == [0], "the first batch is again alone in flight"

    def test_unknown_producer_id_after_an_unknown_outcome_is_not_resent(self) -> None:
        made, sent = confirmed(1)
        made.lost(sent[0], LOST, 1.0)
        (again,) = send_all(made, 2.0)
        made.refused(again, ErrorCode.UNKNOWN_PRODUCER_ID, WHERE, 3.0)
        (error,) = failures_of(made)
        assert error.context["unknown_records"] == 10

    def test_delivery_timeout_fails_only_expired_unsent_batches(self) -> None:
        made = producer()
        made.append(batch_of([1], now_s=0.0))
        made.append(batch_of([2], now_s=5.0))
        made.postpone(LOST, 9.0)
        made.expire(9.9)
        assert not failures_of(made)
        made.expire(10.0)
        (error,) = failures_of(made)
        assert isinstance(error, DeadlineExceeded)
        assert "(delivery.timeout.ms)" in str(error)
        assert "the connection was reset" in str(error)
        assert [values_of(batch) for batch in send_all(made, 12.0)] == [[2]]

    def test_delivery_timeout_of_a_lost_batch_is_an_unknown_outcome(self) -> None:
        made, sent = confirmed(2)
        for lost in sent:
            made.lost(lost, LOST, 1.0)
        made.append(batch_of([99], now_s=9.0))
        made.expire(10.0)
        (error,) = failures_of(made)
        assert isinstance(error, DeadlineExceeded)
        assert (error.context["unknown_records"], error.context["unwritten_records"]) == (20, 1)
        assert made.idle

    def test_batch_in_flight_does_not_expire(self) -> None:
        made, sent = confirmed(1)
        made.expire(1_000.0)
        assert not failures_of(made)
        assert sent[0].in_flight


class TestTooLarge:
    def test_too_large_record_fails_alone_with_size_and_property(self) -> None:
        made, sent = confirmed(2, rows=1)
        sent[0].records = bytearray(4321)
        refuse_first(made, sent, ErrorCode.MESSAGE_TOO_LARGE)
        (error,) = failures_of(made)
        assert "4321 bytes" in str(error)
        assert "max.message.bytes" in str(error)
        assert [batch.base_sequence for batch in send_all(made, 2.0)] == [1]

    def test_large_batch_is_split(self) -> None:
        """It is decompressed for this, beyond the limit of readers (128 MiB)."""
        rows = record_columns(pa.RecordBatch.from_arrays([pa.array([bytes(65 << 20)] * 2)], names=["value"]), 0)
        made = producer()
        (records,) = made.encode(rows, [2], None)
        made.append(ProducerBatch("t", 0, records, 2, 0.0))
        (batch,) = send_all(made)
        made.refused(batch, ErrorCode.MESSAGE_TOO_LARGE, WHERE, 0.0)
        assert [half.record_count for half in send_all(made, 1e9)] == [1]

    @pytest.mark.parametrize("identity", [IDENTITY, ANONYMOUS])
    def test_halves_wait_for_the_batches_in_flight_behind_them(self, identity: ProducerIdentity) -> None:
        """Else the second half would be sent before the first, and a log without sequence numbers has it first."""
        made = producer(identity=identity)
        fill(made, 1)
        made.written(send_all(made)[0], 0)
        fill(made, 2)
        large, behind = send_all(made)
        made.refused(large, ErrorCode.MESSAGE_TOO_LARGE, WHERE, 0.0)
        assert made.next_batch(1e9) is None
        made.refused(behind, ErrorCode.NOT_LEADER_OR_FOLLOWER, WHERE, 0.0)
        assert values_of(send_all(made, 1e9)[0]) == [0, 1, 2, 3, 4]


class Simulation:
    """A `PartitionProducer`, a log, and a network between them whose failures follow a script."""

    def __init__(self, batches: list[int], choose: Callable[[int], int], largest: int) -> None:
        self.log = PartitionLog(largest=largest)
        self.made = producer()
        self.choose = choose
        self.now_s = 0.0
        self.in_flight: list[ProducerBatch] = []
        # Requests that the client gave up; the broker may still receive them, in order, at any later time.
        self.strays: list[list[tuple[int, int, int, list[int]]]] = []
        self.acknowledged: list[int] = []
        first = 0
        for rows in batches:
            self.made.append(batch_of(list(range(first, first + rows))))
            first += rows
        self.sent_values = list(range(first))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.made.idle:
                break
            self.step(self.choose(12))
        for _ in range(10_000):
            if self.made.idle:
                break
            self.step(11)
        while self.strays:
            self.arrive_late()

    def step(self, choice: int) -> None:
        self.now_s += 0.001
        if self.made.sequences is None:
            before = self.made.broken_identity
            assert before is not None
            assert not self.in_flight, "the epoch is bumped only without batches in flight"
            self.made.begin(ProducerIdentity(before.producer_id, before.producer_epoch + 1))
        if choice == 0 and self.strays:
            self.arrive_late()
        elif choice == 1 and self.in_flight:
            self.lose_connection()
        elif self.in_flight and choice in (2, 3, 4):
            self.answer(fail=choice)
        elif (batch := self.made.next_batch(1e9)) is not None and (choice % 2 or not self.in_flight):
            self.made.sending(batch, 1, self.now_s)
            self.in_flight.append(batch)
        elif self.in_flight:
            self.answer()

    def request(self, batch: ProducerBatch) -> tuple[int, int, int, list[int]]:
        assert self.made.sequences is not None
        identity = self.made.sequences.identity
        return identity.producer_id, identity.producer_epoch, batch.base_sequence, values_of(batch)

    def answer(self, fail: int = 0) -> None:
        batch = self.in_flight.pop(0)
        if fail == 2:
            self.made.refused(batch, ErrorCode.NOT_ENOUGH_REPLICAS, WHERE, self.now_s)
            return
        code, offset = self.log.append(*self.request(batch))
        if fail == 3 and code == ErrorCode.NONE:
            code = ErrorCode.REQUEST_TIMED_OUT
        if fail == 4 and code == ErrorCode.NONE:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code == ErrorCode.NONE:
            self.acknowledged += values_of(batch)
            self.made.written(batch, offset)
        else:
            self.made.refused(batch, code, WHERE, self.now_s)

    def lose_connection(self) -> None:
        lost, self.in_flight = self.in_flight, []
        requests = [self.request(batch) for batch in lost]
        arrived = self.choose(len(requests) + 1)
        for request in requests[:arrived]:
            self.log.append(*request)
        if requests[arrived:]:
            self.strays.append(requests[arrived:])
        for batch in lost:
            self.made.lost(batch, LOST, self.now_s)

    def arrive_late(self) -> None:
        stray = self.strays[0]
        self.log.append(*stray.pop(0))
        if not stray:
            self.strays.pop(0)


class TestWithModelBroker:
    @given(
        batches=st.lists(st.integers(1, 6), min_size=1, max_size=14),
        seed=st.integers(0, 2**32),
        largest=st.sampled_from([1, 3, 100]),
    )
    def test_records_are_written_once_in_order_with_any_losses(
        self, batches: list[int], seed: int, largest: int
    ) -> None:
        simulation = Simulation(batches, random.Random(seed).randrange, largest)
        simulation.run(steps=200)
        assert failures_of(simulation.made) == []
        assert simulation.log.values == simulation.sent_values
        # A batch whose reply was lost may be acknowledged after later batches.
        assert sorted(simulation.acknowledged) == simulation.sent_values
        assert simulation.made.acknowledged.count == len(simulation.sent_values)
        assert simulation.made.acknowledged.last_offset == len(simulation.sent_values) - 1

    @given(
        batches=st.lists(st.sampled_from([1, 1, 4]), min_size=8, max_size=20),
        seed=st.integers(0, 2**32),
        too_large=st.frozensets(st.integers(0, 20), min_size=2, max_size=8),
    )
    def test_too_large_records_fail_alone_at_any_position(
        self, batches: list[int], seed: int, too_large: frozenset[int]
    ) -> None:
        rng = random.Random(seed).randrange
        simulation = Simulation(batches, lambda below: max(2, rng(below)), largest=100)
        simulation.log.too_large = too_large
        simulation.run(steps=200)
        written = [value for value in simulation.sent_values if value not in too_large]
        assert simulation.log.values == written
        assert sorted(simulation.acknowledged) == written
        assert all("MESSAGE_TOO_LARGE" in str(error) for error in failures_of(simulation.made))

    def test_late_copies_of_lost_batches_are_written_once_after_a_failed_one(self) -> None:
        for seed in range(20_000 if SOAK else 100):
            rng = random.Random(seed)
            batches = [rng.choice([1, 1, 1, 1, 2]) for _ in range(rng.randint(4, 12))]
            simulation = Simulation(batches, rng.randrange, largest=100)
            simulation.log.too_large = frozenset(rng.sample(range(14), rng.randint(1, 4)))
            simulation.run(steps=300)
            completed = simulation.made.completed
            failed = {value for batch in completed if batch.result and batch.result.error for value in values_of(batch)}
            written, acknowledged = simulation.log.values, simulation.acknowledged
            assert written == sorted(set(written)), seed
            assert len(acknowledged) == len(set(acknowledged)), seed
            assert set(acknowledged) == set(written) - failed, seed
            assert set(acknowledged) | failed == set(simulation.sent_values), seed
