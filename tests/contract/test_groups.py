"""Classic groups: joining and syncing, heartbeats, members that leave, return, or time out."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.admin.groups import describe_group
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m16_list_groups import LIST_GROUPS
from tests.contract.members import GroupMember, admit, ask_coordinator, new_group, stable, subscription, sync_all
from tests.support.wait_until import comes_true, wait_until


class TestRebalances:
    def test_new_member_gets_its_id_before_it_joins(self, client: Client) -> None:
        member = GroupMember(client, new_group())
        row = member.send_join().result(client.deadline())
        assert (row["error_code"], row["generation_id"], row["members"]) == (ErrorCode.MEMBER_ID_REQUIRED, -1, [])
        assert row["member_id"]

    def test_single_member_leads_and_assigns_to_itself(self, client: Client) -> None:
        group = new_group()
        member = GroupMember(client, group, protocols={"range": subscription("mine")})
        joined = member.end(member.begin()).joined
        fields = ("generation_id", "protocol_type", "protocol_name", "leader", "skip_assignment")
        assert [joined[field] for field in fields] == [1, "consumer", "range", member.member_id, False]
        assert [(member["member_id"], bytes(member["metadata"])) for member in joined["members"]] == [
            (member.member_id, subscription("mine"))
        ]
        assert describe_group(client, group).state == "CompletingRebalance"
        row = member.sync({member.member_id: b"everything"}).result(client.deadline())
        assert (row["error_code"], bytes(row["assignment"])) == (0, b"everything")
        assert (row["protocol_type"], row["protocol_name"]) == ("consumer", "range")
        assert describe_group(client, group).state == "Stable"
        again = member.sync().result(client.deadline())
        assert bytes(again["assignment"]) == b"everything"

    def test_second_member_joins_in_the_next_generation(self, client: Client) -> None:
        (first,) = stable(client, new_group())
        second = GroupMember(client, first.group)
        waiting = second.begin()
        first.await_rebalance()
        assert not waiting.done
        reply = first.send_join()
        first.end(reply), second.end(waiting)
        assert first.generation == second.generation == 2
        assert (first.leads, second.leads) == (True, False)
        assert {member["member_id"] for member in first.joined["members"]} == {first.member_id, second.member_id}
        assert second.joined["members"] == [], "only the leader receives the members"
        follows = second.sync()
        assert not comes_true(lambda: follows.done, 0.2), "followers wait for the leader's SyncGroup"
        leads = first.sync({first.member_id: b"one half", second.member_id: b"the other"})
        assert [bytes(reply.result(client.deadline())["assignment"]) for reply in (leads, follows)] == [
            b"one half",
            b"the other",
        ]
        assert [first.heartbeat(), second.heartbeat()] == [0, 0]

    def test_member_without_assignment_gets_an_empty_one(self, client: Client) -> None:
        member = GroupMember(client, new_group())
        member.end(member.begin())
        assert bytes(member.sync({"somebody else": b"all"}).result(client.deadline())["assignment"]) == b""

    def test_assignor_supported_by_all_members_is_chosen(self, client: Client) -> None:
        first = GroupMember(client, new_group(), protocols={"sticky": subscription("1"), "range": subscription("2")})
        first.end(first.begin())
        assert first.joined["protocol_name"] == "sticky"
        second = admit(GroupMember(client, first.group, protocols={"range": subscription("3")}), first)
        assert second.joined["protocol_name"] == "range"
        metadata = {bytes(member["metadata"]) for member in first.joined["members"]}
        assert metadata == {subscription("2"), subscription("3")}
        third = GroupMember(client, first.group, protocols={"sticky": subscription("4")})
        assert third.join_code() == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_join_before_the_leader_syncs_restarts_the_rebalance(self, client: Client) -> None:
        first, second = stable(client, new_group(), 2)
        leads = first.send_join()
        second.await_rebalance()
        second.end(second.send_join())
        first.end(leads)
        follows = second.sync()
        third = GroupMember(client, first.group)
        third.begin()
        first.await_rebalance()
        assert follows.result(client.deadline())["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
        assert first.sync_code(assignments={}) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_follower_rejoining_unchanged_starts_no_rebalance(self, client: Client) -> None:
        first, second = stable(client, new_group(), 2)
        row = second.send_join().result(client.deadline())
        assert (row["error_code"], row["generation_id"]) == (0, second.generation)
        assert first.heartbeat() == 0
        changed = [{"name": "range", "metadata": subscription("other")}]
        second.send_join(protocols=changed)
        first.await_rebalance()

    def test_leader_rejoining_starts_a_rebalance(self, client: Client) -> None:
        first, second = stable(client, new_group(), 2)
        first.send_join()
        second.await_rebalance()

    def test_groups_are_listed_with_their_state(self, client: Client, member: GroupMember) -> None:
        (broker,) = client.brokers().values()
        for expected, present in (([], True), (["Stable"], True), (["Empty"], False)):
            reply = client.ask(broker, LIST_GROUPS, {"states_filter": expected}, client.deadline())
            rows = {row["group_id"]: row for row in reply["groups"]}
            assert (member.group in rows) == present
            if present:
                labels = [rows[member.group][name] for name in ("protocol_type", "group_state", "group_type")]
                assert labels == ["consumer", "Stable", "classic"]


class TestLeavingMembers:
    def test_leaving_member_starts_a_rebalance(self, client: Client) -> None:
        first, second = stable(client, new_group(), 2)
        assert second.leave() == 0
        assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert second.leave() == ErrorCode.UNKNOWN_MEMBER_ID
        first.end(first.send_join())
        assert first.generation == 3
        assert [member["member_id"] for member in first.joined["members"]] == [first.member_id]
        assert sync_all([first]) == {first.member_id: first.member_id.encode()}

    def test_leader_leaving_makes_another_member_leader(self, client: Client) -> None:
        first, second = stable(client, new_group(), 2)
        assert first.leave() == 0
        second.end(second.send_join())
        assert second.leads

    def test_last_member_leaving_empties_the_group(self, client: Client, member: GroupMember) -> None:
        assert member.leave() == 0
        described = describe_group(client, member.group)
        assert (described.state, described.members) == ("Empty", ())
        assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID

    def test_member_not_rejoining_before_rebalance_timeout_is_removed(self, client: Client) -> None:
        first, second = stable(client, new_group(), 2, rebalance_timeout_ms=2_500)
        first.end(first.send_join())
        assert [member["member_id"] for member in first.joined["members"]] == [first.member_id]
        assert second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID

    def test_member_without_heartbeats_is_removed_after_session_timeout(self, client: Client) -> None:
        (first,) = stable(client, new_group())
        second = admit(GroupMember(client, first.group, session_timeout_ms=2_500), first)
        sync_all([first, second])
        wait_until(lambda: first.heartbeat() != 0, every_s=0.05)
        assert second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        first.end(first.send_join())
        assert len(first.joined["members"]) == 1


class TestStaticMembers:
    def test_static_member_after_restart_keeps_its_assignment(self, client: Client) -> None:
        (first,) = stable(client, new_group(), instance_id="a")
        again = GroupMember(client, first.group, instance_id="a")
        again.end(again.begin())
        assert again.member_id != first.member_id
        assert (again.generation, again.joined["leader"]) == (first.generation, again.member_id)
        assert again.joined["skip_assignment"]
        assert bytes(again.sync().result(client.deadline())["assignment"]) == first.member_id.encode()
        assert first.heartbeat() == ErrorCode.FENCED_INSTANCE_ID

    def test_static_member_with_other_metadata_causes_no_rebalance(self, client: Client) -> None:
        (first,) = stable(client, new_group(), instance_id="a")
        again = GroupMember(client, first.group, instance_id="a", protocols={"range": subscription("orders", "bills")})
        again.end(again.begin())
        assert (again.generation, again.joined["skip_assignment"]) == (first.generation, True)
        assert again.heartbeat() == 0

    def test_member_leaves_by_its_instance_id(self, client: Client) -> None:
        (member,) = stable(client, new_group(), instance_id="a")
        body = {"group_id": member.group, "members": [{"member_id": "", "group_instance_id": "a"}]}
        (row,) = ask_coordinator(client, member.group, LEAVE_GROUP, body)["members"]
        assert (row["error_code"], row["group_instance_id"]) == (0, "a")
        assert describe_group(client, member.group).state == "Empty"


class TestRefusals:
    def test_requests_of_an_old_generation_are_refused(self, member: GroupMember) -> None:
        assert member.heartbeat(generation_id=member.generation - 1) == ErrorCode.ILLEGAL_GENERATION
        assert member.sync_code(generation_id=member.generation + 1) == ErrorCode.ILLEGAL_GENERATION

    @pytest.mark.parametrize(
        "fields", [{"protocol_name": "sticky"}, {"protocol_type": "connect"}, {"protocol_name": None}]
    )
    def test_sync_with_another_protocol_is_refused(self, member: GroupMember, fields: dict[str, Any]) -> None:
        assert member.sync_code(**fields) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_unknown_member_or_group_is_refused(self, client: Client, member: GroupMember) -> None:
        for refused in (member.heartbeat, member.sync_code, member.join_code):
            assert refused(member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        stranger = GroupMember(client, new_group(), member_id="nobody", joined={"generation_id": 1})
        for refused in (stranger.heartbeat, stranger.join_code):
            assert refused() == ErrorCode.UNKNOWN_MEMBER_ID
        assert describe_group(client, stranger.group).state == "Dead"

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"session_timeout_ms": 10}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"session_timeout_ms": 2_000_000_000}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ],
    )
    def test_join_with_invalid_fields_is_refused(
        self, client: Client, fields: dict[str, object], code: ErrorCode
    ) -> None:
        row = GroupMember(client, new_group()).send_join(**fields).result(client.deadline())
        assert (row["error_code"], row["member_id"]) == (code, "")

    def test_join_to_a_group_of_another_type_is_refused(self, client: Client, member: GroupMember) -> None:
        joining = GroupMember(client, member.group)
        assert joining.join_code(protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
