"""`pykafka topics`, and the groups that `pykafka groups list` shows, on the fake cluster."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.cli.pykafka import pykafka
from tests.protocol.fetch.consuming import client_of


def run(kafka: FakeKafka, *arguments: str) -> Result:
    return CliRunner().invoke(pykafka, [*arguments, "--bootstrap-server", kafka.bootstrap_servers])


def test_topics_create_sets_partitions_and_config() -> None:
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        result = run(kafka, "topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=1000")
        assert (result.exit_code, result.output) == (0, "created orders\n")
        assert len(client.topic("orders", client.deadline()).partitions) == 3
        again = run(kafka, "topics", "create", "orders")
        assert (again.exit_code, "TOPIC_ALREADY_EXISTS" in again.output) == (1, True)


def test_topics_create_with_malformed_config_exits_with_usage_error() -> None:
    with FakeKafka() as kafka:
        result = run(kafka, "topics", "create", "orders", "--config", "retention.ms")
    assert (result.exit_code, "NAME=VALUE" in result.output) == (2, True)


@pytest.mark.parametrize(("option", "too_many"), [("--partitions", str(2**31)), ("--replication-factor", str(2**15))])
def test_topics_create_with_counts_beyond_kafkas_integers_exits_with_usage_error(option: str, too_many: str) -> None:
    with FakeKafka() as kafka:
        result = run(kafka, "topics", "create", "orders", option, too_many)
    assert (result.exit_code, "is not in the range" in result.output) == (2, True)


def test_topics_create_if_not_exists_leaves_an_existing_topic_alone() -> None:
    with FakeKafka() as kafka:
        for printed in ("created orders\n", "orders exists\n"):
            result = run(kafka, "topics", "create", "orders", "--if-not-exists")
            assert (result.exit_code, result.output) == (0, printed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "t", "--partitions", "2", "--replica-assignment", "0:1"], "Give either --replica-assignment"),
        (["create", "t", "--replica-assignment", "0:0"], "a partition names a broker twice"),
        (["create", "t", "--replica-assignment", "0:x"], "0:x"),
        (["alter", "t", "--partitions", "2", "--replica-assignment", "0"], "the same number of partitions"),
    ],
)
def test_topics_with_invalid_replica_assignment_exits_with_usage_error(arguments: list[str], message: str) -> None:
    with FakeKafka() as kafka:
        result = run(kafka, "topics", *arguments)
    assert (result.exit_code, message in result.output) == (2, True), result.output


QUERY = "0b6d1f3e-7a35-4b0c-9d2a-1f2e3d4c5b6a"


def test_groups_list_shows_exactly_once_task_groups_only_with_all() -> None:
    own = ["etl", "etl-3", f"prefix-{QUERY}"]
    of_tasks = [f"prefix-{QUERY}-0", f"prefix-{QUERY}-17", f"prefix-{QUERY.replace('-', '')}-2"]
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("t", 1)
        for group in own + of_tasks:
            commit_offsets(client, group, {("t", 0): CommittedOffset(1)}, client.deadline())
        shown = run(kafka, "groups", "list", "--output", "json")
        everything = run(kafka, "groups", "list", "--output", "json", "--all")
    assert sorted(row["group"] for row in json.loads(shown.stdout)) == sorted(own)
    assert shown.stderr == "Not shown: 3 groups of tasks of exactly-once writes; --all shows them.\n"
    assert sorted(row["group"] for row in json.loads(everything.stdout)) == sorted(own + of_tasks)
    assert everything.stderr == ""
