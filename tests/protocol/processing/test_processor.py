"""Handling beside the polling thread: order, commits, back-pressure, and the end."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from protocol import Client, KafkaConsumer, Processor, RetryPolicy
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, ConfigurationError, UsageError
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.faults import ALWAYS
from tests.protocol.consumer.conftest import EAGER
from tests.protocol.consumer.members import Listener
from tests.protocol.processing.conftest import (
    EMPTY,
    MANUAL_COMMIT,
    Committed,
    Handler,
    Running,
    Start,
    StartObserved,
    Write,
)
from tests.support.documents import block
from tests.support.wait_until import wait_until

NUMBERS = [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_every_record_is_handled_once_in_order_while_others_are_handled(
    write: Write, start: Start, committed: Committed, order: str, batch_size: int | None
) -> None:
    for number in (0, 1):
        write(NUMBERS[:60], [b"%d" % key for key in range(6)], number)
    lock, overlap, calls = threading.Lock(), threading.Barrier(2), itertools.count()
    busy: set[object] = set()
    observed: dict[object, list[int]] = defaultdict(list)
    sizes: set[int] = set()

    def place(message: ConsumerMessage) -> object:
        return message.partition, {"key": message.key, "partition": None, "none": message.offset}[order]

    def handle(inputs: Any) -> None:
        messages = [inputs] if batch_size is None else list(inputs.messages())
        places = set(map(place, messages))
        with lock:
            assert not busy & places
            busy.update(places)
            sizes.add(len(messages))
        if next(calls) < 2:
            overlap.wait(30)  # raises if the first two calls are not at the same time
        time.sleep(0.002)
        with lock:
            busy.difference_update(places)
            for message in messages:
                observed[place(message)].append(message.offset)

    running = start(handle, order=order, batch_size=batch_size, threads=4)
    wait_until(lambda: committed() == {0: 60, 1: 60} or running.ended, committed, every_s=0.02)
    assert running.raised is None
    assert all(offsets == sorted(set(offsets)) for offsets in observed.values())
    assert sum(map(len, observed.values())) == 120
    assert (len(observed), max(sizes)) == ({"key": 12, "partition": 2, "none": 120}[order], batch_size or 1)
    wait_until(lambda: running.processor.metrics.handled == 120)


def test_partition_is_paused_when_full_and_resumed_when_half_empty(
    write: Write, start_observed: StartObserved, handler: Handler
) -> None:
    """Two partitions share `max_in_flight`. The timeout of a poll follows from the number of paused ones."""
    first, second = NUMBERS[:4], NUMBERS[4:8]
    for value in (*first, *second):
        handler.block(value)
    write(first[:3])
    _, consumer = start_observed(handler, order="none", threads=8, max_in_flight=8)

    def settled(paused: set[int], timeout_ms: float) -> None:
        polls = consumer.polls
        expected = {("orders", number) for number in paused}
        wait_until(lambda: consumer.polls > polls + 1 and consumer.paused_now == expected, lambda: consumer.paused_now)
        wait_until(lambda: consumer.last_timeout_ms == timeout_ms, lambda: consumer.last_timeout_ms)

    wait_until(lambda: handler.at_blocks == 3)
    settled(set(), 100)
    write(first[3:])
    settled({0}, 10)
    write(second, partition=1)
    settled({0, 1}, 0)
    handler.blocked[first[0]].set()
    wait_until(lambda: len(handler.values) == 1)
    settled({0, 1}, 0)
    handler.blocked[first[1]].set()
    settled({1}, 10)


def test_wakeup_of_a_given_consumer_is_ignored(
    write: Write, start_observed: StartObserved, handler: Handler, committed: Committed
) -> None:
    write(NUMBERS[:5])
    running, consumer = start_observed(handler)
    wait_until(lambda: committed() == {0: 5} | EMPTY, committed, every_s=0.02)
    polls = consumer.polls
    consumer.wakeup()
    wait_until(lambda: consumer.polls > polls + 2)
    write(NUMBERS[5:10])
    wait_until(lambda: committed() == {0: 10} | EMPTY, committed, every_s=0.02)
    assert not running.ended


def test_refused_commit_is_repeated_without_further_records(
    fake: FakeKafka,
    write: Write,
    start: Start,
    handler: Handler,
    committed: Committed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake.refuse("OffsetCommit", ErrorCode.GROUP_AUTHORIZATION_FAILED, ALWAYS)
    write(NUMBERS[:5])
    start(handler)
    wait_until(lambda: "'committed_offset': 5" in str(fake.request_bodies("OffsetCommit")))
    wait_until(lambda: "GROUP_AUTHORIZATION_FAILED" in caplog.text)
    fake.clear_faults()
    wait_until(lambda: committed() == {0: 5} | EMPTY, committed, every_s=0.02)


# -- the end --------------------------------------------------------------------------------------


def test_wait_for_handlers_ends_before_the_poll_interval(write: Write, start: Start, handler: Handler) -> None:
    write(NUMBERS[:1])
    handler.block(NUMBERS[0])
    running = start(handler, drain_timeout_ms=60_000, **{"max.poll.interval.ms": 1_000})
    wait_until(lambda: handler.at_blocks == 1)
    began_s = time.monotonic()
    running.close()
    assert time.monotonic() - began_s < 20


def test_close_waits_for_running_handlers_and_drops_others(
    write: Write, start: Start, handler: Handler, committed: Committed
) -> None:
    write(NUMBERS[:20])
    release = handler.block(b"5")
    running = start(handler, order="partition")
    wait_until(lambda: handler.has_begun(b"5"))
    closing = threading.Thread(target=running.processor.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    release.set()
    closing.join(30)
    assert not closing.is_alive()
    assert running.join() is None
    assert handler.values == NUMBERS[:6]
    assert committed() == {0: 6} | EMPTY


def test_handler_that_does_not_return_is_left_behind(
    write: Write, start: Start, handler: Handler, committed: Committed, caplog: pytest.LogCaptureFixture
) -> None:
    write(NUMBERS[:20], NUMBERS)
    handler.block(b"5")
    running = start(handler, drain_timeout_ms=200)
    wait_until(lambda: len(handler.values) == 19)
    running.close()
    assert committed() == {0: 5} | EMPTY
    assert "orders-0: handlers still run when the partitions are released" in caplog.text


def test_close_before_run_frees_everything(fake: FakeKafka) -> None:
    processor = Processor({"bootstrap.servers": fake.bootstrap_servers, "group.id": "g"}, print, ["orders"])
    processor.close()
    processor.close()
    with pytest.raises(UsageError, match="run or closed before"):
        processor.run()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"order": "keys"}, "order is 'keys'; allowed: key, partition, none"),
        ({"on_failure": "ignore"}, "on_failure is 'ignore'; allowed: stop, skip"),
        ({"threads": 0}, "threads is 0; it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"enable_auto_commit": True}, "enable.auto.commit is true"),
        ({"group_id": None}, "needs group.id"),
        ({"topics": None}, "needs topics"),
        ({"handler": None}, "needs a handler"),
        ({"auto_offset_reset": "sometimes"}, r"auto\.offset\.reset is 'sometimes'"),
        ({"bootstrap_servers": None}, r"bootstrap\.servers is missing"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any], message: str) -> None:
    properties = {"handler": print, "topics": ["orders"], "group_id": "g", "bootstrap_servers": "127.0.0.1:1", **wrong}
    with pytest.raises((UsageError, ConfigurationError), match=message):
        Processor(**{name: value for name, value in properties.items() if value is not None})


# -- several consumers, and a given one -----------------------------------------------------------


@pytest.mark.parametrize(("consumers", "ids"), [(2, {"w-1", "w-2"}), (1, {"w"})])
def test_static_members_have_different_ids(
    fake: FakeKafka, start: Start, handler: Handler, consumers: int, ids: set[str]
) -> None:
    start(handler, consumers=consumers, **{"group.instance.id": "w"})
    wait_until(lambda: {body["group_instance_id"] for body in fake.request_bodies("JoinGroup")} == ids)


def test_several_consumers_share_the_partitions_until_one_fails(
    fake: FakeKafka, write: Write, start: Start, handler: Handler, committed: Committed
) -> None:
    for partition in (0, 1):
        write(NUMBERS, partition=partition)
    listener = Listener()
    running = start(handler, consumers=2, listener=listener, **EAGER)
    wait_until(lambda: committed() == {0: 200, 1: 200}, committed, every_s=0.02)
    wait_until(listener.partitions_are_shared)
    write([b"last"], partition=1)
    wait_until(lambda: b"last" in handler.values)
    # Not once: a request of the assignment before may take the refusal, and its reply is dropped.
    fake.refuse("Fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED, ALWAYS)
    raised = running.join()
    assert isinstance(raised, BrokerError)
    assert raised.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_given_consumer_stays_open_at_the_first_unfinished_record(
    client: Client, write: Write, handler: Handler, committed: Committed
) -> None:
    write(NUMBERS[:20])
    handler.failing[b"7"] = ZeroDivisionError()
    listener = Listener()
    with KafkaConsumer(client, MANUAL_COMMIT) as consumer:
        consumer.subscribe(["orders"], listener)
        processor = Processor(consumer, handler, order="partition", retry=RetryPolicy(retries=0))
        with pytest.raises(ZeroDivisionError), processor:
            processor.run()
        assert listener.events == [("assigned", [0, 1])]
        assert committed() == {0: 7} | EMPTY
        assert consumer.replace_listener(listener) is listener
        wait_until(lambda: (result := list(consumer.poll(100).messages())) and result[0].offset == 7)
    assert listener.events == [("assigned", [0, 1]), ("revoked", [0, 1])]


def test_paused_partitions_of_a_given_consumer_are_resumed_at_the_end(
    write: Write, start_observed: StartObserved, handler: Handler
) -> None:
    write(NUMBERS[:20])
    handler.block(NUMBERS[0])
    running, consumer = start_observed(handler, order="partition", max_in_flight=4, drain_timeout_ms=50)
    wait_until(lambda: consumer.paused_now == {("orders", 0)})
    running.close()
    assert consumer.paused == frozenset()
    wait_until(lambda: (result := list(consumer.poll(100).messages())) and result[0].offset == 0)


def test_listener_of_the_processor_replaces_that_of_a_given_consumer(
    client: Client, write: Write, handler: Handler
) -> None:
    write(NUMBERS[:1])
    recording, own = Listener(), Listener()
    with KafkaConsumer(client, MANUAL_COMMIT) as consumer:
        consumer.subscribe(["orders"], recording)
        running = Running(Processor(consumer, handler, listener=own))
        wait_until(lambda: handler.values)
        running.close()
    assert own.events == [("assigned", [0, 1])]
    assert recording.events == [("revoked", [0, 1])], "it is the consumer's again"


def test_given_consumer_has_conditions(client: Client) -> None:
    with KafkaConsumer(client, {"group.id": "g", "enable.auto.commit": False}) as consumer:
        with pytest.raises(UsageError, match="not subscribed to topics; give topics"):
            Processor(consumer, print)
        with pytest.raises(UsageError, match="consumers must be 1"):
            Processor(consumer, print, ["orders"], consumers=2)
        consumer.subscribe(["orders"])
        with pytest.raises(UsageError, match="leave out topics"):
            Processor(consumer, print, ["orders"])
    consumer = KafkaConsumer(client, {"group.id": "g"})
    with consumer, pytest.raises(UsageError, match=r"enable\.auto\.commit is true"):
        Processor(consumer, print, ["orders"])


def test_example_of_the_page_runs(fake: FakeKafka, write: Write, committed: Committed) -> None:
    write([b"1", b"2", b"3", b"4"])
    names: dict[str, Any] = {"bootstrap_servers": fake.bootstrap_servers, "topic": "orders", "dead_letters": "dead"}
    exec(block("processing.md", "processor = Processor(").text, names)
    assert sorted(value for *_, value in names["handled"]) == [b"1", b"2", b"3", b"4"]
