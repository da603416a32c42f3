"""A partition's queue against a model broker: each record is written once and in order, or reported."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.broker_errors import ErrorCode
from protocol.producer.idempotence import ProducerIdentity
from protocol.producer.producer_batch import ProducerBatch
from tests.protocol.producer.partition_log import LOST, WHERE, PartitionLog, batch_of, failures_of, producer, values_of
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak


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

    def test_truncated_log_is_an_error_and_never_a_silent_gap(self) -> None:
        simulation = Simulation([3, 3, 3], lambda n: n - 1, largest=100)
        while len(simulation.acknowledged) < 6:
            simulation.step(11)
        simulation.log.truncate(3)
        simulation.run(steps=10)
        (error,) = failures_of(simulation.made)
        assert "truncated" in str(error)
        assert simulation.log.values == [0, 1, 2]
