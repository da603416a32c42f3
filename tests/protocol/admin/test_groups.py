"""Administration of groups, in cases that a single real broker does not show."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import Admin
from protocol.admin.groups import ListedGroup, describe_group, list_groups
from protocol.group.assignors.subscription_codec import encode_assignment
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.testing import FakeKafka
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m16_list_groups import LIST_GROUPS
from tests.protocol.fetch.consuming import client_of


def test_groups_of_all_brokers_are_listed() -> None:
    with FakeKafka(3) as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("t", 1)
        for group in ("c", "b", "a"):
            commit_offsets(client, group, {("t", 0): CommittedOffset(1)}, client.deadline())
        assert len(set(kafka.coordinators.values())) == 3
        assert list_groups(client) == [ListedGroup(group, "classic", "Empty") for group in "abc"]


def test_group_that_two_brokers_list_during_a_move_comes_once() -> None:
    row = {"group_id": "etl", "protocol_type": "", "group_state": "Empty", "group_type": "classic"}
    with FakeKafka(2) as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.edit_replies("ListGroups", lambda body: {**body, "groups": [row]})
        assert list_groups(client) == [ListedGroup("etl", "classic", "Empty")]


def test_consumer_groups_alone_are_listed() -> None:
    def row(group: str, protocol_type: str, type: str) -> dict[str, str]:
        return {"group_id": group, "protocol_type": protocol_type, "group_state": "Stable", "group_type": type}

    rows = [
        *(row("of KIP-848", "consumer", "consumer"), row("from before types", "consumer", "")),
        *(row("of shares", "share", "share"), row("Connect's", "connect", "classic")),
    ]
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.handlers[LIST_GROUPS] = lambda body, version: {"groups": rows}
        assert [(group.group, group.type) for group in list_groups(client)] == [
            ("from before types", "classic"),
            ("of KIP-848", "consumer"),
        ]
        with Admin({"bootstrap.servers": kafka.bootstrap_servers}) as admin:
            assert admin.list_groups() == list_groups(client)
            assert [group.group for group in admin.list_groups(types=["Share"])] == ["of shares"]
            assert [group.group for group in admin.list_groups(protocol_types=["connect"])] == ["Connect's"]


@pytest.mark.parametrize(
    ("protocol_type", "written", "read"),
    [
        ("consumer", encode_assignment([("t", 1)]), {("t", 1)}),
        ("consumer", b"", set()),
        ("consumer", b"its own way", set()),
        ("connect", encode_assignment([("t", 1)]), set()),
    ],
)
def test_members_are_described_with_any_assignment_bytes(protocol_type: str, written: bytes, read: set[Any]) -> None:
    member = {"member_id": "m-1", "client_id": "m", "client_host": "/h", "member_metadata": b""}
    row = {"group_id": "g", "group_state": "Stable", "protocol_type": protocol_type, "protocol_data": "range"}
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.handlers[DESCRIBE_GROUPS] = lambda body, version: {
            "groups": [{**row, "members": [{**member, "member_assignment": written}]}]
        }
        (result,) = describe_group(client, "g").members
        assert (result.member_id, result.client_id, result.client_host, result.assignment) == ("m-1", "m", "/h", read)
