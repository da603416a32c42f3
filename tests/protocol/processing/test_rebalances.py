"""Partitions that come and go: running handlers are waited for, and late results are dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.kafka_terms import TopicPartition
from protocol.processing.failures import RetryPolicy
from protocol.processing.polled_batch import ConsumerBatch
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from tests.protocol.processing.conftest import (
    COOPERATIVE,
    EAGER,
    KIP_848,
    PROPERTIES,
    Committed,
    Handler,
    Recording,
    Start,
    StartObserved,
    Write,
)
from tests.support.internals import processed_partitions
from tests.support.wait_until import wait_until

NUMBERS = [b"%d" % number for number in range(50)]
KEYS_OF_LANES = (b"a", b"b")
PROTOCOLS = pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE, KIP_848], ids=["eager", "cooperative", "kip848"])


class Other:
    """Another member of the group, which reads nothing."""

    def __init__(self, client: Client, **properties: object) -> None:
        self.consumer = KafkaConsumer(client, {**PROPERTIES, "enable.auto.commit": False, **properties})
        self.owned: frozenset[tuple[str, int]] = frozenset()
        self.first_offsets: dict[int, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self.consumer as consumer:
            consumer.subscribe(["orders"])
            while not self._closing.is_set():
                for message in consumer.poll(20).messages():
                    self.first_offsets.setdefault(message.partition, message.offset)
                self.owned = consumer.assignment

    def close(self) -> None:
        self._closing.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


Join = Callable[..., Other]


@pytest.fixture
def join(client: Client) -> Iterator[Join]:
    made: list[Other] = []

    def create(**properties: object) -> Other:
        made.append(Other(client, **properties))
        return made[-1]

    yield create
    for member in made:
        member.close()


@PROTOCOLS
def test_revocation_waits_for_running_handlers_and_commits(
    write: Write,
    start: Start,
    handler: Handler,
    join: Join,
    committed: Committed,
    protocol: dict[str, object],
) -> None:
    for partition in (0, 1):
        write(NUMBERS, partition=partition)
    release = handler.block(b"3")
    running = start(handler, order="partition", **protocol, **{"auto.commit.interval.ms": 60_000})
    wait_until(lambda: handler.at_once == 2)
    second = join(**protocol)
    time.sleep(0.5)
    assert not second.first_offsets
    release.set()
    wait_until(lambda: second.first_offsets)
    (revoked,) = second.first_offsets
    own = [message.offset for message in handler.begun if message.partition == revoked]
    assert second.first_offsets == {revoked: own[-1] + 1}, "nothing is handled by both, and nothing is left out"
    wait_until(lambda: len([message for message in handler.begun if message.partition != revoked]) == 50)
    assert [message.offset for message in handler.begun if message.partition != revoked] == list(range(50))
    running.close()
    assert committed()[1 - revoked] == 50


@PROTOCOLS
@pytest.mark.parametrize(("order", "batch_size"), [("key", None), ("key", 4), ("none", None)])
def test_no_record_is_handled_again_after_a_revocation(
    write: Write,
    start: Start,
    handler: Handler,
    join: Join,
    protocol: dict[str, object],
    order: str,
    batch_size: int | None,
) -> None:
    """Records before finished ones are handled before the partition is released; others are left to the next member."""
    for partition in (0, 1):
        write(NUMBERS, keys=KEYS_OF_LANES, partition=partition)
    release = [handler.block(b"3"), handler.block(b"30" if order == "none" else b"49")]

    def handle_batch(batch: ConsumerBatch) -> None:
        for message in batch.messages():
            handler(message)

    call = handler if batch_size is None else handle_batch
    running = start(call, order=order, batch_size=batch_size, threads=4, **protocol)
    if order == "none":
        wait_until(lambda: handler.at_once == 4)
    else:
        wait_until(lambda: handler.at_once >= 2 and len(handler.values) >= 50)
    second = join(**protocol)
    time.sleep(0.5)
    for event in release:
        event.set()
    wait_until(lambda: second.owned)
    for partition in (0, 1):  # the released partition may have been handled to its end
        write([b"last"], partition=partition)
    wait_until(lambda: second.first_offsets)
    ((revoked, first_offset),) = second.first_offsets.items()
    own = sorted(message.offset for message in list(handler.begun) if message.partition == revoked)
    assert own == list(range(first_offset))
    assert first_offset > 20
    running.close()


def test_close_during_a_revocation_waits_once_for_handlers(
    write: Write, start: Start, handler: Handler, join: Join
) -> None:
    for partition in (0, 1):
        write(NUMBERS, partition=partition)
    release = handler.block(b"3")
    running = start(handler, order="partition", drain_timeout_ms=3_000, **COOPERATIVE)
    wait_until(lambda: handler.at_once == 2)
    join(**COOPERATIVE)
    wait_until(lambda: len(processed_partitions(running.processor)) == 1)
    began_s = time.monotonic()
    running.close()
    assert time.monotonic() - began_s < 6
    release.set()


@pytest.mark.parametrize("fails", [b"3", b"5"])
def test_records_behind_a_failed_one_are_left_to_the_next_member(
    write: Write, start: Start, handler: Handler, join: Join, fails: bytes
) -> None:
    for partition in (0, 1):
        write(NUMBERS, keys=KEYS_OF_LANES, partition=partition)
    release = handler.block(b"3")
    handler.failing[fails] = ValueError("as if")
    running = start(handler, threads=4, retry=RetryPolicy(retries=1_000), **EAGER)
    wait_until(lambda: handler.at_once == 2 and len(handler.values) >= 50)
    second = join(**EAGER)
    time.sleep(0.5)
    release.set()
    wait_until(lambda: second.first_offsets)
    assert set(second.first_offsets.values()) == {int(fails)}
    running.close()


@PROTOCOLS
def test_results_after_the_limit_are_dropped(
    write: Write,
    start: Start,
    handler: Handler,
    join: Join,
    committed: Committed,
    protocol: dict[str, object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A partition that is assigned again waits for its late handler, so that its records stay in order."""
    for partition in (0, 1):
        write(NUMBERS, partition=partition)
    release = handler.block(b"3")
    start(handler, order="partition", drain_timeout_ms=200, **protocol)
    wait_until(lambda: handler.at_once == 2)
    second = join(**protocol)
    wait_until(lambda: second.first_offsets)
    (revoked,) = second.first_offsets
    assert second.first_offsets == {revoked: 3}
    assert "handlers still run when the partitions are released; their results are dropped" in caplog.text
    time.sleep(0.5)
    assert len(handler.begun) == 8, "no record is handled beside the late ones"
    release.set()
    wait_until(lambda: committed() == {revoked: 3, 1 - revoked: 50}, committed, every_s=0.02)
    retained = [message.offset for message in handler.begun if message.partition != revoked]
    assert retained == list(range(50)) or retained == [*range(4), *range(3, 50)], (
        "a late record is handled again, in order"
    )


def test_failure_in_a_revocation_is_left_to_the_next_owner(
    write: Write, start: Start, handler: Handler, join: Join
) -> None:
    """It is neither retried nor a dead letter."""
    for partition in (0, 1):
        write(NUMBERS, partition=partition)
    release = handler.block(b"3")
    handler.failing[b"3"] = ZeroDivisionError()
    running = start(handler, order="partition", dead_letter_topic="dead", retry=RetryPolicy(retries=0), **EAGER)
    wait_until(lambda: handler.at_once == 2)
    second = join(**EAGER)
    wait_until(lambda: not processed_partitions(running.processor))
    release.set()
    wait_until(lambda: second.first_offsets)
    assert list(second.first_offsets.values()) == [3]


def test_delayed_record_does_not_hold_a_rebalance_up(write: Write, start: Start, handler: Handler, join: Join) -> None:
    for partition in (0, 1):
        write(NUMBERS, partition=partition)
    handler.failing[b"3"] = ZeroDivisionError()
    running = start(handler, order="partition", retry=RetryPolicy(backoff_ms=60_000, backoff_max_ms=60_000), **EAGER)
    wait_until(lambda: running.processor.metrics.retries == 2)
    second = join(**EAGER)
    wait_until(lambda: list(second.first_offsets.values()) == [3])


def test_lost_partitions_are_neither_waited_for_nor_committed(
    fake: FakeKafka,
    write: Write,
    start_observed: StartObserved,
    handler: Handler,
    committed: Committed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(NUMBERS)
    release = handler.block(b"3")
    listener = Recording()
    _, consumer = start_observed(handler, order="partition", listener=listener, **EAGER)
    wait_until(lambda: handler.at_once == 1 and committed() == {0: 3}, committed, every_s=0.02)
    wait_until(lambda: not consumer.commits_in_flight)
    fake.refuse(HEARTBEAT, ErrorCode.ILLEGAL_GENERATION)
    wait_until(lambda: len(listener.calls) == 3, lambda: listener.calls)
    assert listener.calls == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
    assert len(handler.begun) == 4
    assert "offsets were not committed" not in caplog.text
    release.set()
    wait_until(lambda: committed() == {0: 50}, committed, every_s=0.02)
    assert [message.offset for message in handler.begun] == [*range(4), *range(3, 50)]


def test_listener_is_called_after_the_commit(
    write: Write, start: Start, handler: Handler, join: Join, committed: Committed
) -> None:
    for partition in (0, 1):
        write(NUMBERS, partition=partition)
    observed: list[dict[int, int]] = []

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            observed.append(committed())

    start(handler, listener=Listener(), **EAGER, **{"auto.commit.interval.ms": 60_000})
    wait_until(lambda: len(handler.values) == 100)
    join(**EAGER)
    wait_until(lambda: observed)
    assert observed[0] == {0: 50, 1: 50}
