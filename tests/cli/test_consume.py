"""`pykafka consume` on a real broker: records of librdkafka, offsets as Kafka's own tool reports them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from confluent_kafka import Producer

from protocol import Admin, KafkaConsumer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from spark_kafka_source.cli import consume
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke_at, process_at, run_at_kafka1
from tests.conftest import TopicFactory
from tests.support.wait_until import wait_until

TIME_MS = 1_769_839_200_000


run = run_at_kafka1("consume")


Filled = Callable[..., str]


@pytest.fixture
def filled(kafka1: LocalKafka, topic1: TopicFactory) -> Filled:
    """Return `filled(count, partitions=1) -> topic`, which creates a topic with the records of `fill`."""

    def new(count: int, partitions: int = 1) -> str:
        name = topic1(partitions)
        fill(kafka1, name, count, partitions)
        return name

    return new


def fill(kafka: LocalKafka, topic: str, count: int, partitions: int = 1) -> None:
    """Write values 0, 1, … in turn to the partitions; keys repeat after three, times are a second apart."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in range(count):
        producer.produce(
            topic,
            f"value-{number}",
            f"key-{number % 3}",
            number % partitions,
            timestamp=TIME_MS + number * 1000,
            headers={"number": str(number)} if number % 2 else None,
        )
    assert producer.flush(30) == 0


def words(result: Result) -> list[str]:
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("position", "first", "last"),
    [
        ("earliest:latest", 0, 9),
        ("3:5", 3, 4),
        ("+7:", 7, 9),
        ("-2:", 8, 9),
        ("+1:-7", 1, 2),
        ("@2026-01-31T06:00:04Z:", 4, 9),
        ("@2026-01-31T06:00:03.500Z:@2026-01-31T06:00:06Z", 4, 5),
        ("@2099-01-01T00:00Z:", 10, 9),
        (":99", 0, 9),
    ],
)
def test_positions_select_offsets(run: Any, filled: Filled, position: str, first: int, last: int) -> None:
    result = words(run(filled(10), "-o", position, "-e", "-f", r"%o %v\n"))
    assert result == [f"{number} value-{number}" for number in range(first, last + 1)]


def test_partitions_count_and_filters_select_records(run: Any, filled: Filled) -> None:
    topic = filled(30, partitions=3)
    everything = sorted(words(run(topic, "-e", "-f", r"%v\n")))
    assert everything == sorted(f"value-{number}" for number in range(30))
    assert sorted(words(run(topic, "-e", "-p", "0,2"))) == sorted(f"value-{n}" for n in range(30) if n % 3 != 1)
    assert len(words(run(topic, "-o", "earliest", "-n", "4"))) == 4
    assert words(run(topic, "-e", "--key", "key-1", "--grep", "-1[0-9]$", "--header", "number=13")) == ["value-13"]
    assert sorted(words(run(topic, "-e", "--header", "number", "--grep", "^value-.$"))) == [
        f"value-{number}" for number in (1, 3, 5, 7, 9)
    ]
    assert "no partition" in run(topic, "-e", "-p", "3", code=1).stderr


def test_group_commits_printed_records_only(run: Any, kafka1: LocalKafka, filled: Filled) -> None:
    topic = filled(10)
    group = f"g-{topic}"
    assert words(run(topic, "-g", group, "-o", "earliest", "-n", "4")) == [f"value-{number}" for number in range(4)]
    assert kafka1.describe_group(group).split()[-6:-3] == ["4", "10", "6"]
    assert words(run(topic, "-g", group, "-e")) == [f"value-{number}" for number in range(4, 10)]
    assert kafka1.describe_group(group).split()[-6:-3] == ["10", "10", "0"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_file_has_all_columns(run: Any, filled: Filled, tmp_path: Path, suffix: str) -> None:
    topic = filled(20, partitions=2)
    path = tmp_path / f"records{suffix}"
    assert f"20 records written to {path}" in run(topic, "--to", str(path)).stderr
    table = pq.read_table(path) if suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    assert sorted(table.column("value").to_pylist()) == sorted(f"value-{number}".encode() for number in range(20))
    row = table.filter(pa.compute.equal(table.column("value"), b"value-3")).to_pylist()[0]
    assert row == {
        "topic": topic,
        "partition": 1,
        "key": b"key-0",
        "value": b"value-3",
        "offset": 1,
        "timestamp_ms": TIME_MS + 3000,
        "timestamp_type": 0,
        "headers": [{"key": "number", "value": b"3"}],
    }
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_interrupted_export_leaves_no_file(
    run: Any, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.parquet"
    monkeypatch.setattr(f"{consume.__name__}.stop_request", lambda prints: nullcontext(True))
    result = run(filled(5), "--to", str(path), code=1)
    assert result.stderr == f"Error: interrupted; {path} was not written\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_following_with_complete_file_and_then_commits(
    run: Any, kafka1: LocalKafka, filled: Filled, tmp_path: Path, number: int
) -> None:
    topic, group = filled(5), f"g-{tmp_path.name}"
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    command = ("consume", topic, "-o", "earliest", "--follow", "--to", str(first), "-g", group)
    with (
        Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin,
        process_at(kafka1, *command, stderr=subprocess.PIPE) as process,
    ):
        wait_until(lambda: admin.describe_groups([group])[group].state == "Stable", timeout_s=60, every_s=0.2)
        assert admin.list_consumer_group_offsets(group) == {}
        process.send_signal(number)
        _, output = process.communicate(timeout=30)
        # The signal may come before the records.
        count = pq.read_metadata(first).num_rows
        assert (process.returncode, output) == (0, f"{count} records written to {first}\n")
        run(topic, "-o", "earliest", "--to", str(second), "-g", group)
        assert count + pq.read_metadata(second).num_rows == 5
        assert admin.list_consumer_group_offsets(group)[topic, 0].offset == 5


@pytest.mark.parametrize("fails", [False, True])
def test_group_keeps_batch_after_last_printed_one(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The output of the first of two batches has all wanted records, or that of the second one fails."""
    poll, written = KafkaConsumer.poll, []

    def two_batches(consumer: KafkaConsumer, timeout_ms: float) -> Any:
        values_by_key = {}
        for key, batches in poll(consumer, timeout_ms).items():
            rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
            values_by_key[key] = [rows.slice(0, 5), rows.slice(5)] if len(rows) > 5 else [rows]
        return values_by_key

    def write(_: object, key: object, batch: pa.RecordBatch) -> None:
        if written:
            raise OSError("no space left")
        written.append(batch.num_rows)

    monkeypatch.setattr(KafkaConsumer, "poll", two_batches)
    monkeypatch.setattr(f"{consume.__name__}._Output._write", write)
    for _ in range(10):
        fake.produce("orders", b"x")
    limit = () if fails else ("-n", "5")
    invoke_at(fake, "consume", "orders", "-o", "earliest", "-g", "g", *limit, code=int(fails))
    assert (written, fake.committed_offsets("g")) == ([5], {("orders", 0): 5})


def test_group_does_not_wait_for_the_end_of_a_missing_topic() -> None:
    with FakeKafka(settings={"auto.create.topics.enable": "false"}) as kafka:
        missing = invoke_at(kafka, "consume", "orders", "-g", "g", "-e", "--timeout", "1s", code=1)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.stderr


def test_failing_export_leaves_no_file_and_the_offsets_of_the_group(
    run: Any, kafka1: LocalKafka, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"g-{tmp_path.name}"

    def full(*_: object) -> None:
        raise click.ClickException("no space left")

    monkeypatch.setattr(f"{consume.__name__}.RecordFile._write_group", full)
    run(filled(5), "-o", "earliest", "--to", str(tmp_path / "records.parquet"), "-g", group, code=1)
    assert list(tmp_path.iterdir()) == []
    with Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin:
        assert admin.list_consumer_group_offsets(group) == {}


def test_follow_prints_records_that_arrive_later(kafka1: LocalKafka, filled: Filled) -> None:
    topic = filled(3)
    with process_at(kafka1, "consume", topic, "-o", "-1", "-n", "3") as process:
        assert process.stdout.readline() == "value-2\n"
        fill(kafka1, topic, 2)
        output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "value-0\nvalue-1\n")


def test_offsets_of_a_former_topic_are_not_read_from_the_new_one(fake: FakeKafka) -> None:
    fake.produce("orders", "old")
    requests = count(1)

    def recreate(_: object) -> None:
        if next(requests) == 2:  # between the listing of log starts and that of log ends
            fake.delete_topic("orders")
            fake.create_topic("orders", 1)
            fake.produce("orders", "new")
            fake.refuse("ListOffsets", "NOT_LEADER_OR_FOLLOWER")

    fake.before[LIST_OFFSETS] = recreate
    result = invoke_at(fake, "consume", "orders", "--exit-at-end", code=1)
    assert result.stdout == ""
    assert "orders-0: the topic was deleted and created again" in result.stderr
