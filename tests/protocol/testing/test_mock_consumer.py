"""`MockConsumer`: yields given records and errors, and fails for those that are left."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest

import protocol
from protocol.errors import CommitFailed, NoOffset, UsageError, WakeUp
from protocol.kafka_terms import TopicPartition
from protocol.testing import FakeKafka, MockConsumer
from tests.support.wait_until import wait_until

ORDERS = ("orders", 0)


def test_methods_are_those_of_the_consumer() -> None:
    for name, reference in inspect.getmembers(protocol.KafkaConsumer):
        if not name.startswith("_") and name not in ("client", "config"):
            ours = getattr(MockConsumer, name)
            if inspect.isfunction(reference):
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(reference).parameters), name


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


def test_subscription_to_no_topic_revokes_all_partitions() -> None:
    with MockConsumer() as consumer:
        consumer.yield_records("orders", b"1")
        consumer.subscribe(["orders"])
        assert consumer.poll(0).num_rows == 1
        consumer.subscribe([])
        assert not consumer.poll(0)
        assert consumer.assignment == frozenset()


def test_records_that_were_not_polled_fail_the_with_block() -> None:
    consumer = MockConsumer(max_poll_records=1)
    consumer.yield_records("orders", b"1", b"2")
    consumer.subscribe(["orders"])
    with pytest.raises(AssertionError, match=re.escape("records were not polled (orders-0: 1)")), consumer:
        assert consumer.poll(0).num_rows == 1


def test_exception_of_the_block_is_not_replaced_by_unread_records() -> None:
    consumer = MockConsumer()
    consumer.yield_records("orders", b"1")
    with pytest.raises(ZeroDivisionError), consumer:
        _ = 1 / 0


def test_error_follows_the_records_before_it() -> None:
    with MockConsumer() as consumer:
        consumer.yield_records("orders", b"1")
        consumer.yield_error(protocol.DataLoss("lost"), "orders")
        consumer.yield_records("orders", b"2")
        consumer.assign([ORDERS])
        assert consumer.poll(0).num_rows == 1
        for _ in range(2):
            with pytest.raises(protocol.DataLoss):
                consumer.poll(0)
        consumer.pause([ORDERS])
        assert not consumer.poll(0)
        consumer.resume([ORDERS])
        consumer.seek(ORDERS, 1)
        assert [message.value for message in consumer.poll(0).messages()] == [b"2"]


@pytest.mark.parametrize(("wakes", "at_the_end"), [(False, ["lost 0", "lost 1"]), (True, ["drained", "drained"])])
def test_lasting_errors_of_partitions_take_turns_while_others_are_read(wakes: bool, at_the_end: list[str]) -> None:
    consumer = MockConsumer(wakeup_when_drained=wakes)
    consumer.assign([ORDERS, ("orders", 1), ("orders", 2)])
    consumer.yield_error(protocol.DataLoss("lost 0"), "orders")
    consumer.yield_error(protocol.DataLoss("lost 1"), "orders", 1)
    raised = []
    for number in range(5):
        consumer.yield_records("orders", *[b"1"] * (number == 2), partition=2)
        try:
            raised.append(str(consumer.poll(0).num_rows))
        except protocol.DataLoss as error:
            raised.append(str(error))
        except WakeUp:
            raised.append("drained")
    assert raised == ["lost 0", "lost 1", "1", *at_the_end]


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


def test_error_without_topic_is_raised_by_the_next_poll() -> None:
    with MockConsumer() as consumer:
        consumer.yield_records("orders", b"1")
        consumer.yield_error(ValueError("now"))
        consumer.subscribe(["orders"])
        with pytest.raises(ValueError, match="now"):
            consumer.poll(0)
        assert consumer.poll(0).num_rows == 1


def test_error_that_was_not_polled_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="1 errors were not polled"), MockConsumer() as consumer:
        consumer.yield_error(ValueError("never"))


def test_drained_consumer_wakes_up() -> None:
    with MockConsumer(wakeup_when_drained=True, max_poll_records=1) as consumer:
        consumer.yield_records("orders", b"1", b"2")
        consumer.subscribe(re.compile("ord.*"))
        assert consumer.poll(0).num_rows == 1
        consumer.pause([ORDERS])
        assert not consumer.poll(0)
        consumer.resume([ORDERS])
        assert consumer.poll(0).num_rows == 1
        with pytest.raises(WakeUp):
            consumer.poll(0)


def test_paused_partition_returns_nothing_until_resumed() -> None:
    with MockConsumer() as consumer:
        consumer.yield_records("orders", b"1")
        consumer.assign([ORDERS])
        consumer.pause([ORDERS])
        assert not consumer.poll(0)
        consumer.resume([ORDERS])
        assert consumer.poll(0).num_rows == 1


def test_positions_move_with_poll_and_seek() -> None:
    with MockConsumer() as consumer:
        consumer.yield_records("orders", b"1", b"2", timestamp_ms=7)
        consumer.assign([ORDERS])
        consumer.poll(0)
        assert (consumer.position(ORDERS), consumer.current_lag(ORDERS)) == (2, 0)
        consumer.seek(ORDERS, 1)
        assert [message.offset for message in consumer.poll(0).messages()] == [1]
        consumer.seek_to_beginning()
        assert consumer.position(ORDERS) == 0
        assert (consumer.beginning_offsets([ORDERS]), consumer.end_offsets([ORDERS])) == ({ORDERS: 0}, {ORDERS: 2})
        consumer.seek_to_end()
        offset = consumer.offsets_for_times({ORDERS: 7})[ORDERS]
        assert (offset.offset, offset.timestamp_ms) == (0, 7)
        assert consumer.offsets_for_times({ORDERS: 8}) == {ORDERS: None}
        with pytest.raises(UsageError, match="timestamp of orders-0 is -1"):
            consumer.offsets_for_times({ORDERS: -1})
        with pytest.raises(UsageError, match="other-0 is not assigned"):
            consumer.seek(("other", 0), 1)


class TestCommits:
    def test_expected_commits_in_order_pass(self) -> None:
        with MockConsumer() as consumer:
            consumer.expect_commit({ORDERS: 1})
            consumer.expect_commit({ORDERS: 2})
            consumer.yield_records("orders", b"1", b"2")
            consumer.subscribe(["orders"])
            consumer.poll(0)
            consumer.commit_sync({ORDERS: protocol.CommittedOffset(1)})
            consumer.commit_sync()
            assert consumer.committed([ORDERS]) == {ORDERS: protocol.CommittedOffset(2)}

    def test_missing_commit_fails_the_test(self) -> None:
        consumer = MockConsumer()
        consumer.expect_commit({ORDERS: 2})
        consumer.assign([ORDERS])
        with pytest.raises(AssertionError, match="was not committed; the last offsets were"), consumer:
            consumer.commit_sync({ORDERS: protocol.CommittedOffset(1)})

    def test_commit_fails_once_with_the_given_error(self) -> None:
        with MockConsumer() as consumer:
            consumer.assign([ORDERS])
            consumer.fail_commit(CommitFailed("refused"))
            with pytest.raises(CommitFailed):
                consumer.commit_sync()
            consumer.commit_sync()
            assert consumer.commits == [{ORDERS: protocol.CommittedOffset(0)}]

    def test_callback_of_an_asynchronous_commit_runs_in_the_next_poll(self) -> None:
        called: list[object] = []
        with MockConsumer() as consumer:
            consumer.assign([ORDERS])
            consumer.commit_async(callback=lambda offsets, error: called.append((dict(offsets), error)))
            assert called == []
            consumer.poll(0)
        assert called == [({ORDERS: protocol.CommittedOffset(0)}, None)]


def test_rebalance_revokes_and_assigns_in_the_next_poll() -> None:
    events: list[object] = []

    class Listener(protocol.ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            events.append(("assigned", sorted(partitions)))

        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            events.append(("revoked", sorted(partitions)))

    with MockConsumer() as consumer:
        consumer.yield_records("orders", b"1")
        consumer.subscribe(["orders"], Listener())
        consumer.poll(0)
        before = consumer.group_metadata()
        consumer.rebalance([("orders", 1)])
        consumer.poll(0)
        assert consumer.assignment == {("orders", 1)}
        assert consumer.group_metadata() != before
    assert events == [
        ("assigned", [ORDERS]),
        ("revoked", [ORDERS]),
        ("assigned", [("orders", 1)]),
        ("revoked", [("orders", 1)]),
    ]


def test_exception_of_a_listener_is_raised_once() -> None:
    class Listener(protocol.ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            raise ZeroDivisionError

    consumer = MockConsumer()
    for end in (lambda: consumer.poll(0), consumer.close):
        consumer.yield_records("orders", b"1")
        consumer.rebalance([ORDERS])
        consumer.subscribe(["orders"], Listener())
        consumer.poll(0)
        consumer.rebalance([])
        with pytest.raises(ZeroDivisionError):
            end()
        if end != consumer.close:
            assert consumer.assignment == frozenset()
    consumer.close()


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


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(after_close, id="after close"),
        pytest.param(poll_in_listener, id="poll in a listener"),
        pytest.param(lambda consumer, events: end_in_listener(consumer, events, "close"), id="close in a listener"),
        pytest.param(
            lambda consumer, events: end_in_listener(consumer, events, "unsubscribe"), id="unsubscribe in a listener"
        ),
        pytest.param(failing_listener, id="failing listener"),
        pytest.param(failing_callback, id="failing callback"),
        pytest.param(rebalance_without_subscription, id="rebalance without subscription"),
        pytest.param(
            lambda consumer, events: commits_after_leaving(consumer, events, "unsubscribe"),
            id="commit after unsubscribe",
        ),
        pytest.param(
            lambda consumer, events: commits_after_leaving(consumer, events, "enforce_rebalance"),
            id="commit after enforce_rebalance",
        ),
        pytest.param(impossible_partitions, id="impossible partitions"),
        pytest.param(impossible_times_and_offsets, id="impossible times and offsets"),
        pytest.param(partitions_in_an_iterator, id="partitions in an iterator"),
        pytest.param(numpy_partition, id="a number of NumPy as partition"),
    ],
)
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


def test_impossible_partition_is_refused_where_a_test_gives_it() -> None:
    consumer = MockConsumer()
    for give in (
        lambda: consumer.yield_records("orders", b"1", partition=-1),
        lambda: consumer.yield_error(CommitFailed("no"), "orders", -1),
        lambda: consumer.rebalance([("orders", -1)]),
    ):
        with pytest.raises(UsageError, match="partition of orders is -1"):
            give()


def test_subscribe_and_assign_exclude_each_other() -> None:
    consumer = MockConsumer()
    consumer.assign([ORDERS])
    with pytest.raises(UsageError, match="unsubscribe first"):
        consumer.subscribe(["orders"])
    consumer.unsubscribe()
    consumer.subscribe(["orders"])
    with pytest.raises(UsageError, match="unsubscribe first"):
        consumer.assign([ORDERS])
    consumer.close()
    with pytest.raises(UsageError, match="closed"):
        consumer.poll(0)


def test_only_requested_columns_are_returned() -> None:
    with MockConsumer(columns=["value"]) as consumer:
        consumer.yield_records("orders", b"1")
        consumer.subscribe(["orders"])
        assert consumer.poll(0)[ORDERS][0].schema.names == ["value", "offset"]
