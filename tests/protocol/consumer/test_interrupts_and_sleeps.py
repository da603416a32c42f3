"""Members interrupted during a rebalance, members that sleep for long, and claims paused by other threads."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from protocol.base.clock import SYSTEM_CLOCK
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.consumer.assigned_partitions import AssignedPartitions
from protocol.consumer.consumer_group import ConsumerGroup
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.consumer.group_consumer_config import parse_group_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, KafkaError, UsageError, WakeUp
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.group.membership.assignment import Assignment, EndReason
from protocol.group.membership.membership import LEAVE_MS, Membership
from protocol.kafka_terms import TopicPartition
from protocol.position import RecordPositions
from protocol.testing.fake_kafka import consumer_group as fake_consumer_group
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.consumer.members import IdleHandler, Member, read
from tests.protocol.fetch.consuming import client_of
from tests.support.forked_child import check_in_child
from tests.support.internals import membership_of, partitions_of
from tests.support.interrupts import interrupted_at
from tests.support.small_cluster import END, SmallCluster
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

ALL = sorted((number, offset) for number in range(2) for offset in range(END))
BOTH = {("orders", 0), ("orders", 1)}
Read = tuple[TopicPartition, pa.RecordBatch, RecordPositions] | None


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    monkeypatch.setattr(fake_consumer_group, "HEARTBEAT_INTERVAL_MS", 100)
    with SmallCluster() as fake:
        yield fake


@pytest.fixture
def client(fake: SmallCluster) -> Iterator[Client]:
    with client_of(fake.bootstrap_servers) as client:
        yield client


def consumer_of(client: Client, protocol: dict[str, object]) -> KafkaConsumer:
    properties = {"group.id": "etl", "auto.offset.reset": "earliest", "enable.auto.commit": False, **protocol}
    return KafkaConsumer(client, parse_group_consumer(properties))


def sleep(fake: SmallCluster, membership: Membership) -> Callable[[], None]:
    """Simulate a long sleep: the coordinator must confirm the assignment, and does when the result is called."""
    answering = threading.Event()
    fake.before[CONSUMER_GROUP_HEARTBEAT] = lambda body: answering.wait(20)
    with membership.changed:
        membership.machine.suspect_lost(EndReason("this process was suspended"), SYSTEM_CLOCK.now_s())
    return answering.set


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE, KIP_848], ids=["eager", "cooperative", "kip848"])
def test_partitions_are_read_after_an_interrupt_during_their_assignment(
    client: Client, protocol: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    poll_rebalance, interrupted = Membership.poll_rebalance, []

    def interrupt(membership: Membership, *arguments: object) -> Assignment:
        assignment = poll_rebalance(membership, *arguments)  # type: ignore[arg-type]
        if assignment.added and not interrupted:
            interrupted.append(assignment)
            raise KeyboardInterrupt
        return assignment

    monkeypatch.setattr(Membership, "poll_rebalance", interrupt)
    with consumer_of(client, protocol) as consumer:
        consumer.subscribe(["orders"])
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(20_000)
        assert sorted(read(consumer, 2 * END)) == ALL
        assert consumer.assignment == BOTH
        assert consumer.group_metadata().member == interrupted[0].member


def test_poll_sleeps_while_the_group_waits_for_another_member(client: Client) -> None:
    with consumer_of(client, EAGER) as consumer, consumer_of(client, EAGER) as joining:
        consumer.subscribe(["orders"])
        read(consumer, 2 * END)
        joining.subscribe(["orders"])
        joining.poll(100)
        began_s = time.thread_time()
        assert not joining.poll(1_000)
        assert time.thread_time() - began_s < 0.4, "of a second"


def rows_of(polled: ConsumerRecords) -> list[tuple[int, int]]:
    batches = [(key[1], batch) for key, several in polled.items() for batch in several]
    return [(partition, offset) for partition, batch in batches for offset in batch["offset"].to_pylist()]


class Boom(Exception):
    pass


@pytest.mark.timeout(30)
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "wakes up"])
def test_signal_handler_within_a_wakeup_blocks_no_later_one(client: Client, raises: bool) -> None:
    def handle(*_: object) -> None:
        if raises:
            raise Boom
        consumer.wakeup()

    with consumer_of(client, {}) as consumer:
        consumer.assign(BOTH)
        place, reached = 1, True
        while reached:
            consumer.wakeup()
            with suppress(WakeUp, Boom), interrupted_at(place, ("threading",), signal.SIGUSR1, handle) as was_reached:
                consumer.poll(0)
            reached = was_reached()
            thread = threading.Thread(target=consumer.wakeup, daemon=True)
            thread.start()
            thread.join(5)
            assert not thread.is_alive(), place
            with pytest.raises(WakeUp):
                consumer.poll(0)
            place += 1
    assert place > 3


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "returns"])
@pytest.mark.parametrize("call", ["close", "commit_sync"])
def test_signal_handler_commits_no_record_that_poll_has_not_returned(raises: bool, call: str) -> None:
    """A program that exits in its signal handler must find these records in its next run."""

    def handle(*_: object) -> None:
        handled.append(refused := [])
        try:
            getattr(consumer, call)()
        except UsageError as error:
            refused.append(error)
        if raises:
            raise SystemExit

    def both_are_fetched() -> bool:
        return all(partitions_of(consumer)[key].buffer.ahead for key in BOTH)

    with SmallCluster() as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "auto.offset.reset": "earliest"}
        place, reached, refusals = 1, True, 0
        while reached:
            consumer = KafkaConsumer({**properties, "group.id": f"etl-{place}", "enable.auto.commit": call == "close"})
            consumer.assign(BOTH)
            assert consumer.position(("orders", 0)) == consumer.position(("orders", 1)) == 0
            wait_until(both_are_fetched)
            polled, handled = ConsumerRecords({}), list[list[UsageError]]()
            where = ("protocol.fetch", "protocol.consumer")
            with suppress(SystemExit, UsageError), interrupted_at(place, where, signal.SIGUSR1, handle) as was_reached:
                polled = consumer.poll(1_000)
            reached = was_reached()
            refusals += len([refused for refused in handled if refused])
            committed = kafka.committed_offsets(f"etl-{place}")
            for partition in range(2):
                until = max([-1, *(offset for number, offset in rows_of(polled) if number == partition)]) + 1
                assert committed.get(("orders", partition), 0) <= until, place
            consumer.close()
            place += 1 if SOAK and raises and call == "close" else 7
    assert place > 100, "poll was interrupted"
    assert (refusals > 0) == (call == "commit_sync")


@pytest.mark.parametrize("protocol", [EAGER, KIP_848], ids=["classic", "consumer"])
def test_signal_handler_within_a_poll_may_only_close_the_consumer(
    client: Client, fake: SmallCluster, protocol: dict[str, object]
) -> None:
    def handle(*_: object) -> None:
        with ThreadPoolExecutor(1) as executor:
            errors.append(executor.submit(consumer.poll, 0).exception())
        with pytest.raises(UsageError, match="a signal handler"):
            consumer.commit_sync()
        consumer.close()

    errors: list[BaseException | None] = []
    consumer = consumer_of(client, protocol)
    consumer.subscribe(["orders"])
    read(consumer, 2 * END)
    former = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    began_s = time.monotonic()
    assert not consumer.poll(60_000)
    assert time.monotonic() - began_s < LEAVE_MS / 1000
    signal.signal(signal.SIGALRM, former)
    assert isinstance(errors[0], UsageError)
    bodies = [body for name, _, body in fake.requests if name == "LeaveGroup" or body.get("member_epoch", 0) < 0]
    assert len(bodies) == 1
    with pytest.raises(UsageError, match="closed"):
        consumer.poll(0)


def test_interrupted_group_can_be_closed_by_another_thread(client: Client) -> None:
    stop = threading.Event()
    stop.set()
    consumer_config = parse_group_consumer({"group.id": "etl", "auto.offset.reset": "earliest"})
    with ThreadPoolExecutor(1) as executor:
        place, reached = 1, True
        while reached:
            group = ConsumerGroup(client, consumer_config)
            code = ("protocol.consumer", "protocol.base.condition", "contextlib")
            with suppress(KeyboardInterrupt), interrupted_at(place, code) as was_reached:
                group.consume(["orders"], IdleHandler(), stop)
            reached = was_reached()
            executor.submit(group.close).result(20)
            assert group.closed
            place += 1


class BlockingHandler(IdleHandler):
    """Marks records; waits at offset 3 of both partitions until `release` is set, and longer in those of `slow`."""

    def __init__(self) -> None:
        self.release, self.blocked = threading.Event(), dict[int, ConsumerGroupClaim]()
        self.slow = set[int]()
        self.handled = Counter[int]()
        self.cleanups = 0

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        for message in claim.messages():
            if message.offset == 3:
                self.blocked[claim.partition] = claim
                self.release.wait(20)
                time.sleep(0.5 if claim.partition in self.slow else 0)
            self.handled[claim.partition] += 1
            session.mark_message(message)

    def cleanup(self, session: ConsumerGroupSession) -> None:
        self.cleanups += 1


def interrupt_main(times: int) -> None:
    for _ in range(times):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.3)


def claim_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("claim ")]


@pytest.mark.parametrize("times", [1, 2])
def test_end_of_a_session_is_completed_after_interrupts(fake: SmallCluster, client: Client, times: int) -> None:
    handler, stop = BlockingHandler(), threading.Event()

    def end() -> None:
        wait_until(lambda: len(handler.blocked) == 2)
        stop.set()
        time.sleep(0.3)
        interrupt_main(times)
        handler.release.set()

    properties = {"group.id": "etl", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 60_000, **EAGER}
    with ConsumerGroup(client, parse_group_consumer(properties)) as group, ThreadPoolExecutor(1) as executor:
        ended = executor.submit(end)
        with pytest.raises(KeyboardInterrupt):
            group.consume(["orders"], handler, stop)
        ended.result(20)
        group.close()
        assert handler.cleanups == 1
        assert not claim_threads()
        assert fake.committed_offsets("etl") == {("orders", number): handler.handled[number] for number in range(2)}


def test_close_of_another_thread_waits_for_handlers_after_interrupts(fake: SmallCluster, client: Client) -> None:
    handler = BlockingHandler()

    def end() -> None:
        wait_until(lambda: len(handler.blocked) == 2)
        closing.append(closer.submit(group.close))
        time.sleep(0.3)
        interrupt_main(2)
        handler.release.set()

    closing = list[Future[None]]()
    properties = {"group.id": "etl", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 60_000, **EAGER}
    group = ConsumerGroup(client, parse_group_consumer(properties))
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as closer:
        ended = executor.submit(end)
        with pytest.raises(KeyboardInterrupt):
            group.consume(["orders"], handler)
        ended.result(20)
        closing[0].result(20)
        assert handler.cleanups == 1
        assert not claim_threads()
        assert fake.committed_offsets("etl") == {("orders", number): handler.handled[number] for number in range(2)}


def test_group_consumes_again_after_a_callback_for_a_refused_last_commit_has_raised(
    fake: SmallCluster, client: Client
) -> None:
    def raise_it(error: KafkaError) -> None:
        raise error

    def consume(stop: threading.Event) -> None:
        handled = handler.handled.total()
        executor.submit(lambda: wait_until(lambda: handler.handled.total() == handled + 2 * END) or stop.set())
        group.consume(["orders"], handler, stop)

    handler = BlockingHandler()
    handler.release.set()
    properties = {"group.id": "etl", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 60_000}
    with (
        ConsumerGroup(client, parse_group_consumer(properties), on_error=raise_it) as group,
        ThreadPoolExecutor(1) as executor,
    ):
        fake.refuse(OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(CommitFailed):
            consume(threading.Event())
        consume(threading.Event())
    assert fake.committed_offsets("etl") == dict.fromkeys(BOTH, END)
    assert handler.cleanups == 2


def test_marked_offsets_are_committed_after_an_interrupt_anywhere_in_their_commit(
    fake: SmallCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, place, reached = ConsumerGroupSession.commit_marked, 1, True

    def interrupted(session: ConsumerGroupSession, *arguments: Any, **named: Any) -> None:
        nonlocal reached
        monkeypatch.setattr(ConsumerGroupSession, "commit_marked", commit)
        code = (
            "protocol.consumer",
            "protocol.group.commits.offset_manager",
            "protocol.base.condition",
            "protocol.base.interrupts",
        )
        with interrupted_at(place, code, handler=None) as was_reached:
            try:
                commit(session, *arguments, **named)
            finally:
                reached = was_reached()

    while reached:
        handler, stop = BlockingHandler(), threading.Event()
        handler.release.set()
        properties = {"group.id": f"etl-{place}", "auto.offset.reset": "earliest", **EAGER}
        properties["auto.commit.interval.ms"] = 60_000
        monkeypatch.setattr(ConsumerGroupSession, "commit_marked", interrupted)
        with ConsumerGroup(client, parse_group_consumer(properties)) as group, ThreadPoolExecutor(1) as executor:
            executor.submit(lambda: wait_until(lambda: handler.handled.total() == 2 * END) or stop.set())  # noqa: B023
            with suppress(KeyboardInterrupt):
                group.consume(["orders"], handler, stop)
        assert fake.committed_offsets(f"etl-{place}") == dict.fromkeys(BOTH, END), place
        place += 1 if SOAK else 7
    assert place > 60, "the commit was interrupted"


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE, KIP_848], ids=["eager", "cooperative", "kip848"])
def test_handlers_of_revoked_claims_are_awaited_after_an_interrupt(
    fake: SmallCluster, client: Client, protocol: dict[str, object]
) -> None:
    handler = BlockingHandler()

    def end() -> None:
        wait_until(lambda: len(handler.blocked) == 2)
        joining.subscribe(["orders"])
        joining.poll(0)
        wait_until(lambda: any(claim.revoked for claim in handler.blocked.values()))
        handler.slow = {number for number, claim in handler.blocked.items() if claim.revoked}
        time.sleep(0.1)
        interrupt_main(1)
        handler.release.set()

    properties = {"group.id": "etl", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 60_000, **protocol}
    with (
        consumer_of(client, protocol) as joining,
        ConsumerGroup(client, parse_group_consumer(properties)) as group,
        ThreadPoolExecutor(1) as executor,
    ):
        ended = executor.submit(end)
        with pytest.raises(KeyboardInterrupt):
            group.consume(["orders"], handler)
        ended.result(20)
        assert handler.cleanups == 1
        assert not claim_threads()
        assert fake.committed_offsets("etl") == {("orders", number): handler.handled[number] for number in range(2)}


def test_session_ends_after_an_interrupted_start_of_a_claim(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    start, handler = threading.Thread.start, BlockingHandler()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name.startswith("claim "):
            monkeypatch.undo()
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    handler.release.set()
    properties = {"group.id": "etl", "auto.offset.reset": "earliest"}
    with ConsumerGroup(client, parse_group_consumer(properties)) as group:
        with pytest.raises(KeyboardInterrupt):
            group.consume(["orders"], handler)
        assert handler.cleanups == 1


@pytest.mark.parametrize("when", ["before the poll", "within the poll"])
def test_poll_returns_no_records_while_the_assignment_is_unconfirmed(
    fake: SmallCluster, client: Client, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer_of(client, KIP_848) as consumer:
        consumer.subscribe(["orders"])
        wait_until(lambda: consumer.poll(0) or len(consumer.assignment) == 2)
        membership, answer, poll = membership_of(consumer), list[Callable[[], None]](), AssignedPartitions.poll
        consumer.seek_to_beginning()
        if when == "before the poll":
            answer.append(sleep(fake, membership))

        def asleep(partitions: AssignedPartitions, timeout_ms: float, max_rows: int | None) -> Read:
            read = poll(partitions, timeout_ms, max_rows)
            if read is not None and not answer:
                answer.append(sleep(fake, membership))
            return read

        monkeypatch.setattr(AssignedPartitions, "poll", asleep)
        assert not consumer.poll(1_000)
        assert membership.assignment_lost is not None
        answer[0]()
        assert sorted(read(consumer, 2 * END)) == ALL


def test_claim_yields_no_records_while_the_assignment_is_unconfirmed(fake: SmallCluster, client: Client) -> None:
    observed: list[tuple[int, int]] = []
    waiting, suspected = threading.Barrier(3), threading.Event()

    class Handler:
        def setup(self, session: ConsumerGroupSession) -> None:
            pass

        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            waiting.wait(20)
            assert suspected.wait(20)
            assert claim.poll(500) is None
            waiting.wait(20)
            observed.extend((message.partition, message.offset) for message in claim.messages())

        def cleanup(self, session: ConsumerGroupSession) -> None:
            pass

    properties = {"group.id": "etl", "auto.offset.reset": "earliest", **KIP_848}
    with ConsumerGroup(client, parse_group_consumer(properties)) as group:
        consuming = threading.Thread(target=group.consume, args=(["orders"], Handler()))
        consuming.start()
        waiting.wait(20)
        answer = sleep(fake, membership_of(group))
        suspected.set()
        waiting.wait(20)
        answer()
        wait_until(lambda: sorted(observed) == ALL)
    consuming.join(25)
    assert not consuming.is_alive()


def test_pausing_all_claims_in_a_rebalance_succeeds(
    client: Client, fake: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread pauses a claim that is dropped meanwhile."""
    member = Member(client, "etl", "orders", **KIP_848)
    try:
        wait_until(lambda: len(member.claimed) == 2)
        partitions = partitions_of(member.group)
        first = next(iter(partitions.consumers.values()))
        pause = first.pause

        def dropped_meanwhile() -> None:
            partitions.drop(BOTH)
            pause()

        monkeypatch.setattr(first, "pause", dropped_meanwhile)
        member.group.pause_all()
        member.group.resume_all()
    finally:
        member.close()


def test_close_without_a_deadline_ends(client: Client) -> None:
    consumer = consumer_of(client, EAGER)
    consumer.subscribe(["orders"])
    assert consumer.poll(math.inf)
    consumer.commit_sync(timeout_ms=math.inf)
    consumer.close(timeout_ms=math.inf)


@pytest.mark.parametrize("use", ["poll", "position", "current_lag", "commit_sync"])
def test_consumer_is_refused_in_a_forked_child_after_its_first_use(client: Client, use: str) -> None:
    """Only the thread that forks exists in the child: others had been about to fetch and to commit."""
    with consumer_of(client, {}) as unused, consumer_of(client, {}) as consumer:
        consumer.assign(BOTH)
        if use == "commit_sync":
            consumer.commit_sync({("orders", 0): CommittedOffset(0)})
        else:
            getattr(consumer, use)(0 if use == "poll" else ("orders", 0))

        def check() -> None:
            assert unused.assignment == frozenset()
            with pytest.raises(UsageError, match="before a fork"):
                consumer.poll(0)
            with pytest.raises(UsageError, match="before a fork"):
                consumer.close()

        check_in_child(check)
        assert consumer.position(("orders", 0)) >= 0


@pytest.mark.parametrize("place", ["listener", "callback"])
def test_consumer_is_refused_in_a_child_forked_within_a_call(client: Client, place: str) -> None:
    def check() -> None:
        for call in (consumer.close, partial(consumer.poll, 0)):
            with pytest.raises(UsageError, match="before a fork"):
                call()

    class Forks(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            check_in_child(check)
            checked.append(1)

    def on_commit(offsets: object, error: object) -> None:
        check_in_child(check)
        checked.append(1)

    checked: list[int] = []
    with consumer_of(client, EAGER) as consumer:
        consumer.subscribe(["orders"], Forks() if place == "listener" else None)
        read(consumer, 2 * END)
        if place == "callback":
            consumer.commit_async({("orders", 0): CommittedOffset(1)}, on_commit)
            wait_until(lambda: consumer.poll(10) is not None and checked)
        assert checked == [1]


def test_group_is_refused_in_a_forked_child_while_the_parent_consumes(client: Client) -> None:
    class Waiting(IdleHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            consuming.set()
            session.ended.wait(20)

    consuming, stop = threading.Event(), threading.Event()
    group = ConsumerGroup(client, parse_group_consumer({"group.id": "etl"}))
    with ThreadPoolExecutor(1) as executor:
        consumed = executor.submit(group.consume, ["orders"], Waiting(), stop)
        assert consuming.wait(20)

        def check() -> None:
            with pytest.raises(UsageError, match="before a fork"):
                group.close()

        check_in_child(check)
        stop.set()
        assert "stop event" in str(consumed.result(20))
    group.close()
