"""Handlers in groups: each record is handled by the owner of its partition, through changes of members and sessions."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from protocol import Client, ConsumerGroup
from protocol.admin.groups import describe_group
from protocol.broker_errors import ErrorCode
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.errors import BrokerError, CommitFailed, KafkaError
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.conftest import COOPERATIVE, EAGER, KIP_848
from tests.protocol.consumer.members import Member, ReadingHandler, consumer_of, group_of
from tests.protocol.fetch.consuming import client_of, produce
from tests.support.background import background
from tests.support.small_cluster import END, SmallCluster
from tests.support.wait_until import wait_until

NewMember = Callable[..., Member]
PARTITIONS, COUNT = 4, 400
LATE = 1_000_000
BOTH = frozenset({("orders", 0), ("orders", 1)})


@pytest.fixture(scope="module")
def orders(kafka1: LocalKafka, lasting_topic: TopicFactory) -> str:
    """Return a topic of four partitions with 100 records each, in many record batches."""
    name = lasting_topic(PARTITIONS)
    produce(kafka1, name, range(COUNT), PARTITIONS, settings={"batch.num.messages": 10})
    return name


def test_rebalance_in_the_middle_of_messages_loses_none(
    client: Client, group: str, orders: str, new_member: NewMember, protocol: dict[str, object]
) -> None:
    first = new_member(orders, **protocol)
    first.slow_s = 0.005
    wait_until(lambda: len(first.handled) > 40)
    two = new_member(orders, **protocol)
    two.slow_s = 0.005
    wait_until(lambda: len(first.numbers) == len(two.numbers) == 2, lambda: (first.numbers, two.numbers))
    wait_until(lambda: len({*first.handled, *two.handled}) == COUNT)
    # Records handled before the revocation are committed: the next owner starts after them, and no record is repeated.
    assert len(first.handled) + len(two.handled) == COUNT
    owners: dict[tuple[int, int], int] = {}
    for member in (first, two):
        for generation, number, _ in member.claimed:
            assert owners.setdefault((generation, number), id(member)) == id(member)
    if protocol == EAGER:
        assert [sorted(claims[orders]) for claims in first.cleanups] == [[0, 1, 2, 3]]
        assert "rebalances" in str(first.end_reasons[0])
    else:
        # Kept partitions continue in the same session and the same threads.
        assert (len(first.setups), first.cleanups, first.end_reasons) == (1, [], [])
        assert len(first.claimed) == PARTITIONS
    two.close()
    wait_until(lambda: sorted(first.numbers) == [0, 1, 2, 3])
    first.close()
    assert "closed" in str(first.end_reasons[-1])
    committed = fetch_offsets(client, group, None, client.deadline())
    assert {key: offset.offset for key, offset in committed.items()} == {(orders, number): 100 for number in range(4)}
    assert (first.errors, two.errors) == ([], [])


class Stuck(ReadingHandler):
    """Marks an offset every few milliseconds; returns from an ended claim only after `resume`, and marks once more."""

    def __init__(self, *, commits: bool = False) -> None:
        super().__init__()
        self.resume = threading.Event()
        self.ended: set[int] = set()
        self.late_commits: list[KafkaError | None] = []
        self._commits = commits

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        self.starts[claim.partition] = claim.initial_offset
        with suppress(KafkaError):
            for offset in count(1):
                if claim.revoked or not session.keeps_claims():
                    break
                claim.poll(10)
                session.mark_offset(claim.topic, claim.partition, offset)
                if self._commits:
                    session.commit()
        self.ended.add(claim.partition)
        self.resume.wait(30)
        session.mark_offset(claim.topic, claim.partition, LATE)
        try:
            session.commit()
            self.late_commits.append(None)
        except CommitFailed as error:
            self.late_commits.append(error)


@contextmanager
def joined_by_another(stuck: Stuck, **properties: object) -> Iterator[tuple[FakeKafka, ReadingHandler]]:
    """Give four partitions to a member with a stuck handler, then start another member; yield its handler."""
    with FakeKafka() as fake:
        fake.create_topic("orders", 4)
        client, handler = {"bootstrap.servers": fake.bootstrap_servers}, ReadingHandler()
        first, second = (group_of(client, COOPERATIVE, **properties) for _ in range(2))
        with background(lambda: first.consume(["orders"], stuck)), first:
            wait_until(lambda: len(stuck.starts) == 4)
            with background(lambda: second.consume(["orders"], handler)), second:
                try:
                    yield fake, handler
                finally:
                    stuck.resume.set()


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
@pytest.mark.parametrize("commits", [False, True])
def test_handler_that_keeps_a_revoked_partition_ends_the_membership_and_its_late_marks_are_dropped(
    commits: bool, protocol: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """In the cooperative protocol the other claims go on, and must not keep the member alive."""
    stuck = Stuck(commits=commits)
    properties = {**protocol, "max.poll.interval.ms": 1_000, "enable.auto.commit": not commits}
    with joined_by_another(stuck, **properties) as (fake, handler):
        wait_until(lambda: len(handler.starts) == 4)
        wait_until(lambda: "raise max.poll.interval.ms" in caplog.text)
        stuck.resume.set()
        wait_until(lambda: len(stuck.late_commits) == 4)
        assert LATE not in fake.committed_offsets("etl").values()
    assert re.search("the handler of claim orders-[0-3] has not returned", caplog.text)
    assert stuck.cleanups == 1
    if protocol == EAGER:
        assert None not in stuck.late_commits


def test_other_claims_are_committed_while_the_handler_of_a_revoked_partition_runs() -> None:
    stuck = Stuck()
    with joined_by_another(stuck, **{"auto.commit.interval.ms": 50}) as (fake, _):
        wait_until(lambda: len(stuck.ended) == 2)
        retained = [("orders", partition) for partition in stuck.starts if partition not in stuck.ended]
        before = fake.committed_offsets("etl")
        wait_until(lambda: all(fake.committed_offsets("etl").get(key, 0) > before.get(key, 0) + 2 for key in retained))


def test_refused_commit_is_reported_and_the_session_continues(
    client: Client, group: str, orders: str, new_member: NewMember
) -> None:
    member = new_member(orders)
    wait_until(lambda: len(member.handled) == COUNT)
    member.setups[0].mark_offset(orders, 0, 101, metadata="x" * 5_000)
    wait_until(lambda: member.errors)
    assert "OFFSET_METADATA_TOO_LARGE" in str(member.errors[0])
    assert not member.setups[0].ended.is_set()


def test_long_broker_failure_is_reported_and_reading_continues(fake: SmallCluster) -> None:
    fake.refuse("Fetch", ErrorCode.KAFKA_STORAGE_ERROR, ALWAYS)
    with client_of(fake.bootstrap_servers, default_api_timeout_ms=2_000) as client:
        member = Member(client, "etl", "orders", **EAGER)
        try:
            wait_until(lambda: member.errors)
            fake.faults.clear()
            wait_until(lambda: len(member.handled) == 2 * END)
        finally:
            member.close()
        assert all("nothing could be read" in str(error) for error in member.errors)
        assert len(member.setups) == 1


class Marking(ReadingHandler):
    """Marks offset 3 of both partitions; calls `then` when both are marked."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then
        self._both_are_marked = threading.Barrier(2, timeout=20)

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        session.mark_offset(claim.topic, claim.partition, 3)
        self._both_are_marked.wait()
        self._then()
        super().consume_claim(session, claim)


@pytest.mark.timeout(60)
def test_close_in_a_signal_handler_ends_consume_and_leaves_the_group(fake: SmallCluster, fake_client: Client) -> None:
    """The signal interrupts the thread of `consume`, and again while that thread leaves the group."""

    def send_signal(*_: object) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    members, handler = group_of(fake_client, EAGER), Marking(send_signal)
    before = signal.signal(signal.SIGUSR1, lambda *_: members.close())
    fake.before[LEAVE_GROUP] = send_signal
    try:
        while not members.closed:
            members.consume(["orders"], handler)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert fake.committed_offsets("etl") == dict.fromkeys(BOTH, 3)
    assert (handler.cleanups, len(fake.request_bodies(LEAVE_GROUP))) == (1, 1)


def test_stop_event_ends_the_session_and_keeps_the_membership(fake: SmallCluster, fake_client: Client) -> None:
    """The next `consume` continues after the marked records, as the same member."""
    stop = threading.Event()
    first, second = Marking(stop.set), Marking(stop.set)
    with group_of(fake_client, EAGER) as members:
        for handler in (first, second):
            assert str(members.consume(["orders"], handler, stop)) == "the stop event of consume was set"
        assert second.sessions == [], "an event that is set already: nothing is done"
        assert fake.committed_offsets("etl") == dict.fromkeys(BOTH, 3)
        stop.clear()
        members.consume(["orders"], second, stop)
        assert not members.closed
        assert second.starts == {0: 3, 1: 3}
        (earlier,), (later,) = first.sessions, second.sessions
        assert (earlier.member_id, earlier.generation_id) == (later.member_id, later.generation_id)
        assert fake.request_bodies(LEAVE_GROUP) == []
    assert (first.cleanups, second.cleanups, len(fake.request_bodies(LEAVE_GROUP))) == (1, 1, 1)


@pytest.mark.timeout(60)
def test_stop_event_ends_a_wait_for_claims(fake: SmallCluster, fake_client: Client) -> None:
    """No session begins while the coordinator refuses all joins."""
    fake.refuse(JOIN_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=ALWAYS)
    stop, handler = threading.Event(), ReadingHandler()
    with (
        group_of(fake_client, EAGER) as members,
        background(lambda: wait_until(lambda: fake.request_bodies(JOIN_GROUP)) or stop.set()),
    ):
        assert str(members.consume(["orders"], handler, stop)) == "the stop event of consume was set"
        assert handler.sessions == []


def test_failed_joins_are_reported_and_raised_after_the_last_retry(fake: SmallCluster) -> None:
    """The next `consume` continues to join."""
    fake.refuse(JOIN_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=ALWAYS)
    reported: list[KafkaError] = []
    properties = {"group.id": "etl", "group.join.retries": 2, **EAGER}
    with (
        client_of(fake.bootstrap_servers, retry_backoff_ms=100) as client,
        ConsumerGroup(client, properties, on_error=reported.append) as members,
    ):
        for _ in range(2):
            refused = r"3 attempts to join have failed \(group\.join\.retries=2\)"
            with pytest.raises(BrokerError, match=refused) as raised:
                members.consume(["orders"], ReadingHandler())
            assert raised.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert raised.value.settings == {"group.join.retries"}
        assert {getattr(error, "code", None) for error in reported} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        fake.faults.clear()
        stop = threading.Event()
        joined = Marking(stop.set)
        members.consume(["orders"], joined, stop)
        assert len(joined.sessions) == 1


@pytest.mark.parametrize("protocol", [EAGER, KIP_848], ids=["classic", "consumer"])
def test_poll_raises_after_the_last_retry_of_a_join(fake: SmallCluster, protocol: dict[str, object]) -> None:
    api = JOIN_GROUP if protocol == EAGER else CONSUMER_GROUP_HEARTBEAT
    fake.refuse(api, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=ALWAYS)
    with (
        client_of(fake.bootstrap_servers, retry_backoff_ms=20) as client,
        consumer_of(client, protocol, **{"group.join.retries": 2}) as consumer,
    ):
        consumer.subscribe(["orders"])
        with pytest.raises(BrokerError, match=r"attempts to join .* \(group\.join\.retries=2\)"):
            consumer.poll(30_000)
        assert len(fake.request_bodies(api)) >= 3
        fake.faults.clear()
        wait_until(lambda: consumer.poll(100))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("leave_group", "leaves"), [(None, 1), (False, 0)])
def test_close_in_a_handler_ends_consume_and_leaves_the_group(
    fake: SmallCluster, fake_client: Client, leave_group: bool | None, leaves: int
) -> None:
    members = group_of(fake_client, EAGER)
    handler = Marking(lambda: members.close(leave_group=leave_group))
    assert "was closed" in str(members.consume(["orders"], handler))
    assert (handler.cleanups, len(fake.request_bodies(LEAVE_GROUP))) == (1, leaves)


@pytest.mark.parametrize("protocol", [EAGER, KIP_848], ids=["classic", "kip848"])
@pytest.mark.parametrize(("leave_group", "count"), [(None, 0), (False, 1)])
def test_closed_consumer_stays_in_the_group_with_leave_group_false(
    fake_client: Client, protocol: dict[str, object], leave_group: bool | None, count: int
) -> None:
    """KIP-1092."""
    consumer = consumer_of(fake_client, protocol)
    consumer.subscribe(["orders"])
    wait_until(lambda: consumer.poll(100))
    consumer.close(leave_group=leave_group)
    assert len(describe_group(fake_client, "etl").members) == count
