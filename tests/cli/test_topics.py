"""`pykafka topics`, and the groups that `pykafka groups list` shows, on the fake cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
from tests.cli.runs import invoke_at, rows
from tests.protocol.fetch.consuming import client_of


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        yield kafka


def test_topics_create_sets_partitions_and_config(fake: FakeKafka) -> None:
    result = invoke_at(fake, "topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=1000")
    assert result.output == "created orders\n"
    with client_of(fake.bootstrap_servers) as client:
        assert len(client.topic("orders", client.deadline()).partitions) == 3
    assert "TOPIC_ALREADY_EXISTS" in invoke_at(fake, "topics", "create", "orders", code=1).output


def test_topics_create_if_not_exists_leaves_an_existing_topic_alone(fake: FakeKafka) -> None:
    for printed in ("created orders\n", "orders exists\n"):
        assert invoke_at(fake, "topics", "create", "orders", "--if-not-exists").output == printed


def test_topic_deleted_during_list_does_not_fail_the_others(fake: FakeKafka) -> None:
    fake.create_topic("orders")
    fake.create_topic("payments")
    # A second request, about these topics, would come too late for one of them.
    fake.before[METADATA] = lambda body: body["topics"] and fake.controller.delete_topic("orders")
    assert "payments" in {row["topic"] for row in rows(invoke_at(fake, "topics", "list", "-o", "json"))}


def test_partition_without_leader_is_described_without_offsets() -> None:
    with FakeKafka(2) as fake:
        fake.create_topic("orders", 2)
        fake.stop(2)
        result = invoke_at(fake, "topics", "describe", "orders", "--timeout", "5s", "-o", "json")
    assert sorted((row["leader"], row["log_end_offset"]) for row in rows(result)) == [(-1, None), (1, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("create t --config retention.ms", "NAME=VALUE"),
        (f"create t --partitions {2**31}", "is not in the range"),
        (f"create t --replication-factor {2**15}", "is not in the range"),
        ("create t --partitions 2 --replica-assignment 0:1", "Give either --replica-assignment"),
        ("create t --replica-assignment 0:0", "a partition names a broker twice"),
        ("create t --replica-assignment 0:x", "0:x"),
        ("alter t --partitions 2 --replica-assignment 0", "the same number of partitions"),
    ],
)
def test_topics_with_invalid_option_exits_with_usage_error(fake: FakeKafka, arguments: str, message: str) -> None:
    assert message in invoke_at(fake, "topics", *arguments.split(), code=2).output


QUERY = "0b6d1f3e-7a35-4b0c-9d2a-1f2e3d4c5b6a"


def test_groups_list_shows_exactly_once_task_groups_only_with_all(fake: FakeKafka) -> None:
    own = ["etl", "etl-3", f"prefix-{QUERY}"]
    of_tasks = [f"prefix-{QUERY}-0", f"prefix-{QUERY}-17", f"prefix-{QUERY.replace('-', '')}-2"]
    fake.create_topic("t", 1)
    with client_of(fake.bootstrap_servers) as client:
        for group in own + of_tasks:
            commit_offsets(client, group, {("t", 0): CommittedOffset(1)}, client.deadline())
    shown, everything = (invoke_at(fake, "groups", "list", "-o", "json", *more) for more in ((), ("--all",)))
    assert sorted(row["group"] for row in rows(shown)) == sorted(own)
    assert shown.stderr == "Not shown: 3 groups of tasks of exactly-once writes; --all shows them.\n"
    assert sorted(row["group"] for row in rows(everything)) == sorted(own + of_tasks)
    assert everything.stderr == ""
