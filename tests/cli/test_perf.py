"""`pykafka perf` beside Kafka's performance tools: the same form, the same number of records."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.testing import FakeKafka
from spark_kafka_source.cli import perf, stop_signals
from spark_kafka_source.cli.stop_signals import StopRequest
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke_at, run_at_kafka1
from tests.cli.test_produce import read
from tests.conftest import TopicFactory

NUMBER = r"\d+(?:\.\d+)?"
PRODUCED = re.compile(
    rf"(\d+) records sent, ({NUMBER}) records/sec \({NUMBER} MB/sec\), ({NUMBER}) ms avg latency, ({NUMBER}) ms max "
    rf"latency, ({NUMBER}) ms 50th, ({NUMBER}) ms 95th, ({NUMBER}) ms 99th, ({NUMBER}) ms 99.9th\."
)


run = run_at_kafka1("perf")


def test_produce_prints_the_line_of_kafkas_tool(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(2)
    options = ("--topic", topic, "--num-records", "500", "--record-size", "10", "--throughput", "-1")
    tool = kafka1.run_tool(
        "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", kafka1.bootstrap_servers, *options
    )
    assert PRODUCED.search(tool), tool
    ours = run("produce", topic, "-n", "1234", "--record-size", "10", "--rows", "100", "--warmup-records", "66")
    (line,) = ours.stdout.splitlines()
    match = PRODUCED.fullmatch(line)
    assert match is not None, line
    count, _, average, maximum, *percentiles = map(float, match.groups())
    assert count == 1234
    assert 0 < average <= maximum
    assert percentiles == sorted(percentiles)
    messages = read(kafka1, topic, 2)
    assert len(messages) == 500 + 1234 + 66
    assert {len(message.value()) for message in messages} == {10}


def test_throughput_is_limited(run: Any, topic1: TopicFactory) -> None:
    (line,) = run("produce", topic1(1), "-n", "2000", "--throughput", "1000", "--rows", "50").stdout.splitlines()
    match = PRODUCED.fullmatch(line)
    assert 100 < float(match[2]) < 1100, "it may be slower on a busy machine"


def test_consume_prints_the_table_of_kafkas_tool(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(2)
    run("produce", topic, "-n", "3000", "--record-size", "1024")
    options = ("--topic", topic, "--num-records", "3000", "--bootstrap-server", kafka1.bootstrap_servers)
    tool = kafka1.run_tool("org.apache.kafka.tools.ConsumerPerformance", *options)
    heading, figures = (line for line in tool.splitlines() if line.count(",") == 9)
    ours = run("consume", topic, "-n", "3000").stdout.splitlines()
    assert ours[0] == heading
    own, his = ([part.strip() for part in line.split(",")] for line in (ours[1], figures))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", own[0])
    assert len(own[0]) == len(his[0])
    assert (own[2], own[4]) == (his[2], his[4]) == ("2.9297", "3000")


def test_consume_ends_when_idle_and_names_missing_records(run: Any, topic1: TopicFactory) -> None:
    topic = topic1(1)
    run("produce", topic, "-n", "10")
    result = run("consume", topic, "-n", "11", "--idle", "1s")
    assert result.stderr == "WARNING: 10 of 11 records were read.\n"


def test_produce_ends_at_a_signal_while_it_limits_throughput(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    signals = iter((False, False))  # before the first call, and in its pause; then the signal
    stop = type("Stop", (StopRequest,), {"__bool__": lambda _: next(signals, True)})()
    monkeypatch.setattr(perf, "stop_request", lambda: nullcontext(stop))
    monkeypatch.setattr(stop_signals, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    result = invoke_at(fake, "perf", "produce", "orders", "-n", "1000", "--throughput", "1")
    assert result.stdout.startswith("500 records sent")
    assert sum(slept) < 1
