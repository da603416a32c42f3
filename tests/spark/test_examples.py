"""Each job of examples/ does what its first line says."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import protocol
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.protocol.fetch.consuming import produce
from tests.support.read_back import read_back
from tests.support.read_committed import by_librdkafka
from tests.support.wait_until import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
FOREVER = {"retention.ms": "-1"}


@pytest.fixture(autouse=True)
def ctrl_c_of_pytest() -> Iterator[None]:
    """Restore the handler that the examples replace."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def run(name: str, *arguments: Any) -> Any:
    """Call the main function of an example; it uses the session of the tests."""
    return import_module(f"examples.{name}").main(*map(str, arguments))


def values(kafka: LocalKafka, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in read_back(kafka, topic))


def test_page_lists_every_example() -> None:
    files = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert set(re.findall(r"\(\.\./examples/(\w+\.py)\)", (ROOT / "docs" / "examples.md").read_text())) == files


def test_topic_to_parquet_continues_where_it_ended(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic = topic1(2)
    for numbers in (range(100), range(100, 150)):
        produce(kafka1, topic, numbers, 2)
        run("topic_to_parquet", kafka1.bootstrap_servers, topic, f"g-{topic}", tmp_path)
    rows = spark.read.parquet(f"{tmp_path}/records").collect()
    assert sorted(row.value for row in rows) == [f"{number:09}." for number in range(150)]


def test_exactly_once_copies_each_record(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic1(2), topic1(2)
    produce(kafka1, source, range(100), 2)
    run("exactly_once", kafka1.bootstrap_servers, source, target, f"g-{source}", tmp_path)
    committed = by_librdkafka(kafka1.bootstrap_servers, target).values()
    assert sorted(value for partition in committed for value in partition) == [
        b"%09d." % number for number in range(100)
    ]


def test_upper_writes_values_until_ctrl_c(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic1(2), topic1()
    with protocol.Producer(bootstrap_servers=kafka1.bootstrap_servers) as producer:
        for value in (b"paid", b"sent"):
            producer.send(source, value)
    before = {query.id for query in spark.streams.active}

    def stop_when_written() -> None:
        try:
            wait_until(lambda: values(kafka1, target) == [b"PAID", b"SENT"], timeout_s=240, every_s=0.1)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop_when_written)
    stopping.start()
    run("upper", kafka1.bootstrap_servers, source, target, f"g-{source}", tmp_path)
    stopping.join(60)
    assert {query.id for query in spark.streams.active} <= before
    assert values(kafka1, target) == [b"PAID", b"SENT"]


def test_counts_by_key_are_the_newest_records(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic1(), topic1()
    for times in (1, 2):
        with protocol.Producer(bootstrap_servers=kafka1.bootstrap_servers) as producer:
            for key in (b"a", b"b", b"a"):
                producer.send(source, b"x", key=key)
        run("counts_by_key", kafka1.bootstrap_servers, source, target, tmp_path)
        newest = {record.key: record.value for record in read_back(kafka1, target)}
        assert newest == {b"a": b"%d" % (2 * times), b"b": b"%d" % times}


def test_read_period_reads_its_records_only(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic = topic1(2, config=FOREVER)
    times = [1_767_225_600_000 + hour * 3_600_000 for hour in range(48)]  # from 2026-01-01T00:00Z
    table = pa.table({"value": [str(hour) for hour in range(48)], "timestamp_ms": times, "partition": [0] * 48})
    protocol.write({"bootstrap.servers": kafka1.bootstrap_servers}, topic, table)
    period = ("2026-01-01T06:00:00Z", "2026-01-02T00:00:00Z")
    run("read_period", kafka1.bootstrap_servers, topic, *period, tmp_path / "period")
    rows = spark.read.parquet(str(tmp_path / "period")).selectExpr("int(string(value)) AS hour", "topic").collect()
    assert sorted(row.hour for row in rows) == list(range(6, 24))


def test_table_to_topic_writes_rows_as_json(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic = topic1()
    pq.write_table(pa.table({"id": [1, 2], "country": ["DE", "FR"]}), tmp_path / "orders.parquet")
    run("table_to_topic", kafka1.bootstrap_servers, tmp_path / "orders.parquet", "id", topic)
    assert {(record.key, json.loads(record.value or b"")["country"]) for record in read_back(kafka1, topic)} == {
        (b"1", "DE"),
        (b"2", "FR"),
    }


def test_arrow_copy_copies_each_record(kafka1: LocalKafka, topic1: TopicFactory) -> None:
    source, target = topic1(2), topic1(3)
    produce(kafka1, source, range(100), 2)
    servers = kafka1.bootstrap_servers
    assert run("arrow_copy", servers, source, servers, target) == 100
    assert values(kafka1, target) == values(kafka1, source)


def test_handle_records_handles_each_and_keeps_failed_ones(
    kafka1: LocalKafka, topic1: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, dead_letters = topic1(2), topic1()
    orders = [json.dumps({"id": f"order-{number}"}).encode() for number in range(20)]
    with protocol.Producer(bootstrap_servers=kafka1.bootstrap_servers) as producer:
        for value in (*orders, b"no JSON"):
            producer.send(topic, value, key=value)
    example = import_module("examples.handle_records")
    handled: list[str] = []
    running: list[protocol.Processor] = []

    def handler(message: Any) -> None:
        example.handle(message)
        handled.append(message.value)

    arguments = (kafka1.bootstrap_servers, topic, f"g-{topic}", dead_letters, handler, running.append)
    thread = threading.Thread(target=example.main, args=arguments)
    thread.start()
    try:
        wait_until(lambda: len(handled) == 20 and len(values(kafka1, dead_letters)) == 1, timeout_s=120)
    finally:
        running[0].close()
        thread.join(60)
    assert values(kafka1, dead_letters) == [b"no JSON"]
    assert sorted(capsys.readouterr().out.split()[2::3]) == sorted(f"order-{number}" for number in range(20))


def test_lag_report_names_groups_that_are_behind(
    kafka1: LocalKafka, topic1: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic1()
    produce(kafka1, topic, range(10))
    with protocol.Admin(bootstrap_servers=kafka1.bootstrap_servers) as admin:
        for group, offset in ((f"g-{topic}", 3), (f"at-end-{topic}", 10)):
            admin.alter_consumer_group_offsets(group, {(topic, 0): protocol.CommittedOffset(offset)})
        assert run("lag_report", kafka1.bootstrap_servers, "1e9") == 0
        assert run("lag_report", kafka1.bootstrap_servers, "-1") == 1
        admin.delete_groups([f"g-{topic}", f"at-end-{topic}"])
    output = capsys.readouterr().out
    assert re.search(rf"^ +\d+\.\d s +7 offsets  g-{topic}$", output, re.MULTILINE)
    assert "at-end" not in output
