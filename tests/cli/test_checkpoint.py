"""`pykafka checkpoint`: a checkpoint of a real query, and checkpoints that differ from the log or the group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from protocol.admin import Admin
from spark_kafka_source.cli import checkpoint_files
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke, invoke_at, rows
from tests.conftest import TopicFactory
from tests.support.librdkafka import consumer, produce
from tests.support.noop_queries import run_query
from tests.support.wait_until import wait_until

OLDER = Path(__file__).parent.parent / "spark" / "driver" / "checkpoints"


def inspect(folder: Path | str, *arguments: str, code: int = 0) -> Result:
    return invoke("checkpoint", "inspect", str(folder), *arguments, code=code)


def diff(kafka: LocalKafka, folder: Path, *arguments: str, code: int = 0) -> Result:
    return invoke_at(kafka, "checkpoint", "diff", str(folder), *arguments, code=code)


def write_batch(folder: Path, number: int, *sources: Mapping[str, Any] | str, committed: bool = True) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"47de275a-d0ec-4be7-96c7-3f4cf0082389"}')
    lines = [source if isinstance(source, str) else json.dumps(source) for source in sources]
    (folder / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchTimestampMs":1769839200000}', *lines]))
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    if committed:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_sources_of_an_offset_log_with_names_have_these_names(tmp_path: Path) -> None:
    """Spark writes format v2 with named sources; a source that is new in a batch has no offset in the one before."""
    offsets = {"b": {"orders": {"0": 3}}, "a": {"payments": {"0": 7}}}
    for number, names in enumerate(("a", "ba")):
        write_batch(tmp_path, number)
        lines = [f"{name}:{json.dumps(offsets[name])}" for name in names]
        log = "\n".join(["v2", '{"batchTimestampMs":1769839200000}', *lines, "rates:5", "unread:-"])
        (tmp_path / "offsets" / str(number)).write_text(log)
    shown = rows(inspect(tmp_path, "--partitions", "-o", "json"))
    assert [(row["batch"], row["source"], row["topic"], row["start_offset"]) for row in shown] == [
        (0, "a", "payments", None),
        (1, "b", "orders", None),
        (1, "a", "payments", 7),
    ]


def test_checkpoint_of_query_matches_its_progress(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    """Slow: the first test here starts Spark."""
    topic, folder = topic1(2), tmp_path / "checkpoint"
    group = f"g-{topic}"
    options = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": topic, "kafka.group.id": group}

    def go_on() -> list[dict[str, Any]]:
        rows_read = spark.readStream.format("pykafka-group").options(**options, startingOffsets="earliest").load()
        return [json.loads(progress.json) for progress in run_query(rows_read, folder).recentProgress]

    produce(kafka1, topic, *map(str, range(10)))
    first = go_on()
    produce(kafka1, topic, *map(str, range(5)))
    progress = [*first, *go_on()]
    batches = rows(inspect(folder, "-o", "json"))
    assert all(row["committed"] and not row["unknown_starts"] for row in batches)
    counts = {trigger["batchId"]: trigger["numInputRows"] for trigger in progress if trigger["numInputRows"]}
    assert {row["batch"]: row["offsets"] for row in batches if row["offsets"]} == counts
    assert sum(counts.values()) == 15
    last = rows(inspect(folder, "--partitions", "--last", "1", "-o", "json"))
    end = progress[-1]["sources"][0]["endOffset"]
    ends = json.loads(end) if isinstance(end, str) else end
    assert {str(row["partition"]): row["end_offset"] for row in last} == ends[topic]

    def compared() -> list[dict[str, Any]]:
        return rows(diff(kafka1, folder, "-g", group, "--all", "-o", "json"))

    # The source may still commit after Spark has ended the query.
    wait_until(lambda: sum(row["group_offset"] or 0 for row in compared()) == 15, compared, every_s=0.2)
    assert {(row["lag"], row["finding"]) for row in compared()} == {(0, None)}
    equal = diff(kafka1, folder, "--group", group)
    assert equal.stdout.count("\n") == 1, "no findings, only the heading"
    assert "No finding in " in equal.stderr


def test_start_offsets_come_from_the_batch_before_and_the_connector(tmp_path: Path) -> None:
    inspected = rows(inspect(OLDER / "connector" / "checkpoint", "--partitions", "-o", "json"))
    assert [(row["batch"], row["committed"], row["start_offset"], row["end_offset"]) for row in inspected] == [
        (0, True, 0, 5),
        (0, True, 0, 0),
        (1, False, 5, 8),
        (1, False, 0, 2),
    ]
    folder = tmp_path / "checkpoint"
    write_batch(folder, 7, '{"offset": 5}', {"orders": {"0": 5}})
    write_batch(folder, 8, "-", {"orders": {"0": 9}}, committed=False)
    write_batch(folder, 10, "-", {"orders": {"0": 12}}, committed=False)
    shown = rows(inspect(f"file://{folder}", "-o", "json"))
    assert [(row["batch"], row["source"], row["offsets"], row["unknown_starts"]) for row in shown] == [
        (7, 1, 0, 1),
        (8, 1, 4, 0),
        (10, 1, 0, 1),
    ]
    assert [row["batch"] for row in rows(inspect(folder, "--batch", "8", "-o", "json"))] == [8]
    assert "no batch 9" in inspect(folder, "--batch", "9", code=1).stderr


def test_folder_that_is_no_checkpoint_is_one_error(tmp_path: Path) -> None:
    assert "no checkpoint" in inspect(tmp_path, code=1).stderr
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v9\n{}\n")
    assert "'v9'" in inspect(tmp_path, code=1).stderr


def test_batch_that_a_running_query_deletes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batch(tmp_path, 7, {"orders": {"0": 5}})
    numbers = checkpoint_files._numbers
    monkeypatch.setattr(checkpoint_files, "_numbers", lambda files, folder: [6, *numbers(files, folder)])
    assert [row["batch"] for row in rows(inspect(tmp_path, "-o", "json"))] == [7]


def test_diff_names_losses_and_the_group(kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path) -> None:
    names = ["trimmed", "shorter", "recreated", "behind", "good"]
    topics = {name: topic1(1) for name in names}
    for topic in topics.values():
        produce(kafka1, topic, *map(str, range(10)))
    group = f"g-{topics['good']}"
    member = consumer(kafka1, group)
    offsets = [TopicPartition(topics[name], 0, {"behind": 3}.get(name, 6)) for name in names if name != "shorter"]
    member.commit(offsets=offsets, asynchronous=False)
    member.close()
    old_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    ends = {topics[name]: {"0": 6} for name in names} | {topics["shorter"]: {"0": 16}, "no-such-topic": {"0": 1}}
    write_batch(tmp_path, 0, {**ends, "@ids": {topics["recreated"]: old_id}})
    with Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin:
        admin.delete_records({(topics["trimmed"], 0): 8})
        admin.create_partitions({topics["good"]: 2})
    wait_until(lambda: "a new partition" in diff(kafka1, tmp_path, code=1).stdout)
    result = diff(kafka1, tmp_path, "--group", group, "-o", "json", code=1)
    inspected = {(row["topic"], row["partition"]): row for row in rows(result)}
    assert {key: row["finding"] for key, row in inspected.items()} == {
        (topics["trimmed"], 0): "2 offsets were deleted",
        (topics["shorter"], 0): "the log is 6 offsets shorter",
        (topics["recreated"], 0): "the topic was recreated",
        (topics["behind"], 0): "the group is 3 offsets behind",
        (topics["good"], 1): "a new partition",
        ("no-such-topic", 0): "the topic or partition does not exist",
    }
    assert "4 partitions cannot be resumed" in result.stderr
    trimmed = inspected[topics["trimmed"], 0]
    ends = ("completed", "log_start_offset", "log_end_offset", "lag")
    assert [trimmed[name] for name in ends] == [6, 8, 10, 4]


def test_uncommitted_batch_is_resumed_at_its_start(kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path) -> None:
    topic = topic1(1)
    produce(kafka1, topic, *map(str, range(10)))
    write_batch(tmp_path, 0, {topic: {"0": 4}})
    write_batch(tmp_path, 1, {topic: {"0": 9}}, committed=False)
    result = diff(kafka1, tmp_path, "--all", "-o", "json")
    (row,) = rows(result)
    assert (row["completed"], row["planned"], row["lag"], row["finding"]) == (4, 9, 6, None)
    assert result.stderr == "Batch 1 is not committed: it runs, or a restarted query repeats it.\n"
    with Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin:
        admin.delete_records({(topic, 0): 5})
    assert "1 offsets were deleted" in diff(kafka1, tmp_path, code=1).stdout
