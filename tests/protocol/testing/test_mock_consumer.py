"""`MockConsumer`: yields given records and errors, and fails for those that are left."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection

import pytest

import protocol
from protocol.errors import CommitFailed, UsageError, WakeUp
from protocol.kafka_terms import TopicPartition
from protocol.testing import MockConsumer

ORDERS = ("orders", 0)


def test_methods_are_those_of_the_consumer() -> None:
    for name, reference in inspect.getmembers(protocol.KafkaConsumer):
        if not name.startswith("_") and name not in ("client", "config"):
            ours = getattr(MockConsumer, name)
            if inspect.isfunction(reference):
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(reference).parameters), name


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


def test_impossible_partition_is_refused_where_a_test_gives_it() -> None:
    consumer = MockConsumer()
    for give in (
        lambda: consumer.yield_records("orders", b"1", partition=-1),
        lambda: consumer.yield_error(CommitFailed("no"), "orders", -1),
        lambda: consumer.rebalance([("orders", -1)]),
    ):
        with pytest.raises(UsageError, match="partition of orders is -1"):
            give()


def test_only_requested_columns_are_returned() -> None:
    with MockConsumer(columns=["value"]) as consumer:
        consumer.yield_records("orders", b"1")
        consumer.subscribe(["orders"])
        assert consumer.poll(0)[ORDERS][0].schema.names == ["value", "offset"]
