"""Background commits continue after failures of a commit or of the coordinator; late replies change nothing."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.cluster.call import call
from protocol.cluster.client import Client
from protocol.errors import BrokerError, DeadlineExceeded, TopicUnknown, UsageError
from protocol.group.commits import offset_manager
from protocol.group.commits.committed_offsets import (
    CommittedOffset,
    commit_offsets,
    fetch_offsets,
    fetch_positions,
    fetch_start_offsets,
)
from protocol.group.commits.offset_manager import OffsetManager
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import LAST_WITH_TOPIC_NAMES, OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, NEEDS_KIP_848, TopicFactory
from tests.contract.members import stable
from tests.protocol.fetch.consuming import client_of
from tests.support.older_brokers import limit_version
from tests.support.wait_until import wait_until

MARKS = {("orders", 0): CommittedOffset(5)}
BOTH = {("orders", 0): CommittedOffset(5), ("orders", 1): CommittedOffset(6)}
GROUP = "etl"


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(3) as kafka:
        kafka.create_topic("orders", 2)
        yield kafka


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with client_of(fake.bootstrap_servers) as client:
        yield client


@pytest.fixture
def manager(client: Client) -> Iterator[OffsetManager]:
    manager = OffsetManager(client, GROUP)
    yield manager
    manager.close()


def flushed(client: Client, manager: OffsetManager) -> bool:
    return manager.flush(client.deadline(10_000))


def committed(client: Client) -> dict[Any, CommittedOffset]:
    return {
        key: CommittedOffset(offset.offset)
        for key, offset in fetch_offsets(client, GROUP, None, client.deadline()).items()
    }


def committed_partitions(fake: FakeKafka) -> list[list[int]]:
    """Return the partitions of each OffsetCommit."""
    return [
        sorted(row["partition_index"] for topic in body["topics"] for row in topic["partitions"])
        for body in fake.request_bodies(OFFSET_COMMIT)
    ]


class DelayedCommit:
    """Holds the next OffsetCommit at the broker until `release`; `come` is set when the request arrives."""

    def __init__(self, fake: FakeKafka) -> None:
        self.come, self._released = threading.Event(), threading.Event()
        fake.before[OFFSET_COMMIT] = lambda body: fake.before.pop(OFFSET_COMMIT, None) and self._hold()

    def _hold(self) -> None:
        self.come.set()
        assert self._released.wait(20)

    def release(self) -> None:
        self._released.set()


def test_unexpected_error_in_a_commit_is_logged_and_retried(
    client: Client, manager: OffsetManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[dict[Any, CommittedOffset]] = []

    def commit(client: Any, group: str, due: dict[Any, CommittedOffset], *further: Any, **options: Any) -> None:
        tries.append(due)
        if len(tries) <= 2:
            raise ZeroDivisionError("as if")
        commit_offsets(client, group, due, *further, **options)

    monkeypatch.setattr(offset_manager, "commit_offsets", commit)
    with caplog.at_level(logging.WARNING):
        manager.stage(MARKS)
        assert flushed(client, manager)
        manager.close()
    assert tries == [MARKS] * 3
    assert (manager.counts.succeeded, manager.counts.failed) == (1, 2)
    assert "ZeroDivisionError('as if')" in str(manager.counts.last_failure)
    first, second = (record for record in caplog.records if "group etl" in record.message)
    assert "is retried" in first.message
    assert first.exc_info
    assert "succeed again" in second.message


def test_unexpected_error_of_the_member_is_logged_and_does_not_end_commits(
    fake: FakeKafka, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    manager = OffsetManager(client, GROUP, retry_refused=False)

    def fail(member: GroupMember, error: BrokerError) -> None:
        manager.on_member_refused = lambda member, error: None
        raise ZeroDivisionError("as if")

    manager.on_member_refused = fail
    fake.refuse(OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID, 1)
    manager.stage(MARKS)
    assert flushed(client, manager)
    manager.close()
    assert committed(client) == MARKS
    assert "ZeroDivisionError('as if')" in str(manager.counts.last_failure)
    assert "group etl: a commit failed and is retried" in caplog.text


@pytest.mark.parametrize("marks_again", [False, True])
def test_commit_is_retried_by_the_next_call_if_no_thread_could_start(
    client: Client, manager: OffsetManager, monkeypatch: pytest.MonkeyPatch, marks_again: bool
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
        manager.stage(MARKS)
        assert not manager.healthy
        assert not manager.flush(client.deadline(10))
    if marks_again:
        manager.stage(MARKS)
    assert flushed(client, manager)
    manager.close()
    assert manager.healthy


@pytest.mark.parametrize(("who", "times"), [(NO_MEMBER, 3), (GroupMember("m-1", 4), 1)], ids=["no member", "a member"])
def test_commit_without_group_acl_is_retried_unless_by_a_member(
    fake: FakeKafka, client: Client, manager: OffsetManager, who: GroupMember, times: int
) -> None:
    fake.refuse(OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED, 2)
    manager.set_member(who)
    manager.stage(MARKS, who)
    assert flushed(client, manager) == (who == NO_MEMBER)
    assert len(committed_partitions(fake)) == times


def test_reset_of_running_reader_group_is_committed_over_and_warned_of_once(
    fake: FakeKafka, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    manager = OffsetManager(client, GROUP, compare_ms=10)
    manager.stage(BOTH)
    assert flushed(client, manager)
    commit_offsets(client, GROUP, {("orders", 0): CommittedOffset(2)}, client.deadline())
    wait_until(lambda: committed(client) == BOTH)
    manager.close()
    (warning,) = [message for message in caplog.messages if "another program" in message]
    assert "commits its own again: orders-0 had 2, gets 5. To move its position, stop it first" in warning
    assert committed_partitions(fake) == [[0, 1], [0], [0]], "the reader's, the reset, the reader's"


def test_member_or_reader_without_comparison_requests_no_offsets(fake: FakeKafka, client: Client) -> None:
    member = GroupMember("m", 1)
    for manager, who in (
        (OffsetManager(client, GROUP), NO_MEMBER),
        (OffsetManager(client, GROUP, compare_ms=0), member),
    ):
        manager.set_member(who)
        manager.stage(MARKS, who)
        flushed(client, manager)
        assert manager._idle_s() > 0
        manager.close()
    assert not fake.request_bodies(OFFSET_FETCH)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_commit_too_large_for_one_request_is_split_in_halves(
    fake: FakeKafka, client: Client, manager: OffsetManager, code: ErrorCode
) -> None:
    fake.create_topic("many", 5)
    offsets = {("many", number): CommittedOffset(number + 1) for number in range(5)}

    def most_of_two(body: dict[str, Any]) -> None:
        if len(committed_partitions(fake)[-1]) > 2:
            for key in offsets:
                fake.refuse(OFFSET_COMMIT, code, partition=key)
        else:
            fake.faults.clear()

    fake.before[OFFSET_COMMIT] = most_of_two
    manager.stage(offsets)
    assert flushed(client, manager)
    assert committed(client) == offsets
    assert committed_partitions(fake) == [[0, 1, 2, 3, 4], [0, 1], [2, 3, 4], [2], [3, 4]]


def test_commit_that_cannot_be_encoded_is_refused_alone(
    fake: FakeKafka, client: Client, manager: OffsetManager
) -> None:
    fake.create_topic("many", 5)
    topic_id = client.topic("many").topic_id
    offsets = {("many", number): CommittedOffset(number + 1, topic_id=topic_id) for number in range(5)}
    object.__setattr__(offsets["many", 3], "metadata", "caf\udce9")  # a mistake in this package
    manager.stage(offsets)
    assert not flushed(client, manager)
    assert manager.counts.failed == 1
    assert isinstance(manager.failure({("many", 3): offsets["many", 3]}), UsageError)
    faulty = offsets.pop(("many", 3))
    assert committed(client) == offsets
    manager.stage({("many", 3): replace(faulty, offset=9, metadata="")})
    assert flushed(client, manager)


@pytest.mark.parametrize("when", ["before", "after", "later"])
def test_offset_of_a_deleted_topic_is_not_committed_to_its_successor(
    fake: FakeKafka, client: Client, manager: OffsetManager, when: str
) -> None:
    """OffsetCommit names the topic. `when`: the offset is staged before or after the client knows of the deletion."""
    client.metadata(["orders"])
    manager.stage({("orders", 0): CommittedOffset(4)}, again=True)
    assert flushed(client, manager)
    fake.delete_topic("orders")
    if when != "before":
        client.metadata(["orders"])
    if when == "later":
        fake.create_topic("orders", 2)
    manager.stage(MARKS, again=True)
    if when != "later":
        wait_until(lambda: "UNKNOWN_TOPIC" in str(manager.failure(MARKS)))
        fake.create_topic("orders", 2)
    assert not flushed(client, manager)
    failure = manager.failure(MARKS)
    assert isinstance(failure, BrokerError)
    assert failure.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fake.committed_offsets(GROUP) == {}
    manager.stage({("orders", 0): CommittedOffset(1)}, again=True)
    assert flushed(client, manager), "of the new topic"


@pytest.mark.parametrize("last", [LAST_WITH_TOPIC_NAMES, OFFSET_COMMIT.last], ids=["by name", "by id"])
def test_offset_of_a_recreated_topic_is_refused_before_the_client_knows_of_it(
    fake: FakeKafka, client: Client, manager: OffsetManager, last: int
) -> None:
    limit_version(fake, OFFSET_COMMIT, last)
    client.metadata(["orders"])
    with fake.changed:
        fake.delete_topic("orders")
        fake.create_topic("orders", 2)
    manager.stage(MARKS, again=True)
    assert not flushed(client, manager)
    failure = manager.failure(MARKS)
    assert isinstance(failure, BrokerError)
    assert failure.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fake.committed_offsets(GROUP) == {}


@pytest.mark.parametrize("fault", ["refused", "no metadata"])
def test_topic_ids_are_compared_before_each_retry_of_a_commit_by_name(
    fake: FakeKafka, client: Client, manager: OffsetManager, fault: str
) -> None:
    """The topic is recreated while the commit is retried."""
    limit_version(fake, OFFSET_COMMIT, LAST_WITH_TOPIC_NAMES)
    client.metadata(["orders"])
    if fault == "refused":
        fake.refuse(OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ALWAYS)
    else:
        fake.lose_replies(METADATA, ALWAYS)
    manager.stage(MARKS, again=True)
    wait_until(lambda: fake.request_bodies(OFFSET_COMMIT if fault == "refused" else METADATA)[1:])
    with fake.changed:
        fake.delete_topic("orders")
        fake.create_topic("orders", 2)
    fake.faults.clear()
    assert not flushed(client, manager)
    failure = manager.failure(MARKS)
    assert isinstance(failure, BrokerError)
    assert failure.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fake.committed_offsets(GROUP) == {}


def test_offsets_of_another_topic_are_no_start(client: Client) -> None:
    commit_offsets(client, GROUP, BOTH, client.deadline())
    with pytest.raises(TopicUnknown, match="the coordinator does not know the topic orders that is read"):
        fetch_start_offsets(client, GROUP, dict.fromkeys(BOTH, b"." * 16), client.deadline(), unknown_topic_s=0.1)


@pytest.mark.parametrize("last", range(2, OFFSET_FETCH.last + 1))
def test_offsets_are_fetched_from_brokers_of_every_version(fake: FakeKafka, client: Client, last: int) -> None:
    limit_version(fake, OFFSET_FETCH, last)
    commit_offsets(client, GROUP, BOTH, client.deadline())
    offsets, of_unknown_topics = fetch_positions(client, GROUP, BOTH, client.deadline())
    assert {key: offset.offset for key, offset in offsets.items()} == {
        key: offset.offset for key, offset in BOTH.items()
    }
    assert of_unknown_topics == {}
    topic_ids = {key: offset.topic_id for key, offset in offsets.items()}
    assert topic_ids == dict.fromkeys(BOTH, client.topic("orders").topic_id)
    assert fetch_start_offsets(client, GROUP, topic_ids, client.deadline()) == offsets
    assert fetch_offsets(client, GROUP, None, client.deadline()) == offsets


@pytest.mark.parametrize("is_lost", [False, True])
def test_flush_returns_false_if_offsets_are_dropped_while_it_waits(
    fake: FakeKafka, client: Client, manager: OffsetManager, is_lost: bool
) -> None:
    waits = threading.Event()

    class CheckedDeadline(Deadline):
        @property
        def passed(self) -> bool:
            waits.set()  # under the lock that the wait then releases
            return super().passed

    member, commit = GroupMember("m-1", 4), DelayedCommit(fake)
    manager.set_member(member)
    manager.stage(BOTH, member)
    assert commit.come.wait(10)
    with ThreadPoolExecutor(1) as executor:
        flush = executor.submit(manager.flush, CheckedDeadline.after_ms(10_000))
        assert waits.wait(10)
        manager.set_member(NO_MEMBER) if is_lost else manager.retain([])
        assert not flush.result(10)
    commit.release()


@pytest.mark.parametrize(
    "answer", [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_late_reply_about_a_revoked_partition_changes_nothing(
    fake: FakeKafka, client: Client, manager: OffsetManager, answer: ErrorCode
) -> None:
    commit = DelayedCommit(fake)
    if answer != ErrorCode.NONE:
        fake.refuse(OFFSET_COMMIT, answer)
    manager.stage(MARKS)
    assert commit.come.wait(10)
    manager.retain([("orders", 1)])
    assert flushed(client, manager), "no offset is left to commit"
    # The partition is assigned again, and read to the same offset.
    manager.stage(BOTH)
    commit.release()
    assert flushed(client, manager)
    assert committed_partitions(fake) == [[0], [0, 1]]
    assert committed(client) == BOTH


def test_late_error_about_a_revoked_partition_is_not_reported(
    fake: FakeKafka, client: Client, manager: OffsetManager, caplog: pytest.LogCaptureFixture
) -> None:
    commit = DelayedCommit(fake)
    fake.refuse(OFFSET_COMMIT, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    manager.stage(MARKS)
    assert commit.come.wait(10)
    manager.retain([])
    commit.release()
    manager.stage({("orders", 1): CommittedOffset(6)})
    assert flushed(client, manager)
    assert (manager.counts.succeeded, manager.counts.failed, caplog.records) == (1, 0, [])


def test_late_reply_to_an_older_generation_changes_nothing(
    fake: FakeKafka, client: Client, manager: OffsetManager
) -> None:
    """The commit is fenced after its partition is assigned again, in the next generation."""
    (joined,) = stable(client, GROUP)
    now = GroupMember(joined.member_id, joined.generation)
    before = GroupMember(joined.member_id, joined.generation - 1)
    commit = DelayedCommit(fake)
    manager.set_member(before)
    manager.stage(MARKS, before)
    assert commit.come.wait(10)
    manager.set_member(now)
    manager.stage(MARKS, now)
    commit.release()
    assert flushed(client, manager)
    assert [body["generation_id_or_member_epoch"] for body in fake.request_bodies(OFFSET_COMMIT)] == [0, 1]
    assert (manager.counts.succeeded, manager.counts.failed) == (1, 0)
    assert committed(client) == MARKS


def test_commit_refused_for_a_stale_generation_is_retried_in_the_next(
    fake: FakeKafka, client: Client, manager: OffsetManager
) -> None:
    """Members of cooperative rebalances keep partitions in the next generation; until then the commit's result is
    open."""
    (joined,) = stable(client, GROUP)
    before = GroupMember(joined.member_id, joined.generation - 1, assigned_since=0)
    manager.set_member(before)
    manager.stage(MARKS, before)
    assert not manager.flush(client.deadline(1_000))
    wait_until(lambda: manager.counts.failed)
    assert isinstance(manager.failure(MARKS), DeadlineExceeded)
    assert "ILLEGAL_GENERATION" in str(manager.failure(MARKS))
    assert committed_partitions(fake) == [[0]]
    manager.set_member(GroupMember(joined.member_id, joined.generation, assigned_since=0))
    assert flushed(client, manager)
    assert manager.failure(MARKS) is None
    assert committed(client) == MARKS


def test_commit_refused_for_a_stale_generation_fails_if_partitions_were_lost(
    fake: FakeKafka, client: Client, manager: OffsetManager
) -> None:
    (joined,) = stable(client, GROUP)
    before = GroupMember(joined.member_id, joined.generation - 1)
    manager.set_member(before)
    manager.stage(MARKS, before)
    assert not manager.flush(client.deadline(1_000))
    wait_until(lambda: manager.counts.failed)
    manager.set_member(GroupMember(joined.member_id, joined.generation))
    assert flushed(client, manager)
    assert isinstance(manager.failure(MARKS), UsageError)
    assert committed(client) == {}


def test_commit_of_a_member_without_generation_is_refused_at_once(
    fake: FakeKafka, client: Client, manager: OffsetManager
) -> None:
    """The member waits to join, perhaps for long, and owned no partitions before."""
    (joined,) = stable(client, GROUP)
    nowhere = GroupMember(joined.member_id)
    manager.set_member(nowhere)
    manager.stage(MARKS, nowhere)
    assert not flushed(client, manager)
    assert isinstance(manager.failure(MARKS), BrokerError)
    assert "ILLEGAL_GENERATION" in str(manager.failure(MARKS))


class TestConsumerProtocol:
    """KIP-848: a member's epoch changes while it keeps its partitions."""

    OLD, NEW = (GroupMember("m-1", member_epoch=epoch) for epoch in (3, 4))

    def test_commit_with_a_stale_epoch_is_retried_with_the_newer_one(
        self, fake: FakeKafka, client: Client, manager: OffsetManager
    ) -> None:
        fake.handlers[OFFSET_COMMIT] = self.answer
        manager.set_member(self.OLD)
        manager.stage(MARKS, self.OLD)
        assert not manager.flush(client.deadline(300))
        wait_until(lambda: manager.counts.failed)
        assert "STALE_MEMBER_EPOCH" in str(manager.counts.last_failure)
        manager.set_member(self.NEW)
        assert flushed(client, manager)

    def test_offset_marked_in_the_old_epoch_is_committed(
        self, fake: FakeKafka, client: Client, manager: OffsetManager
    ) -> None:
        fake.handlers[OFFSET_COMMIT] = self.answer
        manager.set_member(self.OLD)
        manager.set_member(self.NEW)
        manager.stage(MARKS, self.OLD)
        assert flushed(client, manager)
        assert committed_partitions(fake) == [[0]]

    def test_fenced_epoch_drops_all_marks(self, fake: FakeKafka, client: Client, manager: OffsetManager) -> None:
        fake.refuse(OFFSET_COMMIT, ErrorCode.FENCED_MEMBER_EPOCH)
        manager.set_member(self.OLD)
        manager.stage(BOTH, self.OLD)
        assert not flushed(client, manager)
        manager.stage(BOTH, self.OLD)
        assert not flushed(client, manager)
        assert committed_partitions(fake) == [[0, 1]]

    def answer(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        assert (version, body["member_id"], body["group_instance_id"]) == (9, "m-1", None)
        stale = body["generation_id_or_member_epoch"] != self.NEW.member_epoch
        code = ErrorCode.STALE_MEMBER_EPOCH if stale else ErrorCode.NONE
        return {"topics": [{"name": "orders", "partitions": [{"partition_index": 0, "error_code": code}]}]}


@NEEDS_KIP_848
def test_consumer_protocol_member_commits_across_epochs(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    """As `TestConsumerProtocol`, with a real coordinator."""
    name, group, member_id = topic1(2), f"group-{uuid.uuid4().hex[:8]}", str(uuid.uuid4())
    with client_of(kafka1) as client:
        manager = OffsetManager(client, group)
        old, owned = heartbeat(client, group, GroupMember(member_id, member_epoch=0), name)
        manager.set_member(old)
        manager.stage({(name, 0): CommittedOffset(5)}, old)
        assert flushed(client, manager)
        second, new = GroupMember(str(uuid.uuid4()), member_epoch=0), old
        # The first member revokes a partition, and only then gets the next epoch. Since Kafka 4.3 the coordinator
        # computes assignments in the background.
        while new.member_epoch == old.member_epoch or len(owned) != 1:
            second, _ = heartbeat(client, group, second, name)
            new, owned = heartbeat(client, group, new, name, owned=owned)
        retained = (name, owned[0])
        manager.stage({retained: CommittedOffset(6)}, old)
        # Since Kafka 4.3 the epoch may be any since the partition was assigned (KIP-1251).
        if version_numbers(KAFKA_VERSION) < (4, 3):
            assert not manager.flush(client.deadline(300))
            wait_until(lambda: manager.counts.failed)
            assert "STALE_MEMBER_EPOCH" in str(manager.counts.last_failure)
            manager.set_member(new)
        assert flushed(client, manager)
        assert fetch_offsets(client, group, None, client.deadline())[retained].offset == 6
        manager.close()


def heartbeat(
    client: Client, group: str, member: GroupMember, topic: str, *, owned: Sequence[int] = ()
) -> tuple[GroupMember, Sequence[int]]:
    """Return the member with the epoch of the reply, and its partitions: those of the reply, if it has any."""
    body = {
        "group_id": group,
        "member_id": member.member_id,
        "member_epoch": member.member_epoch,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [{"topic_id": client.topic(topic).topic_id, "partitions": list(owned)}] if owned else [],
    }
    reply = call(client, CONSUMER_GROUP_HEARTBEAT, body, client.deadline())
    if reply["assignment"] is not None:
        owned = [number for row in reply["assignment"]["topic_partitions"] for number in row["partitions"]]
    return replace(member, member_epoch=reply["member_epoch"]), owned


def test_slow_reply_to_a_commit_counts_until_request_timeout(
    fake: FakeKafka, client: Client, manager: OffsetManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a coordinator needs eight seconds for ten thousand partitions."""
    manager.stage({("orders", 0): CommittedOffset(4)})
    assert flushed(client, manager), "the coordinator is known"
    monkeypatch.setattr(offset_manager, "COMMIT_TIMEOUT_MS", 500)
    fake.delay_replies(OFFSET_COMMIT, 1.0, times=2)
    manager.stage(MARKS)
    assert flushed(client, manager)
    assert (manager.counts.succeeded, manager.counts.failed) == (2, 0)
    assert committed_partitions(fake) == [[0], [0]]
