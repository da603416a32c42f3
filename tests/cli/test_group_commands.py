"""`pykafka groups`: offsets in files, members and lag against Kafka's own tool; limits of resets."""

from __future__ import annotations

import csv
import json
import re
import signal
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import commit, invoke_at, process_at, refusal, rows, run_at_kafka1
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import records
from tests.support.librdkafka import consumer, produce
from tests.support.wait_until import wait_until

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


run = run_at_kafka1("groups")


def committed(kafka: LocalKafka, group: str, topic: str, partitions: int = 1) -> list[int]:
    member = consumer(kafka, group)
    result = member.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=10)
    member.close()
    return [record.offset for record in result]


def test_offset_files_are_those_of_kafkas_tool(
    run: Any, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic, ours, path = topic1(2), tmp_path / "ours.csv", tmp_path / "theirs.csv"
    for number in range(9):
        produce(kafka1, topic, str(number))
    group = f"g-{topic}"
    commit(kafka1, group, {(topic, 0): 1, (topic, 1): 0})
    run("reset", group, "--all-topics", "--to-current", "--to-file", str(ours))
    with ours.open() as file:
        assert list(csv.reader(file)) == [[topic, "0", "1"], [topic, "1", "0"]]
    tool = ("--bootstrap-server", kafka1.bootstrap_servers, "--group", group, "--reset-offsets")
    path.write_text(kafka1.run_tool(GROUPS_TOOL, *tool, "--all-topics", "--to-latest", "--export", "--dry-run"))
    latest = {
        row["partition"]: row["new_offset"] for row in rows(run("reset", group, "--from-file", str(path), "-o", "json"))
    }
    run("reset", group, "--from-file", str(path), "--execute")
    assert committed(kafka1, group, topic, 2) == [latest[0], latest[1]]
    assert sum(latest.values()) == 9
    kafka1.run_tool(GROUPS_TOOL, *tool, "--from-file", str(ours), "--execute")
    assert committed(kafka1, group, topic, 2) == [1, 0]
    only = rows(run("reset", group, "--from-file", str(path), "--topic", f"{topic}:1", "-o", "json"))
    assert [row["partition"] for row in only] == [1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no rows"),
        ("orders,0\n", "line 1"),
        ("orders,0,5\norders,x,5\n", "line 2"),
        ("orders,0,5\norders,0,6\n", "twice"),
        ('"' + 200_000 * "x", "field larger than"),
        (None, "No such file"),
    ],
)
def test_wrong_offset_file_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "offsets.csv"
    if text is not None:
        file.write_text(text)
    assert says in refusal("groups", "reset", "g", "--from-file", str(file))


def test_reset_to_file_with_unknown_partition_fails(run: Any, topic1: TopicFactory, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(f"{topic1(1)},7,0\n")
    assert "There is no partition" in run("reset", "g", "--from-file", str(file), code=1).stderr


def test_reset_to_other_group_and_clone_copy_offsets(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    first, second = topic1(1), topic1(1)
    produce(kafka1, first, "a", "b", "c")
    produce(kafka1, second, "a", "b")
    source, target, copy = (f"{name}-{first}" for name in ("source", "target", "copy"))
    commit(kafka1, source, {(first, 0): 2, (second, 0): 1})
    run("reset", target, "--all-topics", "--to-group", source, "--execute")
    assert (committed(kafka1, target, first), committed(kafka1, target, second)) == ([2], [1])
    assert "no committed offsets" in run("reset", target, "--all-topics", "--to-group", "nobody", code=1).stderr
    shown = run("clone", source, copy, "--topic", first, "-o", "json")
    assert [(row["topic"], row["current_offset"], row["new_offset"]) for row in rows(shown)] == [(first, None, 2)]
    assert (committed(kafka1, copy, first), "--execute" in shown.stderr) == ([-1001], True)
    run("clone", source, copy, "--execute")
    assert (committed(kafka1, copy, first), committed(kafka1, copy, second)) == ([2], [1])
    assert "no committed offsets" in run("clone", "nobody", copy, code=1).stderr


def joined(kafka: LocalKafka, group: str, topic: str, **properties: Any) -> Consumer:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0, **properties}
    member = Consumer(settings)
    member.subscribe([topic])
    wait_until(lambda: member.poll(0.1) or member.assignment(), lambda: "no assignment")
    return member


def test_members_are_removed_by_instance_id_or_all(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(1)
    group = f"g-{topic}"
    member = joined(kafka1, group, topic, **{"group.instance.id": "worker-3"})
    assert "is inactive" in run("reset", group, "--all-topics", "--to-latest", code=1).stderr
    assert "has members" in run("clone", "any", group, code=1).stderr
    assert "Aborted" in run("remove-members", group, "--all", code=1).stderr
    assert "worker-9" in run("remove-members", group, "--instance-id", "worker-9", "--yes", code=1).stderr
    assert run("remove-members", group, "--instance-id", "worker-3", "--yes").stdout == "removed worker-3\n"
    assert "worker-3" not in kafka1.describe_group(group, "--members")
    member.close()
    another = joined(kafka1, f"all-{topic}", topic)
    assert run("remove-members", f"all-{topic}", "--all", "--yes").stdout.startswith("removed rdkafka-")
    another.close()
    assert "does not exist" in run("remove-members", "nobody", "--all", "--yes", code=1).stderr
    run("remove-members", group, code=2)


def test_lag_is_summed_by_topic(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    first, second = topic1(1), topic1(1)
    produce(kafka1, first, "a", "b", "c")
    produce(kafka1, second, "a", "b")
    group = f"g-{first}"
    commit(kafka1, group, {(first, 0): 1, (second, 0): 2})
    lags = {row["topic"]: row for row in rows(run("lag", group, "-o", "json"))}
    assert {topic: (row["lag"], row["max_lag"], row["partitions"]) for topic, row in lags.items()} == {
        first: (2, 2, 1),
        second: (0, 0, 1),
    }
    assert (lags[first]["state"], lags[first]["members"]) == ("Empty", 0)
    assert lags[first]["max_lag_seconds"] > 0 == lags[second]["max_lag_seconds"]


def test_lag_watch_prints_json_lines_until_stopped(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(1)
    group = f"g-{topic}"
    commit(kafka1, group, {(topic, 0): 0})
    lines = run("lag", group, "--watch", "--interval", "10ms", "-n", "3").stdout.splitlines()
    assert [json.loads(line)["lag"] for line in lines] == [0, 0, 0]
    with process_at(kafka1, "groups", "lag", group, "--watch", "--interval", "1h") as process:
        assert json.loads(process.stdout.readline())["topic"] == topic
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_lag_is_served_for_prometheus_until_ctrl_c(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic, group = topic1(), f"group-{uuid.uuid4().hex[:8]}"
    produce(kafka1, topic, "a", "b", "c")
    commit(kafka1, group, {(topic, 0): 1})
    with process_at(kafka1, "groups", "lag", group, "--serve", "127.0.0.1:0") as process:
        line = process.stdout.readline()
        with urllib.request.urlopen(line.split(" at ")[1].strip(), timeout=30) as response:
            page = response.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    (served,) = re.findall(rf'kafka_consumergroup_lag{{.*topic="{topic}".*}} (.+)', page)
    assert float(served) == 2


RESET = ("groups", "reset", "etl", "--topic", "orders:0")


@pytest.fixture
def fake(kafka_fake: FakeKafka) -> FakeKafka:
    """Return a cluster with nine records in the first of two partitions of `orders`."""
    kafka_fake.create_topic("orders", 2)
    kafka_fake.write("orders", 0, records(0, 9))
    return kafka_fake


@pytest.mark.parametrize(
    ("way", "new_offset"),
    [
        (("--by-duration", "99999d"), 0),
        (("--by-duration", "P99999D"), 0),
        (("--to-datetime", "9999-12-31T23:59:59Z"), 9),
        (("--to-offset", "9" * 22), 9),
    ],
)
def test_reset_beyond_log_or_before_1970_takes_nearest_offset(
    fake: FakeKafka, way: tuple[str, str], new_offset: int
) -> None:
    assert [row["new_offset"] for row in rows(invoke_at(fake, *RESET, *way, "-o", "json"))] == [new_offset]


@pytest.mark.parametrize("execute", [True, False])
def test_executed_reset_tells_of_running_queries_without_membership(fake: FakeKafka, execute: bool) -> None:
    stderr = invoke_at(fake, *RESET, "--to-latest", *["--execute"] * execute).stderr
    assert ("restores its own offsets within a minute" in stderr) == execute
    assert ("Nothing was changed" in stderr) != execute


@pytest.mark.parametrize(("way", "group"), [(("--to-current",), "etl"), (("--to-group", "etl"), "copy")])
def test_copied_offset_keeps_its_leader_epoch(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture, way: tuple[str, ...], group: str
) -> None:
    before = {("orders", 0): Committed(5, 3, "so far"), ("orders", 1): Committed(7, 3, "")}
    fake.offsets.committed["etl"] = dict(before)
    invoke_at(fake, "groups", "reset", group, "--all-topics", *way, "--execute")
    assert "orders-1: offset 7 is not in the log, 0 is the nearest" in caplog.text
    assert fake.offsets.committed[group] == {**before, ("orders", 1): Committed(0, -1, "")}  # the end of the log


def test_list_shows_exactly_once_task_groups_only_with_all(fake: FakeKafka) -> None:
    query = "0b6d1f3e-7a35-4b0c-9d2a-1f2e3d4c5b6a"
    own = ["etl", "etl-3", f"prefix-{query}"]
    of_tasks = [f"prefix-{query}-0", f"prefix-{query}-17", f"prefix-{query.replace('-', '')}-2"]
    for group in own + of_tasks:
        commit(fake, group, {("orders", 0): 1})
    shown, everything = (invoke_at(fake, "groups", "list", "-o", "json", *more) for more in ((), ("--all",)))
    assert sorted(row["group"] for row in rows(shown)) == sorted(own)
    assert shown.stderr == "Not shown: 3 groups of tasks of exactly-once writes; --all shows them.\n"
    assert sorted(row["group"] for row in rows(everything)) == sorted(own + of_tasks)
    assert everything.stderr == ""
