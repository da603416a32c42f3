"""Commits of an `OffsetManager` and the offsets it drops: without a group, as a member, and as a former member."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.cluster.client import Client
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import CommitFailed
from protocol.group.commits import offset_manager
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.group.commits.offset_manager import OffsetManager
from protocol.group.member import GroupMember
from tests.contract.conftest import NewTopic
from tests.contract.members import GroupMember as Joined
from tests.contract.members import admit, new_group, stable, sync_all
from tests.support.wait_until import wait_until

Offsets = dict[tuple[str, int], CommittedOffset]


@pytest.fixture
def manager(client: Client) -> Iterator[OffsetManager]:
    manager = OffsetManager(client, new_group())
    yield manager
    manager.close()


def flushed(client: Client, manager: OffsetManager) -> bool:
    return manager.flush(client.deadline(10_000))


def found(client: Client, manager: OffsetManager) -> dict[int, int]:
    """Return the committed offset of each partition."""
    return {
        key[1]: offset.offset for key, offset in fetch_offsets(client, manager.group, None, client.deadline()).items()
    }


def as_committer(joined: Joined) -> GroupMember:
    return GroupMember(joined.member_id, joined.generation)


def rejoin_with_another(member: Joined) -> None:
    """Start another generation of the group."""
    sync_all([member, admit(Joined(member.client, member.group), member)])


def test_staged_offsets_raise_and_lower_the_committed_ones(
    client: Client, manager: OffsetManager, new_topic: NewTopic
) -> None:
    name = new_topic(2)
    observed = []
    for offsets in ({0: 5, 1: 5}, {1: 7}, {0: 3, 1: 7}):
        manager.stage({(name, number): CommittedOffset(offset) for number, offset in offsets.items()})
        assert flushed(client, manager)
        observed.append(found(client, manager))
    assert observed == [{0: 5, 1: 5}, {0: 5, 1: 7}, {0: 3, 1: 7}]


def test_member_commit_in_old_generation_is_refused_and_dropped(
    client: Client, manager: OffsetManager, name: str
) -> None:
    key = (name, 0)
    (joined,) = stable(client, manager.group)
    before = as_committer(joined)
    manager.set_member(before)
    manager.stage({key: CommittedOffset(5)}, before)
    assert flushed(client, manager)
    rejoin_with_another(joined)
    manager.stage({key: CommittedOffset(6)}, before)
    wait_until(lambda: manager.counts.failed == 1)
    assert not manager.flush(client.deadline(0))
    assert "ILLEGAL_GENERATION" in str(manager.counts.last_failure)
    assert manager.healthy, "a commit refused for its generation is not retried"
    manager.set_member(as_committer(joined))
    manager.stage({key: CommittedOffset(9)}, before)
    assert flushed(client, manager)
    assert found(client, manager) == {0: 5}, "neither the refused offset nor one of the old generation"
    manager.stage({key: CommittedOffset(6)}, as_committer(joined))
    assert flushed(client, manager)
    assert found(client, manager) == {0: 6}
    assert (manager.counts.succeeded, manager.counts.failed) == (2, 1)


def test_former_member_commit_is_refused_once(client: Client, manager: OffsetManager, name: str) -> None:
    (joined,) = stable(client, manager.group)
    rejoin_with_another(joined)
    assert joined.leave() == 0
    manager.set_member(as_committer(joined))
    manager.stage({(name, 0): CommittedOffset(5)}, as_committer(joined))
    assert not flushed(client, manager)
    assert "UNKNOWN_MEMBER_ID" in str(manager.counts.last_failure)
    assert "live members" not in str(manager.counts.last_failure), "the message for a client without membership"
    assert manager.counts.failed == 1


def test_static_member_commit_after_restart_is_fenced_once(client: Client, manager: OffsetManager, name: str) -> None:
    (joined,) = stable(client, manager.group, instance_id="a")
    again = Joined(client, manager.group, instance_id="a")
    again.end(again.begin())
    now, before = (
        GroupMember(member.member_id, member.generation, group_instance_id="a") for member in (again, joined)
    )
    manager.set_member(before)
    manager.stage({(name, 0): CommittedOffset(5)}, before)
    assert not flushed(client, manager)
    assert "FENCED_INSTANCE_ID" in str(manager.counts.last_failure)
    manager.set_member(now)
    manager.stage({(name, 0): CommittedOffset(7)}, now)
    assert flushed(client, manager)
    assert found(client, manager) == {0: 7}


def test_consumers_assigned_to_one_partition_of_a_group_replace_each_others_commits(
    client: Client, new_topic: NewTopic
) -> None:
    key, group = (new_topic(), 0), new_group()
    properties = {"group.id": group, "enable.auto.commit": False}
    errors: list[CommitFailed | None] = []
    with KafkaConsumer(client, properties) as first, KafkaConsumer(client, properties) as second:
        first.assign([key]), second.assign([key])
        committed = []
        for consumer, offset in [(first, 5), (second, 7), (first, 5), (second, 3)]:
            consumer.commit_sync({key: offset})
            committed.append([first.committed([key])[key], second.committed([key])[key]])
        assert committed == [[CommittedOffset(offset)] * 2 for offset in (5, 7, 5, 3)]
        first.commit_async({key: 8}, lambda offsets, error: errors.append(error))
        wait_until(lambda: fetch_offsets(client, group, None, client.deadline()) == {key: CommittedOffset(8)})
        second.commit_async({key: 9}, lambda offsets, error: errors.append(error))
    assert errors == [None, None]
    assert fetch_offsets(client, group, None, client.deadline()) == {key: CommittedOffset(9)}


def test_flush_waits_until_the_commit_is_counted(
    client: Client, manager: OffsetManager, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may be paused between a reply and its counters."""
    committed, go_on = threading.Event(), threading.Event()

    def commit_and_wait(*args: Any, **options: Any) -> None:
        commit_offsets(*args, **options)
        committed.set()
        go_on.wait(30)

    monkeypatch.setattr(offset_manager, "commit_offsets", commit_and_wait)
    manager.stage({(new_topic(), 0): CommittedOffset(5)})
    assert committed.wait(30)
    assert not manager.flush(client.deadline(100))
    go_on.set()
    assert flushed(client, manager)
    assert manager.counts.succeeded == 1


def test_non_member_commit_is_retried_until_the_group_is_empty(
    client: Client, manager: OffsetManager, name: str
) -> None:
    (joined,) = stable(client, manager.group)
    manager.stage({(name, 0): CommittedOffset(5)})
    assert not manager.flush(client.deadline(1_000))
    wait_until(lambda: manager.counts.failed >= 2)  # the commit is retried
    assert not manager.healthy
    assert "the group has live members" in str(manager.counts.last_failure)
    assert joined.leave() == 0
    assert flushed(client, manager)
    assert found(client, manager) == {0: 5}


def test_oversized_metadata_drops_only_its_partition(
    client: Client, manager: OffsetManager, new_topic: NewTopic
) -> None:
    name = new_topic(3)
    manager.stage({(name, number): CommittedOffset(5, metadata="." * 5_000 * (number == 1)) for number in range(3)})
    assert not flushed(client, manager)
    assert f"{name}-1" in str(manager.counts.last_failure)
    assert manager.healthy
    assert found(client, manager) == {0: 5, 2: 5}
    manager.stage({(name, 1): CommittedOffset(5, metadata="a word")})
    assert flushed(client, manager)
    assert found(client, manager) == {0: 5, 1: 5, 2: 5}
    assert (manager.counts.succeeded, manager.counts.failed) == (1, 1)
