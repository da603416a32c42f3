"""`pykafka fake`: runs until it is interrupted; librdkafka produces to it and consumes from it."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from protocol.testing import FakeKafka
from spark_kafka_source.local_kafka import cluster
from tests.cli.runs import COMMAND, invoke
from tests.support.documents import blocks


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command, and yield its process and the addresses that it prints."""
    process = subprocess.Popen(
        [*COMMAND, "fake", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def free_ports(count: int) -> int:
    """Return the first of consecutive free ports. They are none of those that outgoing connections get."""
    while True:
        (first,) = cluster.free_ports(1)
        try:
            for number in range(first, first + count):
                socket.create_server(("127.0.0.1", number)).close()
        except OSError:
            continue  # another program has one of them
        return first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_librdkafka_uses_it_until_it_is_interrupted(number: signal.Signals) -> None:
    with running("--port", "0", "--brokers", "2", "--topic", "orders:3", "--topic", "bills") as (process, addresses):
        client = {"bootstrap.servers": addresses, "log_level": 0}
        topics = AdminClient(client).list_topics(timeout=30).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"orders": 3, "bills": 1}
        producer = confluent_kafka.Producer(client)
        for value in range(100):
            producer.produce("orders", b"%d" % value)
        producer.produce("created-by-its-first-record", b"1")
        assert producer.flush(30) == 0
        consumer = confluent_kafka.Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        records: list[bytes] = []
        while len(records) < 100:
            records += [message.value() for message in consumer.consume(100, 30)]
        consumer.close()
        assert sorted(records) == sorted(b"%d" % number for number in range(100))
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_examples_of_the_page_run_on_other_ports() -> None:
    lines = [line for block in blocks("cli.md") if block.language == "sh" for line in block.text.splitlines()]
    examples = [shlex.split(line)[2:] for line in lines if line.startswith("pykafka fake")]
    assert len(examples) == 2
    for example in examples:
        port = free_ports(3)
        with running(*(str(port) if name == "19092" else name for name in example)) as (_, result):
            assert result.startswith(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--topic", ":3"), 2, "such as orders:3"),
        (("--topic", "orders:many"), 2, "such as orders:3"),
        (("--topic", "orders:0"), 2, "such as orders:3"),
        (("--brokers", "0"), 2, "x>=1"),
        (("--set", "nothing"), 2, "NAME=VALUE"),
        (("--port", "65535", "--brokers", "2"), 1, "127.0.0.1:65535-65536: "),
        (("--port", "0", "--host", "no-such-host.invalid"), 1, "[Errno -"),
        (("--port", "0", "--host", "é..host"), 2, "Invalid value for '--host': 'é..host': not the name or address"),
        (("--port", "0", "--set", "log.retention.check.interval.ms=soon"), 2, "--set: invalid literal"),
        (("--port", "0", "--topic", "a b"), 1, "topic a b: INVALID_TOPIC_EXCEPTION"),
        (("--port", "0", "--topic", "a", "--topic", "a"), 1, "topic a: TOPIC_ALREADY_EXISTS"),
    ],
)
def test_wrong_usage_is_explained(arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in invoke("fake", *arguments, code=code).stderr


def test_taken_port_is_explained(kafka_fake: FakeKafka) -> None:
    port = kafka_fake.addresses[1][1]
    stderr = invoke("fake", "--port", str(port), code=1).stderr
    assert f"127.0.0.1:{port}: {os.strerror(errno.EADDRINUSE)}. Choose another --port or --host." in stderr
