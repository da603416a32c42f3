"""Commits on a model of three brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from protocol import Client, OffsetManager, TopicPartition
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.group.member import GroupMember
from protocol.testing import FakeKafka
from tests.protocol.fetch.consuming import client_of

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
        for body in fake.request_bodies("OffsetCommit")
    ]


def stage_as(
    manager: OffsetManager, member: GroupMember, offsets: Mapping[TopicPartition, CommittedOffset] = MARKS
) -> None:
    """Stage offsets of the partitions that the member has now."""
    manager.set_member(member)
    manager.stage(offsets, member)
