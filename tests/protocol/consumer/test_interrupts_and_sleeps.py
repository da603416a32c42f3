"""Members interrupted during a rebalance, members that sleep for long, and claims paused by other threads."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from protocol import Client, CommittedOffset, ConsumerGroup
from protocol.base.clock import SYSTEM_CLOCK
from protocol.consumer.assigned_partitions import AssignedPartitions
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import CommitFailed, KafkaError, UsageError
from protocol.group.membership.assignment import EndReason
from protocol.group.membership.membership import LEAVE_MS, Membership
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.protocol.consumer.conftest import EAGER, KIP_848
from tests.protocol.consumer.members import (
    IdleHandler,
    Listener,
    Member,
    ReadingHandler,
    consumer_of,
    group_of,
    read,
    subscribed,
)
from tests.support.background import background
from tests.support.forked_child import check_in_child
from tests.support.internals import membership_of, partitions_of
from tests.support.small_cluster import END, SmallCluster
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

ALL = sorted((number, offset) for number in range(2) for offset in range(END))
BOTH = {("orders", 0), ("orders", 1)}


def sleep(fake: SmallCluster, membership: Membership) -> Callable[[], None]:
    """Simulate a long sleep: the coordinator must confirm the assignment, and does when the result is called."""
    answering = threading.Event()
    fake.before[CONSUMER_GROUP_HEARTBEAT] = lambda body: answering.wait(20)
    with membership.changed:
        membership.machine.suspect_lost(EndReason("this process was suspended"), SYSTEM_CLOCK.now_s())
    return answering.set


def test_poll_sleeps_while_the_group_waits_for_another_member(fake_client: Client) -> None:
    with subscribed(fake_client, EAGER), consumer_of(fake_client, EAGER) as joining:
        joining.subscribe(["orders"])
        joining.poll(100)
        began_s = time.thread_time()
        assert not joining.poll(1_000)
        assert time.thread_time() - began_s < 0.4, "of a second"


@pytest.mark.parametrize("protocol", [EAGER, KIP_848], ids=["classic", "consumer"])
def test_signal_handler_within_a_poll_may_only_close_the_consumer(
    fake_client: Client, fake: SmallCluster, protocol: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, is_polling = AssignedPartitions.poll, threading.Event()

    def note_poll(*arguments: Any) -> Any:
        is_polling.set()
        return poll(*arguments)

    def send_signal() -> None:
        assert is_polling.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handle(*_: object) -> None:
        with ThreadPoolExecutor(1) as executor:
            errors.append(executor.submit(consumer.poll, 0).exception())
        with pytest.raises(UsageError, match="a signal handler"):
            consumer.commit_sync()
        consumer.close()

    errors: list[BaseException | None] = []
    consumer = subscribed(fake_client, protocol)
    former = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(AssignedPartitions, "poll", note_poll)
    began_s = time.monotonic()
    try:
        with background(send_signal):
            assert not consumer.poll(60_000)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert time.monotonic() - began_s < LEAVE_MS / 1000
    assert isinstance(errors[0], UsageError)
    bodies = [body for name, _, body in fake.requests if name == "LeaveGroup" or body.get("member_epoch", 0) < 0]
    assert len(bodies) == 1
    with pytest.raises(UsageError, match="closed"):
        consumer.poll(0)


def test_group_consumes_again_after_a_callback_for_a_refused_last_commit_has_raised(
    fake: SmallCluster, fake_client: Client
) -> None:
    class Marking(ReadingHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            for message in claim.messages():
                session.mark_message(message)
                if message.offset == END - 1:
                    break
            both_have_marked.wait()

    def raise_it(error: KafkaError) -> None:
        raise error

    handler, both_have_marked = Marking(), threading.Barrier(2, timeout=20)
    properties = {"group.id": "etl", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 60_000}
    with ConsumerGroup(fake_client, properties, on_error=raise_it) as group:
        fake.refuse("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
        with pytest.raises(CommitFailed):
            group.consume(["orders"], handler)
        group.consume(["orders"], IdleHandler())
    assert fake.committed_offsets("etl") == dict.fromkeys(BOTH, END), "the next session continues behind the marks"
    assert handler.cleanups == 1


@pytest.mark.parametrize("when", ["before the poll", "within the poll"])
def test_poll_returns_no_records_while_the_assignment_is_unconfirmed(
    fake: SmallCluster, fake_client: Client, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer_of(fake_client, KIP_848) as consumer:
        consumer.subscribe(["orders"])
        wait_until(lambda: consumer.poll(0) or len(consumer.assignment) == 2)
        membership, answer, poll = membership_of(consumer), list[Callable[[], None]](), AssignedPartitions.poll
        consumer.seek_to_beginning()
        if when == "before the poll":
            answer.append(sleep(fake, membership))

        def asleep(*arguments: Any) -> Any:
            read = poll(*arguments)
            if read is not None and not answer:
                answer.append(sleep(fake, membership))
            return read

        monkeypatch.setattr(AssignedPartitions, "poll", asleep)
        assert not consumer.poll(1_000)
        assert membership.assignment_lost is not None
        answer[0]()
        assert sorted(read(consumer, 2 * END)) == ALL


def test_claim_yields_no_records_while_the_assignment_is_unconfirmed(fake: SmallCluster, fake_client: Client) -> None:
    observed: list[tuple[int, int]] = []
    waiting, suspected = threading.Barrier(3), threading.Event()

    class Handler(IdleHandler):
        def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
            waiting.wait(20)
            assert suspected.wait(20)
            assert claim.poll(500) is None
            waiting.wait(20)
            observed.extend((message.partition, message.offset) for message in claim.messages())

    group = group_of(fake_client, KIP_848)
    with background(lambda: group.consume(["orders"], Handler())), group:
        waiting.wait(20)
        answer = sleep(fake, membership_of(group))
        suspected.set()
        waiting.wait(20)
        answer()
        wait_until(lambda: sorted(observed) == ALL)


def test_pausing_all_claims_in_a_rebalance_succeeds(
    fake_client: Client, fake: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread pauses a claim that is dropped meanwhile."""
    member = Member(fake_client, "etl", "orders", **KIP_848)
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


def check_refused_in_child(*calls: Callable[[], object]) -> None:
    """Check that these calls are refused in a forked child, where only the thread that has forked exists."""

    def check() -> None:
        for call in calls:
            with pytest.raises(UsageError, match="before a fork"):
                call()

    check_in_child(check)


@pytest.mark.parametrize("use", ["poll", "position", "current_lag", "commit_sync"])
def test_consumer_is_refused_in_a_forked_child_after_its_first_use(fake_client: Client, use: str) -> None:
    with consumer_of(fake_client) as unused, consumer_of(fake_client) as consumer:
        consumer.assign(BOTH)
        if use == "commit_sync":
            consumer.commit_sync({("orders", 0): CommittedOffset(0)})
        else:
            getattr(consumer, use)(0 if use == "poll" else ("orders", 0))
        check_refused_in_child(lambda: consumer.poll(0), consumer.close)
        check_in_child(lambda: unused.assign(BOTH))
        assert consumer.position(("orders", 0)) >= 0


@pytest.mark.parametrize("place", ["listener", "callback"])
def test_consumer_is_refused_in_a_child_forked_within_a_call(fake_client: Client, place: str) -> None:
    checked: list[bool] = []

    def fork(*_: object) -> None:
        check_refused_in_child(consumer.close, lambda: consumer.poll(0))
        checked.append(True)

    listener = Listener()
    with consumer_of(fake_client, EAGER) as consumer:
        if place == "listener":
            listener.function = fork
        consumer.subscribe(["orders"], listener)
        read(consumer, 2 * END)
        if place == "callback":
            consumer.commit_async({("orders", 0): CommittedOffset(1)}, fork)
            wait_until(lambda: consumer.poll(10) is not None and checked)
        assert checked == [True]


def test_group_is_refused_in_a_forked_child_while_the_parent_consumes(fake_client: Client) -> None:
    handler, stop, group = ReadingHandler(), threading.Event(), group_of(fake_client)
    with group, background(lambda: group.consume(["orders"], handler, stop)):
        wait_until(lambda: handler.rows["orders"] == 2 * END)
        check_refused_in_child(group.close)
        stop.set()
