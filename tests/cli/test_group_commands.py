"""`pykafka groups clone`, `lag`, `remove-members`, and offsets in files, against Kafka's own tool."""

from __future__ import annotations

import csv
import json
import re
import signal
import urllib.request
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke_at, process_at, refusal, rows
from tests.conftest import TopicFactory
from tests.support.librdkafka import consumer, produce
from tests.support.wait_until import wait_until

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def run(kafka1: LocalKafka) -> Any:
    return partial(invoke_at, kafka1, "groups")


def commit(kafka: LocalKafka, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    member = consumer(kafka, group)
    member.commit(offsets=[TopicPartition(*key, offset) for key, offset in offsets.items()], asynchronous=False)
    member.close()


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
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["topic"] == topic
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_lag_is_served_for_prometheus_until_ctrl_c(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic, group = topic1(), f"group-{uuid.uuid4().hex[:8]}"
    produce(kafka1, topic, "a", "b", "c")
    commit(kafka1, group, {(topic, 0): 1})
    with process_at(kafka1, "groups", "lag", group, "--serve", "127.0.0.1:0") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        with urllib.request.urlopen(line.split(" at ")[1].strip(), timeout=30) as response:
            page = response.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    (served,) = re.findall(rf'kafka_consumergroup_lag{{.*topic="{topic}".*}} (.+)', page)
    assert float(served) == 2


def test_address_to_serve_at_is_checked() -> None:
    assert "is not [HOST]:PORT" in refusal("groups", "lag", "g", "--serve", "9308x")
    assert "is not [HOST]:PORT" in refusal("groups", "lag", "g", "--serve", ":²")
    assert "only one of --watch and --serve" in refusal("groups", "lag", "g", "--serve", ":1", "--watch")
