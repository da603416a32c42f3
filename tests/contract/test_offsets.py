"""Committed offsets: commits by members and by clients without a group, and the offsets that other clients read."""

from __future__ import annotations

from typing import Any

from protocol.admin.groups import describe_group
from protocol.admin.topics import delete_topic
from protocol.broker_errors import ErrorCode, broker_error, error_row
from protocol.cluster.client import Client
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from tests.contract.members import GroupMember, ask_coordinator, commit, commit_body, committed, new_group


def test_offsets_committed_by_our_client_are_fetched(client: Client, new_topic: Any) -> None:
    name, group = new_topic(3), new_group()
    offsets = {(name, 0): CommittedOffset(5, 0), (name, 2): CommittedOffset(7, -1)}
    commit_offsets(client, group, offsets, client.deadline())
    assert fetch_offsets(client, group, offsets, client.deadline()) == offsets
    assert fetch_offsets(client, group, None, client.deadline()) == offsets
    assert committed(client, group, name, 1) == (0, -1)


def test_group_with_commits_only_is_listed_as_empty(client: Client, new_topic: Any) -> None:
    group = new_group()
    assert commit(client, group, new_topic(), 5) == 0
    assert describe_group(client, group).state == "Empty"


def test_committed_offset_may_decrease(client: Client, name: str, group: str) -> None:
    assert [commit(client, group, name, offset) for offset in (9, 3)] == [0, 0]
    assert committed(client, group, name) == (0, 3)


def test_unknown_group_has_no_offsets(client: Client, name: str, group: str) -> None:
    assert committed(client, group, name) == (0, -1)
    body = {"groups": [{"group_id": group, "topics": None}]}
    (row,) = ask_coordinator(client, group, OFFSET_FETCH, body)["groups"]
    assert (row["error_code"], row["topics"]) == (0, [])


def test_commit_to_a_group_with_members_needs_membership(client: Client, member: GroupMember, name: str) -> None:
    me = {"member_id": member.member_id, "generation_id_or_member_epoch": member.generation}
    assert commit(client, member.group, name, 1, **me) == 0
    refused = {
        "an old generation": ({**me, "generation_id_or_member_epoch": member.generation - 1}, "ILLEGAL_GENERATION"),
        "a generation to come": ({**me, "generation_id_or_member_epoch": member.generation + 1}, "ILLEGAL_GENERATION"),
        "another member": ({**me, "member_id": "nobody"}, "UNKNOWN_MEMBER_ID"),
        "nobody": ({}, "UNKNOWN_MEMBER_ID"),
        "another instance": ({**me, "group_instance_id": "b"}, "UNKNOWN_MEMBER_ID"),
    }
    answers = {
        who: error_row(commit(client, member.group, name, 9, **as_whom)).name for who, (as_whom, _) in refused.items()
    }
    assert answers == {who: code for who, (_, code) in refused.items()}
    assert committed(client, member.group, name) == (0, 1)


def test_commit_during_a_rebalance_is_accepted_until_rejoin(client: Client, member: GroupMember, name: str) -> None:
    second = GroupMember(client, member.group)
    waiting = second.begin()
    member.await_rebalance()
    me = {"member_id": member.member_id, "generation_id_or_member_epoch": member.generation}
    assert commit(client, member.group, name, 1, **me) == 0, "the last commit before the partitions are revoked"
    reply = member.send_join()
    member.end(reply), second.end(waiting)
    assert commit(client, member.group, name, 2, **me) == ErrorCode.ILLEGAL_GENERATION
    me["generation_id_or_member_epoch"] = member.generation
    assert commit(client, member.group, name, 3, **me) == ErrorCode.REBALANCE_IN_PROGRESS, (
        "no commit between JoinGroup and SyncGroup"
    )
    assert committed(client, member.group, name) == (0, 1)


def test_commit_with_generation_to_unknown_group_is_refused(client: Client, new_topic: Any) -> None:
    me = {"member_id": "nobody", "generation_id_or_member_epoch": 1}
    assert commit(client, new_group(), new_topic(), 1, **me) == ErrorCode.GROUP_ID_NOT_FOUND


def test_invalid_commits_are_refused(client: Client, name: str, group: str) -> None:
    assert commit(client, group, name, 1, metadata="." * 5_000) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(client, group, name, 1, partition=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = ask_coordinator(client, group, OFFSET_COMMIT, commit_body(group, b"\1" * 16, 1))
    assert unknown["topics"][0]["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    by_name = {"name": "not-there", "partitions": commit_body(group, b"", 1)["topics"][0]["partitions"]}
    unknown = ask_coordinator(client, group, OFFSET_COMMIT, {"group_id": group, "topics": [by_name]}, version=9)
    assert unknown["topics"][0]["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_an_unknown_topic_id_are_refused(client: Client, name: str, group: str) -> None:
    assert commit(client, group, name, 1) == 0
    body = {"groups": [{"group_id": group, "topics": [{"topic_id": b"\1" * 16, "partition_indexes": [0]}]}]}
    (row,) = ask_coordinator(client, group, OFFSET_FETCH, body, version=10)["groups"]
    assert row["topics"][0]["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_topic_deletion_removes_its_committed_offsets(client: Client, name: str, group: str) -> None:
    assert commit(client, group, name, 1) == 0
    delete_topic(client, name)

    def gone() -> None:
        body = {"groups": [{"group_id": group, "topics": [{"name": name, "partition_indexes": [0]}]}]}
        (row,) = ask_coordinator(client, group, OFFSET_FETCH, body, version=9)["groups"]
        part = row["topics"][0]["partitions"][0]
        if part["committed_offset"] != -1:
            raise broker_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "still there")

    client.retrying("gone", gone, client.deadline())
