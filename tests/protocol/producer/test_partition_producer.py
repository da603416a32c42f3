"""A partition's queue: effects of replies, failures and time; first case by case, then against a model broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.base.clock import Backoff
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, ConnectionLost, DeadlineExceeded, KafkaError
from protocol.producer.idempotence import ANONYMOUS, ProducerIdentity, sequence_after
from protocol.producer.partition_producer import PartitionProducer
from protocol.producer.producer_batch import ProducerBatch
from protocol.records.decode import decode
from protocol.records.encode import encode_batches
from protocol.records.memory_records import read_batch_headers
from protocol.records.record_columns import record_columns
from tests.protocol.producer.partition_log import PartitionLog
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

IDENTITY = ProducerIdentity(7, 0)
ENCODE = partial(encode_batches, compression="lz4")
LOST = ConnectionLost("the connection was reset")
WHERE = "broker 1"


def producer(*, identity: ProducerIdentity | None = IDENTITY, retries: int = 2**31 - 1) -> PartitionProducer:
    made = PartitionProducer(
        "t", 0, max_in_flight=5, retries=retries, delivery_timeout_s=10.0, backoff=Backoff(100, 1_000), encode=ENCODE
    )
    if identity is not None:
        made.begin(identity)
    return made


def batch(values: list[int], now_s: float = 0.0) -> ProducerBatch:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % value for value in values], pa.binary())})
    (records,) = ENCODE(record_columns(rows, 0), [len(values)])
    return ProducerBatch("t", 0, records, len(values), now_s)


def values_of(batch: ProducerBatch) -> list[int]:
    chunks = decode(read_batch_headers(batch.records), first_offset=0, end_offset=batch.record_count, check_crc=False)
    return [int(value) for chunk in chunks for value in chunk.column("value").to_pylist()]


def fill(made: PartitionProducer, count: int, rows: int = 10) -> None:
    for number in range(count):
        made.append(batch(list(range(number * rows, (number + 1) * rows))))


def send_all(made: PartitionProducer, now_s: float = 0.0) -> list[ProducerBatch]:
    sent = []
    while (batch := made.next_batch(now_s)) is not None:
        made.sending(batch, leader_id=1, now_s=now_s)
        sent.append(batch)
    return sent


def confirmed(count: int, rows: int = 10) -> tuple[PartitionProducer, list[ProducerBatch]]:
    """Return a producer whose first batch is acknowledged, and its next `count` batches in flight."""
    made = producer()
    fill(made, count + 1, rows)
    (first,) = send_all(made)
    made.written(first, 0)
    return made, send_all(made)


def numbers_of_the_rest(made: PartitionProducer) -> list[int]:
    """Return the sequence numbers of the remaining batches, sent to a broker that accepts all."""
    numbers = []
    while not made.idle:
        for batch in send_all(made, 1e9):
            numbers.append(batch.base_sequence)
            made.written(batch, -1)
    return numbers


def failures_of(made: PartitionProducer) -> list[KafkaError]:
    """Return each failure once, though several record batches may share it."""
    outcomes = [batch.result for batch in made.completed]
    return list(dict.fromkeys(outcome.error for outcome in outcomes if outcome and outcome.error))


class TestSending:
    def test_first_batch_of_an_identity_is_alone_in_flight(self) -> None:
        made = producer()
        fill(made, 3)
        (first,) = send_all(made)
        assert values_of(first)[0] == 0
        made.written(first, 0)
        assert [values_of(batch)[0] for batch in send_all(made)] == [10, 20]

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
        made.append(batch([99]))
        made.refused(sent[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, WHERE, now_s=1.0)
        assert made.next_batch(9.0) is None
        made.refused(sent[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, now_s=1.0)
        assert made.next_batch(9.0) is None
        made.refused(sent[2], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, now_s=1.0)
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

    def test_lost_connection_resends_all_batches_with_the_same_numbers(self) -> None:
        made, sent = confirmed(3)
        for batch in sent:
            made.lost(batch, LOST, 1.0)
        assert all(batch.maybe_written for batch in sent)
        assert numbers_of_the_rest(made) == [10, 20, 30]

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
        made.append(batch([1]))
        (each,) = send_all(made, 100.0)
        made.not_sent(each, LOST, 200.0)
        assert made.due_s(200.0) == pytest.approx(200.1, abs=0.051)


class TestFailures:
    def test_late_copy_of_a_batch_behind_a_failed_one_cannot_take_its_number(self) -> None:
        made, (failed, lost, refused) = confirmed(3, rows=1)
        made.refused(failed, ErrorCode.MESSAGE_TOO_LARGE, WHERE, 0.0)
        made.lost(lost, LOST, 0.0)
        made.refused(refused, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, 0.0)
        assert made.broken_identity == IDENTITY
        made.begin(ProducerIdentity(7, 1))
        assert numbers_of_the_rest(made) == [0, 1]

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
        made.refused(sent[0], ErrorCode.INVALID_RECORD, WHERE, 1.0, "record 3: no key")
        for batch in sent[1:]:
            made.refused(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, 1.0)
        assert numbers_of_the_rest(made) == [10, 20]
        (error,) = failures_of(made)
        assert "10 records to t-0 at broker 1" in str(error)
        assert "record 3: no key" in str(error)
        assert error.context["topic"] == "t"

    def test_unknown_outcome_fails_the_following_batches(self) -> None:
        made, sent = confirmed(3)
        made.refused(sent[0], ErrorCode.UNKNOWN_SERVER_ERROR, WHERE, 1.0)
        assert not made.idle
        for batch in sent[1:]:
            made.refused(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, 1.0)
        (error,) = failures_of(made)
        assert error.context["unknown_records"] == 10
        assert error.context["unwritten_records"] == 20
        assert made.idle
        assert made.sequences is None
        assert made.broken_identity == IDENTITY

    def test_out_of_order_error_for_the_next_number_is_a_truncated_log(self) -> None:
        made, sent = confirmed(1)
        made.refused(sent[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, 1.0)
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
        made.append(batch([1], now_s=0.0))
        made.append(batch([2], now_s=5.0))
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
        for each in sent:
            made.lost(each, LOST, 1.0)
        made.append(batch([99], now_s=9.0))
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
    def test_too_large_batch_is_split_and_keeps_sequence_numbers(self) -> None:
        made, sent = confirmed(2)
        made.refused(sent[0], ErrorCode.MESSAGE_TOO_LARGE, WHERE, 1.0)
        made.refused(sent[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, 1.0)
        halves = send_all(made, 2.0)
        assert [(values_of(halve), halve.base_sequence) for halve in halves] == [
            (list(range(10, 15)), 10),
            (list(range(15, 20)), 15),
        ]
        for halve in halves:
            made.written(halve, 10)
        assert numbers_of_the_rest(made) == [20]

    def test_too_large_record_fails_alone_with_size_and_property(self) -> None:
        made, sent = confirmed(2, rows=1)
        sent[0].records = bytearray(4321)
        made.refused(sent[0], ErrorCode.MESSAGE_TOO_LARGE, WHERE, 1.0)
        made.refused(sent[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, WHERE, 1.0)
        (error,) = failures_of(made)
        assert "4321 bytes" in str(error)
        assert "max.message.bytes" in str(error)
        assert [batch.base_sequence for batch in send_all(made, 2.0)] == [1]


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
            self.made.append(batch(list(range(first, first + rows))))
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

    def test_truncated_log_is_an_error_and_never_a_silent_gap(self) -> None:
        simulation = Simulation([3, 3, 3], lambda n: n - 1, largest=100)
        while len(simulation.acknowledged) < 6:
            simulation.step(11)
        simulation.log.truncate(3)
        simulation.run(steps=10)
        (error,) = failures_of(simulation.made)
        assert "truncated" in str(error)
        assert simulation.log.values == [0, 1, 2]
