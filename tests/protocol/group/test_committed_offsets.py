"""Partitions missing in a coordinator's reply count neither as committed nor as uncommitted."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Corrupt
from protocol.group.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from tests.protocol.consumer.consuming import client_of

GROUP = "etl"
BOTH = {("orders", 0): CommittedOffset(5, 1), ("orders", 1): CommittedOffset(6, 1)}


def coordinator_answering_for(partitions: list[int]) -> FakeKafka:
    """Return a cluster whose replies omit the other partitions of a topic with two."""
    kafka = FakeKafka()
    kafka.create_topic("orders", 2)

    def only_some(topics: list[dict[str, Any]]) -> None:
        for topic in topics:
            topic["partitions"] = [row for row in topic["partitions"] if row["partition_index"] in partitions]

    def edit(body: dict[str, Any]) -> dict[str, Any]:
        for each in body.get("groups", [body]):
            only_some(each["topics"])
        return body

    for api in (OFFSET_COMMIT, OFFSET_FETCH):
        kafka.edit_replies(api, edit)
    return kafka


def test_partitions_in_the_reply_are_committed_and_fetched() -> None:
    with coordinator_answering_for([0, 1]) as kafka, client_of(kafka.bootstrap_servers) as client:
        commit_offsets(client, GROUP, BOTH, client.deadline())
        assert fetch_offsets(client, GROUP, BOTH, client.deadline()) == BOTH


def test_partition_missing_in_the_reply_is_named() -> None:
    with coordinator_answering_for([0]) as kafka, client_of(kafka.bootstrap_servers) as client:
        with pytest.raises(Corrupt, match=r"OffsetCommit for group etl at .*: the reply omits orders-1"):
            commit_offsets(client, GROUP, BOTH, client.deadline())
        with pytest.raises(Corrupt, match=r"OffsetFetch for group etl at .*: the reply omits orders-1"):
            fetch_offsets(client, GROUP, BOTH, client.deadline())
        # A request for all partitions: a reply with fewer is complete.
        assert fetch_offsets(client, GROUP, None, client.deadline()) == {("orders", 0): CommittedOffset(5, 1)}
