"""`MockConsumer` returns and raises the same as a real consumer after the same calls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest

import protocol
from protocol.errors import CommitFailed, NoOffset, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.testing import FakeKafka, MockConsumer
from tests.support.wait_until import wait_until

ORDERS = ("orders", 0)


def test_batches_equal_those_of_a_real_consumer() -> None:
    fields = {"key": b"k", "headers": [("h", b"1"), ("n", None)], "timestamp_ms": 5}
    with FakeKafka() as kafka, MockConsumer() as mock:
        kafka.create_topic("orders")
        kafka.produce("orders", b"1", None, **fields)
        mock.yield_records("orders", b"1", None, **fields)
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        with protocol.KafkaConsumer(properties) as real:
            collected = []
            for consumer in (real, mock):
                consumer.subscribe(["orders"])
                polled: list[protocol.consumer.consumer_records.ConsumerRecords] = []
                wait_until(lambda: polled.append(consumer.poll(100)) or polled[-1])  # noqa: B023
                collected.append(polled[-1][ORDERS][0])
    assert collected[0].equals(collected[1])
    assert collected[0].schema == collected[1].schema


def test_partition_without_an_offset_holds_up_others_until_seek_as_with_a_real_consumer() -> None:
    other = ("orders", 1)

    def use(consumer: Any) -> list[object]:
        events: list[object] = []

        def poll(count: int) -> None:
            for _ in range(count):
                try:
                    events.append(consumer.poll(100).num_rows)
                except NoOffset:
                    events.append("no offset")

        consumer.assign([ORDERS, other])
        wait_until(lambda: poll(1) or "no offset" in events)
        poll(2)
        consumer.pause([other])
        poll(2)
        consumer.seek(other, 0)
        wait_until(lambda: poll(1) or 1 in events)
        return events[events.index("no offset") :][:5]

    with FakeKafka() as kafka, MockConsumer() as mock:
        kafka.create_topic("orders", 2)
        kafka.produce("orders", b"1", partition=0)
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "auto.offset.reset": "none", "group.id": "g"}
        with protocol.KafkaConsumer(properties) as real:
            real.commit_sync({ORDERS: 0})
            expected = use(real)
        mock.yield_records("orders", b"1")
        mock.yield_error(NoOffset("none"), *other)
        assert use(mock) == expected


class Acting(protocol.ConsumerRebalanceListener):
    """Notes its calls, and does something in one of them."""

    def __init__(self, events: list[object], method: str, action: Callable[[], object]) -> None:
        self._events, self._method, self._action = events, method, action

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note("assigned")

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note("revoked")

    def _note(self, method: str) -> None:
        self._events.append(method)
        if method == self._method:
            self._events.append(outcome(self._action))


def outcome(call: Callable[..., object], *arguments: object) -> str:
    """Return the error of a call as text; empty without one. An error of a division is raised."""
    try:
        call(*arguments)
    except UsageError as error:
        return str(error)
    return ""


def fail(*_: object) -> None:
    raise ZeroDivisionError


def poll_until(consumer: Any, is_done: Callable[[], object]) -> None:
    wait_until(lambda: consumer.poll(20) is not None and is_done())


def after_close(consumer: Any, events: list[object]) -> None:
    consumer.assign([ORDERS])
    consumer.close()
    calls: list[tuple[Any, ...]] = [("seek", ORDERS, 1), ("offsets_for_times", {ORDERS: 1}), ("poll", 0)]
    calls += [(name, ORDERS) for name in ("position", "current_lag")]
    calls += [(name, [ORDERS]) for name in ("assign", "pause", "committed", "beginning_offsets", "end_offsets")]
    calls += [(name,) for name in ("positions", "seek_to_end", "group_metadata", "commit_sync", "commit_async")]
    calls += [(name,) for name in ("unsubscribe", "enforce_rebalance")]
    events += [(name, outcome(getattr(consumer, name), *arguments)) for name, *arguments in calls]
    for name in ("assignment", "paused", "subscription", "recreations"):
        events.append((name, outcome(getattr, consumer, name)))


def poll_in_listener(consumer: Any, events: list[object]) -> None:
    consumer.subscribe(["orders"], Acting(events, "assigned", lambda: consumer.poll(0)))
    poll_until(consumer, lambda: consumer.assignment)


def end_in_listener(consumer: Any, events: list[object], name: str) -> None:
    consumer.subscribe(["orders"], Acting(events, "revoked", getattr(consumer, name)))
    poll_until(consumer, lambda: consumer.assignment)
    consumer.unsubscribe()
    events.append(outcome(consumer.poll, 0))


def failing_listener(consumer: Any, events: list[object]) -> None:
    consumer.subscribe(["orders"], Acting(events, "revoked", fail))
    poll_until(consumer, lambda: consumer.assignment)
    consumer.commit_async({ORDERS: 1}, lambda *_: events.append("committed"))
    with pytest.raises(ZeroDivisionError):
        consumer.unsubscribe()
    consumer.assign([ORDERS])
    events.append((consumer.subscription, consumer.position(ORDERS)))


def failing_callback(consumer: Any, events: list[object]) -> None:
    consumer.assign([ORDERS])
    consumer.commit_async({ORDERS: 1}, fail)
    consumer.commit_async({ORDERS: 2}, lambda *_: events.append("committed"))
    with pytest.raises(ZeroDivisionError):
        poll_until(consumer, lambda: events)
    poll_until(consumer, lambda: events)


def rebalance_without_subscription(consumer: Any, events: list[object]) -> None:
    consumer.assign([ORDERS])
    consumer.enforce_rebalance()
    events.append(consumer.assignment)


def commits_after_leaving(consumer: Any, events: list[object], name: str) -> None:
    def commit(offset: int | None = 1) -> None:
        try:
            consumer.commit_sync(None if offset is None else {ORDERS: offset})
            events.append(consumer.committed([ORDERS]))
        except CommitFailed as error:
            events.append(str(error).partition(": ")[2])

    consumer.subscribe(["orders"], Acting(events, "revoked", commit))
    commit()
    getattr(consumer, name)()
    commit()  # it has not joined
    consumer.subscribe(["orders"], Acting(events, "revoked", lambda: commit(2)))
    poll_until(consumer, lambda: consumer.assignment)
    getattr(consumer, name)()
    commit(3)
    commit(None)
    consumer.commit_async({ORDERS: 4}, lambda _, error: events.append(type(error)))
    commit(5)  # calls no callback, since it fails
    consumer.subscribe(["orders"])
    commit(6)
    poll_until(consumer, lambda: consumer.assignment)
    commit(7)
    consumer.unsubscribe()
    consumer.assign([ORDERS])
    commit(8)


def impossible_partitions(consumer: Any, events: list[object]) -> None:
    consumer.assign([ORDERS])
    for key in (("orders", "0"), ("orders", 0.0), ("orders", -1), (1, 0), ("orders", 0, 1), "orders", None):
        calls: list[tuple[Any, ...]] = [("seek", key, 0), ("offsets_for_times", {key: 1}), ("commit_sync", {key: 1})]
        calls += [(name, key) for name in ("position", "current_lag")]
        calls += [(name, [key]) for name in ("assign", "pause", "resume", "seek_to_beginning", "seek_to_end")]
        calls += [(name, [key]) for name in ("committed", "beginning_offsets", "end_offsets")]
        events += [(name, outcome(getattr(consumer, name), *arguments)) for name, *arguments in calls]
    for name in ("pause", "resume", "seek_to_end", "committed", "beginning_offsets", "end_offsets"):
        events.append((name, outcome(getattr(consumer, name), ORDERS)))


def impossible_times_and_offsets(consumer: Any, events: list[object]) -> None:
    consumer.assign([ORDERS])
    for number in (1.0, -1, None, "5", 1 << 63):
        events.append(outcome(consumer.offsets_for_times, {ORDERS: number}))
        events.append(outcome(consumer.seek, ORDERS, number))
    for times in (ORDERS, [ORDERS], "orders", None):
        events += [outcome(consumer.offsets_for_times, times), outcome(consumer.commit_sync, times or 1)]


def partitions_in_an_iterator(consumer: Any, events: list[object]) -> None:
    consumer.assign(iter([ORDERS]))
    consumer.pause(iter([ORDERS]))
    events.append(consumer.paused)
    consumer.resume(iter([ORDERS]))
    events.append(consumer.paused)


def numpy_partition(consumer: Any, events: list[object]) -> None:
    key = ("orders", np.int64(0))
    consumer.assign([key])
    consumer.pause([key])
    results = [consumer.committed([key]), consumer.end_offsets([key]), consumer.offsets_for_times({key: 0})]
    events += [type(partition) for keys in (consumer.assignment, consumer.paused, *results) for _, partition in keys]


def subscribe_and_assign(consumer: Any, events: list[object]) -> None:
    consumer.assign([ORDERS])
    events.append(outcome(consumer.subscribe, ["orders"]))
    consumer.unsubscribe()
    consumer.subscribe(["orders"])
    events.append(outcome(consumer.assign, [ORDERS]))


SEQUENCES: dict[str, Callable[[Any, list[object]], None]] = {
    "after close": after_close,
    "subscribe and assign": subscribe_and_assign,
    "poll in a listener": poll_in_listener,
    "close in a listener": lambda consumer, events: end_in_listener(consumer, events, "close"),
    "unsubscribe in a listener": lambda consumer, events: end_in_listener(consumer, events, "unsubscribe"),
    "failing listener": failing_listener,
    "failing callback": failing_callback,
    "rebalance without subscription": rebalance_without_subscription,
    "commit after unsubscribe": lambda consumer, events: commits_after_leaving(consumer, events, "unsubscribe"),
    "commit after enforce_rebalance": lambda consumer, events: commits_after_leaving(
        consumer, events, "enforce_rebalance"
    ),
    "impossible partitions": impossible_partitions,
    "impossible times and offsets": impossible_times_and_offsets,
    "partitions in an iterator": partitions_in_an_iterator,
    "a number of NumPy as partition": numpy_partition,
}


@pytest.mark.parametrize("use", SEQUENCES.values(), ids=SEQUENCES)
def test_sequence_of_calls_ends_as_with_a_real_consumer(use: Callable[[Any, list[object]], None]) -> None:
    expected: list[object] = []
    events: list[object] = []
    with FakeKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", b"1")
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "auto.offset.reset": "earliest"}
        with protocol.KafkaConsumer({**properties, "group.id": "g", "enable.auto.commit": False}) as real:
            use(real, expected)
    mock = MockConsumer()
    mock.yield_records("orders", b"1")
    use(mock, events)
    mock.close()
    assert events == expected
