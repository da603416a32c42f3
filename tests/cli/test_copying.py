"""`pykafka copy` and `replay` on a real broker, read back by librdkafka."""

from __future__ import annotations

import re
import signal
import socket
import time
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import Producer

from protocol import Admin
from protocol.base import once
from protocol.cluster import unknown_topic
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.server import FakeKafka
from spark_kafka_source.cli import copying
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke_at, process_at, rows, run_at_kafka1
from tests.cli.test_produce import read
from tests.conftest import TopicFactory
from tests.support.stale_coordinator import keep_deleted_topic
from tests.support.wait_until import wait_until

TIME_MS = 1_769_839_200_000


run = run_at_kafka1()


def fill(kafka: LocalKafka, topic: str, count: int, partitions: int = 1, **headers: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in range(count):
        producer.produce(
            topic,
            None if number == 1 else f"value-{number}",
            None if number == 2 else f"key-{number}",
            number % partitions,
            timestamp=TIME_MS + number,
            headers=[("n", str(number)), *headers.items(), ("n", "again")],
        )
    assert producer.flush(30) == 0


def records(kafka: LocalKafka, topic: str, partitions: int = 1) -> list[tuple[Any, ...]]:
    collected = [
        (message.timestamp()[1], message.key(), message.value(), message.headers(), message.partition())
        for message in read(kafka, topic, partitions)
    ]
    return sorted(collected, key=lambda record: record[0])


def test_copy_keeps_everything_but_the_partition(
    run: Any, kafka1: LocalKafka, topic1: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last copy needs a partition that does not exist. By default, a client waits for it for ten seconds.
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 1_000)
    source, target, same = topic1(3), topic1(2), topic1(3)
    fill(kafka1, source, 30, partitions=3)
    run("copy", source, target)
    expected = records(kafka1, source, 3)
    assert [record[:4] for record in records(kafka1, target, 2)] == [record[:4] for record in expected]
    run("copy", source, same, "--keep-partitions")
    assert records(kafka1, same, 3) == expected
    assert "the same topic" in run("copy", source, source, code=2).stderr
    assert "partition 2" in run("copy", source, target, "--keep-partitions", code=1).stderr


def test_copy_takes_positions_and_a_limit_and_shows_offsets(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    source, target = topic1(1), topic1(1)
    fill(kafka1, source, 30)
    output = run("copy", source, target, "-o", "5:20", "-n", "7", "--output", "json")
    assert rows(output) == [{"topic": target, "partition": 0, "first_offset": 0, "last_offset": 6, "records": 7}]
    assert [record[0] - TIME_MS for record in records(kafka1, target)] == list(range(5, 12))


def test_copy_to_other_cluster_follows_until_stopped(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    source, target = topic1(1), topic1(1)
    fill(kafka1, source, 3)
    second = ("--to-bootstrap-server", kafka1.bootstrap_servers, "--to-property", "linger.ms=0")
    with process_at(kafka1, "copy", source, target, "--follow", *second) as process:
        wait_until(lambda: len(records(kafka1, target)) == 3, lambda: "not copied", every_s=0.2)
        fill(kafka1, source, 2)
        wait_until(lambda: len(records(kafka1, target)) == 5, lambda: "not followed", every_s=0.2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert output.splitlines()[1].split() == [target, "0", "0", "4", "5"]


def test_interrupted_copy_and_replay_fail_without_a_commit(
    run: Any, kafka1: LocalKafka, topic1: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = topic1(1), topic1(1)
    fill(kafka1, source, 3, **{"__connect.errors.topic": target})
    monkeypatch.setattr(f"{copying.__name__}.stop_request", lambda: nullcontext(True))
    result = run("copy", source, target, "--output", "csv", code=1)
    assert f"{target},0,0,2,3" in result.stdout
    assert result.stderr == "Error: interrupted before the end\n"
    group = f"g-{target}"
    result = run("replay", source, "--group", group, "--execute", "--output", "csv", code=1)
    assert f"{target},0,3,5,3" in result.stdout
    with Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin:
        assert admin.list_consumer_group_offsets(group) == {}


def test_replay_writes_dead_letters_to_the_topic_in_their_headers(
    run: Any, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    dead, first, second = (topic1(1) for _ in range(3))
    fill(kafka1, dead, 3, **{"__connect.errors.topic": first, "__connect.errors.partition": "0"})
    fill(kafka1, dead, 2, **{"kafka_dlt-original-topic": second, "kafka_dlt-exception-message": "x"})
    fill(kafka1, dead, 1)
    shown = run("replay", dead, "-o", "earliest", "--output", "json")
    assert {row["topic"]: row["records"] for row in rows(shown)} == {first: 3, second: 2}
    assert "Left out: 1 records" in shown.stderr
    assert "Nothing was written" in shown.stderr
    assert records(kafka1, first) == []
    group = f"g-{dead}"
    run("replay", dead, "--group", group, "--execute")
    assert records(kafka1, first) == [
        (TIME_MS, b"key-0", b"value-0", [("n", b"0"), ("n", b"again")], 0),
        (TIME_MS + 1, b"key-1", None, [("n", b"1"), ("n", b"again")], 0),
        (TIME_MS + 2, None, b"value-2", [("n", b"2"), ("n", b"again")], 0),
    ]
    assert len(records(kafka1, second)) == 2
    # The group remembers what was replayed.
    fill(kafka1, dead, 1, **{"__connect.errors.topic": first})
    again = run("replay", dead, "--group", group, "--execute", "--output", "json")
    assert [row["records"] for row in rows(again)] == [1]
    assert kafka1.describe_group(group).split()[-6:-3] == ["7", "7", "0"]


def test_replay_options_choose_header_default_and_kept_headers(
    run: Any, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    dead, first, second = (topic1(1) for _ in range(3))
    fill(kafka1, dead, 1, **{"origin": first, "__connect.errors.topic": second})
    fill(kafka1, dead, 1, other="x")
    options = ("--topic-header", "origin", "--topic-header", "__connect.errors.topic", "--to", second)
    run("replay", dead, *options, "--keep-headers", "--execute")
    ((*_, headers, _),) = records(kafka1, first)
    own = [("origin", first.encode()), ("__connect.errors.topic", second.encode())]
    assert headers == [("n", b"0"), *own, ("n", b"again")]
    assert len(records(kafka1, second)) == 1


@pytest.fixture
def fake(kafka_fake: FakeKafka) -> FakeKafka:
    for topic in ("orders", "orders-copy"):
        kafka_fake.create_topic(topic, 1)
    kafka_fake.produce("orders", "1", headers=[("__connect.errors.topic", b"\xff")])
    return kafka_fake


def test_header_that_is_no_text_is_an_error_of_its_topic_and_nothing_is_committed(fake: FakeKafka) -> None:
    assert "\ufffd" in invoke_at(fake, "replay", "orders").stdout
    replayed = invoke_at(fake, "replay", "orders", "--group", "g", "--execute", code=1)
    assert "INVALID_TOPIC_EXCEPTION" in replayed.stderr
    assert "g" not in fake.offsets.committed


def test_replay_into_the_topic_of_dead_letters_is_refused(fake: FakeKafka) -> None:
    same = invoke_at(fake, "replay", "orders", "--to", "orders", "--execute", code=2).stderr
    assert "Source and target are the same topic of the same cluster." in same
    for topic in (b"orders-copy", b"orders", b"orders-copy"):
        fake.produce("orders", "1", headers=[("origin", topic)])
    replay = ("replay", "orders", "--topic-header", "origin", "--group", "g")
    assert "orders-0, offset 2: its headers name the topic orders" in invoke_at(fake, *replay, code=1).stderr
    assert "orders-0, offset 2: its headers name" in invoke_at(fake, *replay, "--execute", code=1).stderr
    assert (len(fake.records("orders")), len(fake.records("orders-copy"))) == (4, 1)
    assert "g" not in fake.offsets.committed


def test_replay_counts_deleted_records_of_its_group(fake: FakeKafka) -> None:
    fake.offsets.committed["g"] = {("orders", 0): Committed(0, 0, "")}
    fake.shrink_log("orders", 0, 2)
    result = invoke_at(fake, "replay", "orders", "--group", "g")
    assert "Group g: its offset 0 of orders-0 is out of range: the log holds [2, " in result.stderr
    assert "Starts at 2: 2 offsets are skipped" in result.stderr


def test_replay_after_truncation_fails_and_names_the_command_to_continue(fake: FakeKafka) -> None:
    fake.offsets.committed["g"] = {("orders", 0): Committed(1_000, 0, "")}
    replay = ("replay", "orders", "--group", "g", "--to", "orders-copy")
    result = invoke_at(fake, *replay, "--execute", code=1)
    end = fake.log("orders", 0).end_offset
    assert f"out of range: the log holds [0, {end})" in result.stderr
    command = f"pykafka groups reset g --topic orders:0 --to-offset {end} --execute"
    assert command in result.stderr
    invoke_at(fake, *command.split()[1:])
    assert fake.offsets.committed["g"]["orders", 0].offset == end
    invoke_at(fake, *replay)


def test_replay_does_not_start_at_the_offset_of_a_deleted_topic(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = fake.log("orders", 0).end_offset
    keep_deleted_topic(monkeypatch, fake, "g", {("orders", 0): end})
    result = invoke_at(fake, "replay", "orders", "--group", "g", "--to", "orders-copy", "--output", "json")
    assert [row["records"] for row in rows(result)] == [end]


def test_replay_commits_the_leader_epoch_of_its_end(fake: FakeKafka) -> None:
    fake.set_leader_epoch("orders", 0, 3)
    end = fake.log("orders", 0).end_offset
    invoke_at(fake, "replay", "orders", "-p", "0", "--group", "g", "--topic-header", "none", "--execute")
    committed = fake.offsets.committed["g"]["orders", 0]
    assert (committed.offset, committed.leader_epoch) == (end, 3)


@pytest.mark.parametrize("option", ["--to-bootstrap-server={}", "--to-property=bootstrap.servers={}"])
def test_copy_writes_to_the_cluster_that_an_option_names(fake: FakeKafka, option: str) -> None:
    with FakeKafka() as second:
        second.create_topic("orders", 1)
        invoke_at(fake, "copy", "orders", "orders", option.format(second.bootstrap_servers))
        assert len(second.records("orders")) == len(fake.records("orders")) == 1
        unknown = invoke_at(fake, "copy", "orders", "orders-copy", "--to-property", "acks=0", "--output", "csv")
        assert unknown.stdout.splitlines()[1:] == ["orders-copy,0,,,1"]
        wrong = invoke_at(fake, "copy", "orders", "orders-copy", "--to-property", "security.protocol=x", code=2)
        assert "properties of the target cluster: security.protocol" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        (("copy", "orders", "orders-copy"), []),
        (("replay", "orders", "--to", "orders-copy", "--execute"), []),
        (("doctor", "--topic", "orders", "--write", "orders-copy"), []),
        (("topics", "analyze", "orders"), ["linger.ms"]),
        (("produce", "orders"), ["fetch.min.bytes"]),
        (("copy", "orders", "orders", "--to-bootstrap-server"), ["linger.ms"]),
    ],
)
def test_properties_of_both_roles_have_an_effect_in_commands_that_read_and_write(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture, arguments: tuple[str, ...], warned: list[str]
) -> None:
    once.reset()
    with FakeKafka() as second:
        second.create_topic("orders", 1)
        to = (second.bootstrap_servers,) if arguments[-1] == "--to-bootstrap-server" else ()
        invoke_at(fake, *arguments, *to, "-X", "linger.ms=1", "-X", "fetch.min.bytes=2", typed=b"", code=None)
    assert [text.partition(" ")[0] for text in caplog.messages if "no effect" in text] == warned


@pytest.mark.parametrize("command", [("copy", "large", "target"), ("replay", "large", "-g", "g", "--execute")])
def test_record_that_is_too_large_ends_the_copy_of_its_partition(fake: FakeKafka, command: tuple[str, ...]) -> None:
    fake.create_topic("large", 1, config={"max.message.bytes": "10000000"})
    fake.create_topic("target", 1)
    fake.create_topic("another", 1)
    headers = [("__connect.errors.topic", b"target")]
    fake.produce("large", "0", "1", headers=headers)
    fake.produce("large", "2", "x" * 3_000_000, "4", headers=headers)
    fake.produce("large", "5", headers=[("__connect.errors.topic", b"another")])
    failed = invoke_at(fake, *command, "--output", "csv", code=1)
    error = "Error: large-0, offset 3: a record for topic target is 3000[0-9]* bytes, more than max.request.size"
    assert re.match(error, failed.stderr)
    assert failed.stdout.splitlines()[1:] == ["target,0,0,2,3"]
    assert [record.value for record in fake.records("target")] == [b"0", b"1", b"2"]
    assert fake.records("another") == []
    assert fake.committed_offsets("g") == {}
    larger = invoke_at(fake, *command, "--output", "csv", "-X", "max.request.size=4000000", code=None)
    assert "MESSAGE_TOO_LARGE" in larger.stderr


@pytest.mark.parametrize("command", [("copy", "large", "target"), ("replay", "large", "--execute")])
def test_record_that_the_broker_refuses_is_named_by_its_source(fake: FakeKafka, command: tuple[str, ...]) -> None:
    fake.create_topic("large", 2, config={"max.message.bytes": "10000000"})
    fake.create_topic("target", 1)
    headers = [("__connect.errors.topic", b"target")]
    fake.produce("large", "0", headers=headers, partition=0)
    fake.produce("large", "0", "1", "x" * 1_100_000, "3", headers=headers, partition=1)
    failed = invoke_at(fake, *command, "-X", "max.request.size=4000000", "--output", "csv", code=1)
    assert re.match(r"Error: large-1, offset 2: Produce of 1 records to target-0 .*MESSAGE_TOO_LARGE", failed.stderr)


def test_copy_of_a_topic_to_itself_is_refused_by_another_address_of_the_cluster() -> None:
    """With --follow, it would read what it writes, without end."""
    with FakeKafka(2) as kafka:
        kafka.create_topic("orders", 1)
        kafka.produce("orders", "1")
        refused = invoke_at(kafka, "copy", "orders", "orders", "--to-bootstrap-server", kafka.address(2), code=2)
        assert "Source and target are the same topic of the same cluster." in refused.stderr
        assert len(kafka.records("orders")) == 1


def test_copy_to_unreachable_cluster_ends_at_the_time_limit(fake: FakeKafka) -> None:
    began_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never replies
        second = ("--to-bootstrap-server", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "2s")
        assert invoke_at(fake, "copy", "orders", "orders-copy", *second, code=1).stderr.count("\n") == 1
    assert time.monotonic() - began_s < 20
