"""What a coordinator leaves out of a reply is neither committed nor uncommitted."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Corrupt
from protocol.group.offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from tests.fake_broker import FakeBroker
from tests.protocol.consumer.consuming import client_of

GROUP = "etl"
BOTH = {("orders", 0): CommittedOffset(5, 1), ("orders", 1): CommittedOffset(6, 1)}


def coordinator_that_answers_for(partitions: list[int]) -> FakeBroker:
    fake = FakeBroker()

    def committed(body: dict[str, Any], version: int) -> dict[str, Any]:
        return {"topics": [{"name": "orders", "partitions": [{"partition_index": each} for each in partitions]}]}

    def fetched(body: dict[str, Any], version: int) -> dict[str, Any]:
        rows = [
            {"partition_index": each, "committed_offset": 5 + each, "committed_leader_epoch": 1, "metadata": ""}
            for each in partitions
        ]
        return {"groups": [{"group_id": GROUP, "topics": [{"name": "orders", "partitions": rows}]}]}

    where = {"node_id": 1, "host": fake.host, "port": fake.port}
    fake.handlers.update(
        {
            METADATA.key: lambda *_: {"brokers": [where], "controller_id": 1, "topics": []},
            FIND_COORDINATOR.key: lambda *_: {"coordinators": [{**where, "key": GROUP}]},
            OFFSET_COMMIT.key: committed,
            OFFSET_FETCH.key: fetched,
        }
    )
    return fake


def test_what_is_answered_for_is_committed_and_fetched() -> None:
    with coordinator_that_answers_for([0, 1]) as fake, client_of(f"{fake.host}:{fake.port}") as client:
        commit_offsets(client, GROUP, BOTH, client.deadline())
        assert fetch_offsets(client, GROUP, BOTH, client.deadline()) == BOTH


def test_a_partition_that_is_left_out_is_named() -> None:
    with coordinator_that_answers_for([0]) as fake, client_of(f"{fake.host}:{fake.port}") as client:
        with pytest.raises(Corrupt, match=r"OffsetCommit for group etl at .*: the reply leaves out orders-1"):
            commit_offsets(client, GROUP, BOTH, client.deadline())
        with pytest.raises(Corrupt, match=r"OffsetFetch for group etl at .*: the reply leaves out orders-1"):
            fetch_offsets(client, GROUP, BOTH, client.deadline())
        # All there are: then nothing can be missing.
        assert fetch_offsets(client, GROUP, None, client.deadline()) == {("orders", 0): CommittedOffset(5, 1)}
