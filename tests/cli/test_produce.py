"""`pykafka produce` on a real broker, read back by librdkafka."""

from __future__ import annotations

from pathlib import Path
from subprocess import PIPE
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from protocol.testing import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.cli.runs import invoke_at, process_at, rows, run_at_kafka1
from tests.cli.test_record_inputs import saved
from tests.conftest import TopicFactory
from tests.support.read_back import messages_to_the_end
from tests.support.wait_until import wait_until

run = run_at_kafka1("produce")


def read(kafka: LocalKafka, topic: str, partitions: int = 1) -> list[Message]:
    """Return all messages, by librdkafka."""
    return list(messages_to_the_end(kafka.bootstrap_servers, [(topic, number) for number in range(partitions)]))


def pairs(messages: list[Message]) -> list[tuple[bytes | None, bytes | None]]:
    return [(message.key(), message.value()) for message in messages]


def test_lines_are_values_and_offsets_are_printed(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(1)
    run(topic, typed=b"zero\n")
    output = run(topic, "-o", "json", "-z", "lz4", typed="a\n\nnaïve\xff\nlast".encode("latin-1"))
    assert rows(output) == [{"topic": topic, "partition": 0, "first_offset": 1, "last_offset": 4, "records": 4}]
    assert pairs(read(kafka1, topic)) == [
        (None, b"zero"),
        (None, b"a"),
        (None, b""),
        (None, b"na\xefve\xff"),
        (None, b"last"),
    ]
    assert rows(run(topic, "-o", "json", typed=b"")) == []


def test_keys_headers_and_partition_are_sent(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(3)
    run(topic, "-K", ":", "-H", "source=shell", "-H", "empty", "-p", "2", "-Z", typed=b"k:v:w\nonly\ngone:\n:x\n")
    records = read(kafka1, topic, 3)
    assert {message.partition() for message in records} == {2}
    assert pairs(records) == [(b"k", b"v:w"), (None, b"only"), (b"gone", None), (None, b"x")]
    assert records[0].headers() == [("source", b"shell"), ("empty", None)]
    run(topic, "-k", "fixed", "-K", r"\t", "--acks", "1", typed=b"a\tb\nc\n")
    assert {(b"a", b"b"), (b"fixed", b"c")} == {*pairs(read(kafka1, topic, 3))} - {*pairs(records)}


def test_json_lines_of_consume_are_the_same_records_again(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    source, target = topic1(2), topic1(2)
    lines = (
        b'{"key": "k", "value": "v", "headers": {"h": "1", "n": null}, "timestamp_ms": 1769839200000, "partition": 1}\n'
        b'{"key_base64": "/w==", "value": {"id": 7, "name": "na\xc3\xafve"}, "partition": 0}\n'
        b'{"value": null, "headers": [{"key": "h", "value_base64": "/g=="}], "partition": 0}\n'
    )
    run(source, "-i", "json", typed=lines)
    printed = invoke_at(kafka1, "consume", source, "-e", "-o", "json").stdout_bytes
    run(target, "-i", "json", typed=printed)
    first, second = (
        [
            (message.partition(), message.key(), message.value(), message.headers(), message.timestamp())
            for message in read(kafka1, name, 2)
        ]
        for name in (source, target)
    )
    assert sorted(first, key=repr) == sorted(second, key=repr)
    (dated,) = [record for record in first if record[0] == 1]
    assert dated == (1, b"k", b"v", [("h", b"1"), ("n", None)], (1, 1769839200000))
    assert [record[1:4] for record in first if record[0] == 0] == [
        (b"\xff", '{"id":7,"name":"naïve"}'.encode(), None),
        (None, None, [("h", b"\xfe")]),
    ]


def test_named_columns_of_a_table_are_keys_and_values(fake: FakeKafka, tmp_path: Path) -> None:
    path = tmp_path / "orders.parquet"
    path.write_bytes(saved(pa.table({"id": [7, 8], "name": ["x", "naïve"]}), "parquet"))
    columns = ("--key-column", "id", "--value-column", "name")
    invoke_at(fake, "produce", "orders", str(path), *columns)
    invoke_at(fake, "produce", "orders", "-i", "parquet", *columns, typed=path.read_bytes())
    written = [(record.key, record.value) for record in fake.records("orders")]
    assert written == [(b"7", b"x"), (b"8", "naïve".encode())] * 2


def test_parquet_export_is_imported_unchanged(
    run: Any, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    source, target, path = topic1(2), topic1(2), str(tmp_path / "records.parquet")
    run(source, "-K", ":", "-H", "n=1", typed=b"".join(b"k%d:v%d\n" % (n, n) for n in range(100)))
    invoke_at(kafka1, "consume", source, "--to", path)
    run(target, path)
    first, second = (
        sorted(
            (m.partition(), m.offset(), m.key(), m.value(), m.headers()[0], m.timestamp()) for m in read(kafka1, t, 2)
        )
        for t in (source, target)
    )
    assert len(first) == 100
    assert first == second


def test_transaction_is_all_or_nothing(run: Any, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1(1)
    transactional = (topic, "-i", "json", "--transactional-id", f"id-{topic}")
    refused = run(*transactional, typed=b'{"value": "1"}\n' * 70_000 + b"{}\n", code=1)
    assert "line 70001: the field value is missing" in refused.stderr
    assert read(kafka1, topic) == []
    run(*transactional, typed=b'{"value": "1"}\n{"value": "2"}\n')
    assert [message.value() for message in read(kafka1, topic)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("lines", "says", "written"),
    [
        (["first", "x" * 3_000_000, "last"], "record 3: a record for topic orders is 3000074 bytes, more than max", 2),
        (["first", '","partition":9,"key":"', "last"], "records 2 to 4: partition 9 was requested", 1),
        (["first", '"', "last"], "Error: line 3: ", 2),
    ],
)
def test_records_before_refused_one_or_wrong_input_are_written_and_shown(
    fake: FakeKafka, lines: list[str], says: str, written: int
) -> None:
    texts = [f'{{"value":"{line}"}}\n' for line in lines]
    arguments = ("produce", "orders", "-i", "json", "-o", "csv", "-X", "max.block.ms=1000")
    process = process_at(fake, *arguments, stdin=PIPE, stderr=PIPE)
    process.stdin.write('{"value":"zero"}\n')
    process.stdin.flush()
    wait_until(lambda: fake.records("orders"))
    printed, errors = process.communicate("".join(texts), timeout=60)
    assert process.returncode == 1
    assert says in errors
    assert printed.splitlines()[1:] == [f"orders,0,0,{written - 1},{written}"]
    assert [record.value for record in fake.records("orders")] == [b"zero", b"first"][:written]


@pytest.mark.parametrize(
    ("arguments", "typed", "code", "says"),
    [
        (("-i", "json"), b"[1]\n", 1, "line 1: a record is a JSON object"),
        (("-p", "9", "-X", "max.block.ms=1000"), b"x\n", 1, "partition 9"),
        (("-i", "json", "-K", ":"), b"", 2, "--key-separator is for lines"),
        (("-K", ""), b"x\n", 2, "--key-separator is empty"),
        (("--value-column", "x"), b"", 2, "for tables"),
        (("-X", "acks=2"), b"", 2, "acks"),
    ],
)
def test_wrong_input_and_usage_are_one_error(
    run: Any, topic1: TopicFactory, arguments: tuple[str, ...], typed: bytes, code: int, says: str
) -> None:
    output = run(topic1(1), *arguments, typed=typed, code=code)
    assert says in " ".join(output.stderr.split())
    assert output.stdout == ""
