"""Background commits continue after failures of a commit or of the coordinator; late replies change nothing."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from protocol import Client, OffsetManager
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, TopicUnknown, UsageError
from protocol.group.commits import offset_manager
from protocol.group.commits.committed_offsets import (
    CommittedOffset,
    commit_offsets,
    fetch_offsets,
    fetch_positions,
    fetch_start_offsets,
)
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import LAST_WITH_TOPIC_NAMES, OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from tests.protocol.group.commits.conftest import BOTH, GROUP, MARKS, committed, committed_partitions, flushed, stage_as
from tests.support.older_brokers import limit_version
from tests.support.small_cluster import recreate_topic
from tests.support.wait_until import wait_until


def assert_refused_for_another_topic(fake: FakeKafka, client: Client, manager: OffsetManager) -> None:
    assert not flushed(client, manager)
    failure = manager.failure(MARKS)
    assert isinstance(failure, BrokerError)
    assert failure.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fake.committed_offsets(GROUP) == {}


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
    stage_as(manager, who)
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
        stage_as(manager, who)
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
    assert_refused_for_another_topic(fake, client, manager)
    manager.stage({("orders", 0): CommittedOffset(1)}, again=True)
    assert flushed(client, manager), "of the new topic"


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (OFFSET_COMMIT.last, ""),
        (LAST_WITH_TOPIC_NAMES, ""),
        (LAST_WITH_TOPIC_NAMES, "a refused commit"),
        (LAST_WITH_TOPIC_NAMES, "no metadata"),
    ],
    ids=["by id", "by name", "a refused commit", "no metadata"],
)
def test_offset_of_a_recreated_topic_is_refused_before_the_client_knows_of_it(
    fake: FakeKafka, client: Client, manager: OffsetManager, last: int, fault: str
) -> None:
    """By name, topic ids are compared before each retry: with a fault, the topic is recreated between two of them."""
    limit_version(fake, OFFSET_COMMIT, last)
    client.metadata(["orders"])
    if not fault:
        recreate_topic(fake, "orders", 2)
    elif fault == "no metadata":
        fake.lose_replies(METADATA, ALWAYS)
    else:
        fake.refuse(OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ALWAYS)
    manager.stage(MARKS, again=True)
    if fault:
        wait_until(lambda: fake.request_bodies(METADATA if fault == "no metadata" else OFFSET_COMMIT)[1:])
        recreate_topic(fake, "orders", 2)
        fake.faults.clear()
    assert_refused_for_another_topic(fake, client, manager)


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
